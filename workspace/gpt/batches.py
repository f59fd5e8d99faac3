"""Text as tensors: 90 % to train on, the last 10 % to validate.

Legend: B batch, T time (block size).
"""

import torch

TRAIN_SHARE = 0.9


class TextData:
    """Batches of (tokens [B, T], targets [B, T]); a target is the character after the token.

    A training batch depends on seed and step only. So every rank draws the same one without talking, and a resumed run
    continues exactly, with the step as its only bookmark.
    """

    def __init__(self, content, symbols, config):
        self.symbols = symbols
        self.config = config
        self.index = {symbol: index for index, symbol in enumerate(symbols)}
        tokens = torch.tensor(self.encode(content))
        cut = int(TRAIN_SHARE * len(tokens))
        self.train, self.validation = tokens[:cut], tokens[cut:]
        shorter = min(len(self.train), len(self.validation))
        if shorter <= config.block_size:
            raise ValueError(
                f"--block-size {config.block_size} needs a longer text: one part of it has {shorter} characters"
            )

    def encode(self, content):
        try:
            return [self.index[symbol] for symbol in content]
        except KeyError as unknown:
            raise ValueError(f"character {unknown} is not among the text's {len(self.symbols)} symbols") from None

    def decode(self, tokens):
        return "".join(self.symbols[token] for token in tokens)

    def batch(self, step):
        """The training batch of a step: B places in the text, drawn anew for each step."""
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + step)
        starts = torch.randint(
            len(self.train) - self.config.block_size, (self.config.batch_size, 1), generator=generator
        )
        places = starts + torch.arange(self.config.block_size)  # [B, 1] + [T] -> [B, T]
        return self.train[places], self.train[places + 1]

    def validation_batches(self):
        """The whole validation text, each character but the first a target once."""
        block, count = self.config.block_size, len(self.validation) - 1
        whole = count // block * block
        tokens = self.validation[:whole].view(-1, block)  # [all, T]
        targets = self.validation[1 : whole + 1].view(-1, block)
        size = self.config.eval_batch_size
        yield from zip(tokens.split(size), targets.split(size), strict=True)
        if whole < count:
            yield self.validation[None, whole:-1], self.validation[None, whole + 1 :]
