"""The losses of finished runs, side by side, and whether they are those of the first.

python3 -m lessons.losses none ddp ddp/unsynced
"""

import json
import sys

from lessons.finished import comparable, find

SAME = 1e-4  # sums in another order part by less in so few steps; the mistakes by more
ROWS = 6


def main():
    if len(sys.argv) < 3:
        sys.exit("name two runs or more: python3 -m lessons.losses none ddp")
    runs = find(sys.argv[1:])
    comparable(runs)
    losses = [{line["step"]: line["train_loss"] for line in lines(folder)} for _, folder, _ in runs]
    steps = list(losses[0])
    every = -(-len(steps) // ROWS)
    print("step" + "".join(f"{name:>{width(name)}}" for name, *_ in runs))
    for number, step in enumerate(steps):
        if number < 2 or number % every == every - 1:
            cells = (f"{of[step]:{width(name)}.4f}" for (name, *_), of in zip(runs, losses, strict=True))
            print(f"{step:>4}" + "".join(cells))
    first = runs[0][0]
    for (name, *_), of in zip(runs[1:], losses[1:], strict=True):
        apart = {step: abs(of[step] - losses[0][step]) for step in steps}
        wrong = [step for step in steps if not apart[step] <= SAME]
        if wrong:
            print(f"{name} is NOT {first}: from step {wrong[0]} on, at most {max(apart.values()):.4f} apart")
        else:
            most = max(apart.values())
            print(f"{name} is {first}: " + (f"at most {most:.7f} apart" if most else "equal to the bit"))


def lines(folder):
    return map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())


def width(name):
    return max(10, len(name) + 3)


if __name__ == "__main__":
    main()
