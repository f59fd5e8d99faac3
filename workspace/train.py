"""Train a small GPT on a text: one loop, one evaluation, on one process or, with --parallel tp, over many.

    python3 train.py --help
    sbatch jobs/tp.sbatch --steps 500

Every rank runs the same loop; what rank 0 alone does stands under `chief`.
"""

import dataclasses
import math
import sys
import time

import torch

import checkpoint
import config as configuration
import data
import env as environment
import none
import tp
from batches import TextData
from journal import Journal, communicated
from model import build, generate

STRATEGIES = {"none": none, "tp": tp}


def main():
    try:
        config = configuration.parse()
        env = environment.read()
        strategy = STRATEGIES[config.parallel]
        strategy.check(config, env.world_size)
        # Several ranks do not fetch a text: all would at once, and compute nodes often have no internet.
        text = data.load(config.text) if config.text or env.world_size > 1 else data.prepare()
        batches = TextData(text.content, text.symbols, config)
        resumed = checkpoint.load(config.resume, config, text) if config.resume else None
    except ValueError as error:
        sys.exit(f"train.py: error: {error}")
    shard = strategy.shard_description(config, len(text.symbols), env.rank, env.world_size)
    environment.announce(env.record(shard))
    if config.threads:
        torch.set_num_threads(config.threads)
    with environment.process_group(env, config.timeout):
        Run(config, env, strategy, text, batches, resumed, env.record(shard)).run()


class Run:
    """The state of a training run on one rank."""

    def __init__(self, config, env, strategy, text, batches, resumed, record):
        self.config, self.strategy, self.text, self.batches = config, strategy, text, batches
        self.chief = env.rank == 0  # the rank that writes
        ranks = environment.gather({"record": record, "text": text.sha256, "config": dataclasses.asdict(config)})
        self.placement = [each["record"] for each in ranks]
        for each in ranks:
            for name in ("text", "config"):
                if each[name] != ranks[0][name]:
                    raise RuntimeError(f"ranks disagree on the {name}: {ranks[0][name]} and {each[name]}")
        self.folder = config.run_path()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.model = strategy.prepare(build(config, len(text.symbols)), env.rank, env.world_size)
        self.optimizer = make_optimizer(self.model, config)
        self.first_step = 0
        if resumed:
            checkpoint.restore(resumed, strategy, self.model, self.optimizer)
            self.first_step = resumed["step"]

    def run(self):
        config = self.config
        if self.chief:
            self.say_what_runs()
        journal = Journal(self.folder, config, self.chief, self.first_step)
        for step in range(self.first_step + 1, config.steps + 1):
            collectives = self.step(step, journal)
            last = step == config.steps
            val_loss = self.evaluate() if last or step % config.eval_every == 0 else None
            if last or val_loss is not None or step % config.log_every == 0:
                train_loss = journal.log(step, val_loss)
            if last or step % config.checkpoint_every == 0:
                saved = self.save(step)
        if self.chief:
            self.finish(journal, saved, collectives, train_loss, val_loss)

    def step(self, step, journal):
        """One optimiser step; returns how many collectives of each kind it took."""
        start, (waited, calls) = time.perf_counter(), communicated()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config)
        tokens, targets = self.strategy.local_batch(*self.batches.batch(step))
        loss = self.strategy.mean_loss(self.model, tokens, targets)
        loss.backward()
        clip(self.model, self.strategy.gradient_norm(self.model), self.config.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if not math.isfinite(loss.item()):
            raise RuntimeError(f"the loss is {loss.item()} at step {step}: try a lower --lr than {self.config.lr}")
        waited_now, calls_now = communicated()
        seconds = time.perf_counter() - start
        journal.stepped(loss.item(), self.config.batch_size * self.config.block_size, seconds, waited_now - waited)
        return dict(calls_now - calls)

    @torch.no_grad()
    def evaluate(self):
        """Mean loss over the whole validation text."""
        total, count = 0.0, 0
        for tokens, targets in self.batches.validation_batches():
            total += self.strategy.mean_loss(self.model, tokens, targets).item() * targets.numel()
            count += targets.numel()
        return total / count

    def save(self, step):
        path = self.folder / "checkpoint.pt"
        return checkpoint.save(
            path, self.config, self.text, step, self.strategy, self.model, self.optimizer, self.chief
        )

    def say_what_runs(self):
        text, config = self.text.record(), self.config
        print(
            f"text {text['name']}: {text['characters']:,} characters, {text['symbols']} symbols, "
            f"from {text['source']}\n"
            f"model: {config.layers} layers, {config.heads} heads, {config.channels} channels, "
            f"context {config.block_size}, seed {config.seed}\n"
            f"{config.parallel}: {len(self.placement)} rank(s) of {torch.get_num_threads()} thread(s)",
            flush=True,
        )
        if self.first_step:
            print(f"resumed from {config.resume} at step {self.first_step}", flush=True)

    def finish(self, journal, saved, collectives, train_loss, val_loss):
        """The sample and the summary, by rank 0.

        The sample is of the whole model, put together from all ranks: what the checkpoint holds is what speaks, and it
        needs no 2 L + 1 collectives for every character.
        """
        whole = build(self.config, len(self.text.symbols))
        whole.load_state_dict(saved["model"])
        start = self.batches.encode("\n" if "\n" in self.text.symbols else self.text.content[0])
        sample = self.batches.decode(generate(whole, start, self.config.sample_length, self.config.seed)[1:])
        journal.summarise(
            config=dataclasses.asdict(self.config),
            text=self.text.record(),
            torch=torch.__version__,
            parameters=sum(parameter.numel() for parameter in whole.parameters()),
            world_size=len(self.placement),
            threads=torch.get_num_threads(),
            placement=self.placement,
            steps=self.config.steps,
            train_loss=train_loss,
            val_loss=val_loss,
            **journal.figures(),
            collectives_per_step=collectives,
            sample=sample,
        )
        print(f"--- sample ---\n{sample}\n--- end of sample ---\nwritten to {self.folder}", flush=True)


def make_optimizer(model, config):
    """AdamW that decays matrices only."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, config.beta2), foreach=True)


def learning_rate(step, config):
    """Linear warm-up, then half a cosine from `lr` down to a tenth of it at the last step."""
    if step <= config.warmup:
        return config.lr * step / config.warmup
    progress = (step - config.warmup) / max(1, config.steps - config.warmup)
    return config.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


@torch.no_grad()
def clip(model, norm, limit):
    """Scale the gradient down to the norm `limit` if it is above."""
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([parameter.grad for parameter in model.parameters()], scale)


if __name__ == "__main__":
    main()
