"""Lesson 7: the loss of logits that no rank has whole, and the three all-reduces that it takes.

lessons/follow jobs/lesson.sbatch sharded_loss
lessons/follow jobs/lesson.sbatch sharded_loss --break unmasked-padding
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

from parallel import breaks, tp_layers
from ranks import communication, environment, rendezvous

B, T, C, V = 16, 64, 128, 65  # batch, time, channels, symbols: V does not divide by 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--break", dest="break_", default="", help="a mistake of tp: a name of breaks.py")
    try:
        name = parser.parse_args().break_
        if name:
            breaks.make(name, "tp")
        env = environment.read()
    except ValueError as error:
        sys.exit(f"sharded_loss: error: {error}")
    with rendezvous.process_group(env, "gloo", 120):
        torch.manual_seed(0)  # all ranks make the same whole layer, and then cut it
        whole, x, targets = nn.Linear(C, V, bias=False), torch.randn(B, T, C), torch.randint(V, (B, T))
        head = tp_layers.VocabParallelHead(whole)
        seen = []

        def watched(tensor, *arguments, **options):
            seen.append(tuple(tensor.shape))
            return communication.all_reduce(tensor, *arguments, **options)

        tp_layers.all_reduce = watched
        logits = head(x)  # [B, T, ceil(V/R)]
        loss = tp_layers.VocabParallelCrossEntropy.apply(logits, targets, head.first, None).mean()
        expected = F.cross_entropy(whole(x).flatten(0, 1), targets.flatten())
        ranks = rendezvous.gather((tuple(logits.shape), head.first, seen))
        if env.rank == 0:
            print(f"logits whole          {(B, T, V)}   on no rank")
            for rank, (shape, first, _) in enumerate(ranks):
                print(f"logits on rank {rank}      {shape}   symbols from {first}")
            for what, shape in zip(("greatest logit", "logit of target", "sum of exp"), seen, strict=True):
                print(f"all-reduce            {shape}       {what}")
            same = "the same" if torch.isclose(loss, expected, rtol=1e-5) else "NOT the same"
            print(f"loss                  {loss:.5f}, of whole logits {expected:.5f}: {same}")


if __name__ == "__main__":
    main()
