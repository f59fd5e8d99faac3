"""Which part of which matrix each rank of a finished run held.

python3 -m lessons.shards tp
"""

import sys

from lessons.finished import find


def main():
    for name, _, summary in find(sys.argv[1:] or sys.exit("name a run: python3 -m lessons.shards tp")):
        ranks = summary["shards"]
        shapes = {matrix: part["shape"] for rank in ranks for matrix, part in rank.items() if len(part["shape"]) == 2}
        heads = "".join(f"rank {rank}".ljust(18) for rank in range(len(ranks)))
        print(f"{name + ':':<32}{'shape':<12}{heads}".rstrip())
        for matrix, shape in shapes.items():
            cells = "".join(held(rank.get(matrix)).ljust(18) for rank in ranks)
            print(f"{matrix:<32}{'x'.join(map(str, shape)):<12}{cells}".rstrip())


def held(part):
    """In words: all, rows 0-32, columns 0-63, or - for nothing."""
    if part is None:
        return "-"
    if part["dimension"] is None:
        return "all"
    return f"{('rows', 'columns')[part['dimension']]} {part['start']}-{part['stop'] - 1}"


if __name__ == "__main__":
    main()
