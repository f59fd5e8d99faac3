"""Which node has which task of a step."""

import re
from collections.abc import Sequence


def parse_layout(text: str) -> dict[int, str]:
    """Rank to node name, from ``sattach --layout JOB.STEP``, which knows no JSON. Empty if there is no layout in it.

    https://slurm.schedmd.com/sattach.html
    """
    layout: dict[int, str] = {}
    for node, tasks in re.findall(r"Node \d+ \((\S+)\), \d+ task\(s\): ([\d ,-]+)", text):
        for span in tasks.replace(",", " ").split():
            first, _, last = span.partition("-")
            layout |= dict.fromkeys(range(int(first), int(last or first) + 1), node)
    return layout


def spread(nodes: Sequence[str], tasks: int, distribution: str) -> list[str] | None:
    """The node of each task, as srun spreads ``tasks`` over ``nodes``; None if the distribution does not say it.

    All nodes get the same number of tasks, or the first nodes one more. A block distribution fills one node after the
    other; a cyclic one deals the tasks out in turn. https://slurm.schedmd.com/srun.html#OPT_distribution

    Args:
        distribution: as accounting names it: Block or Cyclic, or, with the level below nodes, BCyclic, CBlock.
    """
    if not nodes:
        return None
    if distribution.startswith("C"):
        return [nodes[task % len(nodes)] for task in range(tasks)]
    if distribution.startswith("B"):
        each, more = divmod(tasks, len(nodes))
        return [node for i, node in enumerate(nodes) for _ in range(each + (i < more))]
    return None
