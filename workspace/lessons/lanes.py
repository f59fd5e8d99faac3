"""One step of a finished run, a lane for each rank: what it did when.

python3 -m lessons.lanes ddp tp
"""

import json
import sys

from lessons.finished import find

SIGNS = {"forward": "F", "backward": "B", "optimizer": "O", "compute": "C", "transfer": "=", "idle": "-"}
WIDTH = 84


def main():
    for name, folder, _ in find(sys.argv[1:] or sys.exit("name a run: python3 -m lessons.lanes tp")):
        if not (folder / "timeline.json").exists():
            sys.exit(f"{name} recorded no step: run it with --profile-step 11")
        timeline = json.loads((folder / "timeline.json").read_text())
        ranks = timeline["ranks"]
        first = min(rank["spans"][0][1] for rank in ranks)
        last = max(rank["spans"][-1][2] for rank in ranks)
        print(f"{name}: step {timeline['step']}, {1000 * (last - first):.1f} ms")
        for rank in ranks:
            print(f"rank {rank['rank']} [{lane(rank['spans'], first, (last - first) / WIDTH)}]")
        print(", ".join(f"rank {rank['rank']}: {rank['collectives']} collectives" for rank in ranks))
    print("F forward  B backward  O optimizer  = moving data  - waiting for another rank")


def lane(spans, first, cell):
    """A sign for each cell of time, that of what took most of it."""
    signs = []
    for number in range(WIDTH):
        start, stop = first + number * cell, first + (number + 1) * cell
        spent = {}
        for kind, a, b in spans:
            spent[kind] = spent.get(kind, 0) + max(0, min(b, stop) - max(a, start))
        signs.append(SIGNS[max(spent, key=spent.get)] if any(spent.values()) else " ")
    return "".join(signs)


if __name__ == "__main__":
    main()
