"""Measure a pipeline's bubble, the share of a step in which its stages wait for each other, against theory.

    sbatch jobs/bubble.sbatch
    sbatch jobs/bubble.sbatch --break all-forward-first

p stages work on M microbatches in M + p - 1 rounds, as if each microbatch took each stage as long, and passing it on
took no time: (p - 1) / (M + p - 1) of the time a stage is idle. What is measured above that is unequal stages,
transfers, and other work on the same cores.
"""

import dataclasses
import json
import sys
import time

import torch
import torch.distributed as dist

from gpt import config as configuration
from gpt.model import build
from parallel import breaks, pp
from ranks import environment, rendezvous

MICROBATCHES = (1, 2, 4, 8)
SYMBOLS = 65
WARM_UP, STEPS = 2, 20


def main():
    try:
        config = dataclasses.replace(configuration.parse(), parallel="pp", accumulate=1)
        env = environment.read()
        if env.world_size == 1:
            raise ValueError("one process is no pipeline: sbatch jobs/bubble.sbatch starts two")
        for microbatches in MICROBATCHES:
            enough = max(microbatches, env.world_size)
            pp.check(dataclasses.replace(config, microbatches=enough), env.world_size)
        if config.break_:
            breaks.make(config.break_, "pp")
    except ValueError as error:
        sys.exit(f"bubble.py: error: {error}")
    record = env.record(pp.shard_description(config, range(SYMBOLS), env.rank, env.world_size))
    environment.announce(record)
    if config.threads:
        torch.set_num_threads(config.threads)
    with rendezvous.process_group(env, config.backend, config.timeout) as device:
        placement = rendezvous.gather(record)
        rows = []
        for microbatches in MICROBATCHES:
            try:
                spans = measure(dataclasses.replace(config, microbatches=microbatches), device)
            except ValueError:
                continue  # newer torch wants as many microbatches as stages
            rows.append(row(microbatches, [rendezvous.gather(step) for step in spans]))
    if env.rank == 0:
        print(table(rows), flush=True)
        folder = config.run_path()
        folder.mkdir(parents=True, exist_ok=True)
        found = {"placement": placement, "config": dataclasses.asdict(config), "rows": rows}
        (folder / "bubble.json").write_text(json.dumps(found, indent=2) + "\n")
        print(f"written to {folder / 'bubble.json'}", flush=True)


def measure(config, device):
    """This rank's spans of each step, [(kind, microbatch, start, end)], in seconds of the wall clock.

    Nodes on one machine share a clock; others must keep theirs alike, by NTP or chrony, to draw lanes side by side.
    """
    model = pp.prepare(build(config, SYMBOLS).to(device), config)
    tokens, targets = torch.randint(SYMBOLS, (2, config.batch_size, config.block_size)).to(device)
    since = time.time() - time.perf_counter()
    steps = []
    for _ in range(WARM_UP + STEPS):
        model.zero_grad()
        dist.barrier()
        pp.backward(model, tokens, targets, targets.numel(), last=True)
        steps.append([(*key, since + start, since + end) for key, (start, end) in model.stage.spans.items()])
    return steps[WARM_UP:]


def row(microbatches, steps):
    """What one number of microbatches gave: the fastest of the steps, which other work on the cores disturbed least."""
    fastest = min(steps, key=duration)
    stages = len(fastest)
    return {
        "microbatches": microbatches,
        "theory": (stages - 1) / (microbatches + stages - 1),
        "measured": idle_share(fastest),
        "step_s": duration(fastest),
        "in_flight": max(in_flight(of_rank) for of_rank in fastest),
        "spans": fastest,
    }


def duration(spans):
    """Seconds from the first start to the last end, of the spans of all ranks."""
    return max(end for of_rank in spans for *_, end in of_rank) - min(
        start for of_rank in spans for *_, start, _ in of_rank
    )


def idle_share(spans):
    """The share of a step in which a stage does not compute, over all stages."""
    computing = sum(end - start for of_rank in spans for *_, start, end in of_rank)
    return 1 - computing / (duration(spans) * len(spans))


def in_flight(spans):
    """The most microbatches whose activations a rank kept at a time."""
    now = most = 0
    for kind, *_ in spans:
        now += 1 if kind == "forward" else -1
        most = max(most, now)
    return most


def table(rows):
    lines = ["microbatches   idle: theory   measured   ms a step   most kept at a time"]
    for each in rows:
        lines.append(
            f"{each['microbatches']:>12}   {each['theory']:>12.1%}   {each['measured']:>8.1%}   "
            f"{1000 * each['step_s']:>9.1f}   {each['in_flight']:>19}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
