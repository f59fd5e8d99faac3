"""Which examples does a rank see in which epoch? What torch's DistributedSampler says, for few enough to read.

python3 -m lessons.epochs
python3 -m lessons.epochs --examples 13
python3 -m lessons.epochs --forget
"""

import argparse

from torch.utils.data import DistributedSampler

RANKS, EPOCHS = 4, 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--examples", type=int, default=12)
    parser.add_argument("--forget", action="store_true", help="do not call set_epoch")
    options = parser.parse_args()
    samplers = [DistributedSampler(range(options.examples), num_replicas=RANKS, rank=rank) for rank in range(RANKS)]
    before = None
    for epoch in range(EPOCHS):
        if not options.forget:
            for sampler in samplers:
                sampler.set_epoch(epoch)  # it shuffles with the seed plus the epoch
        ranks = [list(sampler) for sampler in samplers]
        shown = "".join(f"   rank {rank}: " + " ".join(f"{each:2}" for each in mine) for rank, mine in enumerate(ranks))
        print(f"epoch {epoch}{shown}")
        together = [each for mine in ranks for each in mine]
        twice = len(together) - len(set(together))
        order = "" if before is None else f", {'the' if ranks == before else 'not the'} order of the epoch before"
        print(f"         {len(set(together))} of {options.examples} examples, {twice} of them twice{order}")
        before = ranks


if __name__ == "__main__":
    main()
