"""Record one training step on every rank in timeline.json: when a rank computed, and when it waited for others.

torch.profiler records the step. Each rank has a lane: the spans of its main thread, or of its GPU.

    forward, backward, optimizer   computing, and the Python around it (on a GPU: compute)
    transfer                       there is nothing to compute until a collective ends
    idle                           the same, while another rank has not begun that collective

`beside` lists the collectives that overlap with computing. A collective is found by the mark that communication.py
sets, or by what the backend records: `gloo:all_reduce` and the like in gloo's threads, or NCCL's kernels. The k-th
collective of a kind matches the k-th on every other rank of the group. A receive matches the last send that began
while it waited.

Spans are in seconds. Ranks on one machine share its clock, also in containers. Otherwise each rank counts from the end
of a barrier before the step, which is exact to about the time of one message. Profiling adds some microseconds to each
operation. So this step is slower than others, and the journal leaves it out of the throughput.
"""

import json
import socket
import time
from bisect import bisect_left
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, record_function

from ranks.rendezvous import gather

MARK, SENT = "collective ", "begun "  # + kind + ranks; set by communication.py: waited for at once, or later
CALLS = ("c10d::", "_c10d_functional::")  # start a collective, or wait for one
BACKENDS = ("gloo:", "nccl")
POINT_TO_POINT = SEND, RECEIVE = ("gloo:send", "gloo:recv")
LATE = 5e-4  # seconds, about: gloo notes the end of a transfer after it has woken who waits for it
SHORT = 1e-4  # seconds: a shorter pause is between two operations
DIGITS = 7  # of the seconds in timeline.json: profilers measure microseconds
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def profile(step, number, folder):
    """Run `step()`, by all ranks, and let rank 0 write `folder`/timeline.json. Returns what `step` returned."""
    cuda = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        dist.barrier()
        began = time.time()
        with record_function("one step"):
            result = step()
            if cuda:
                torch.cuda.synchronize()
        dist.barrier()  # meanwhile gloo notes the end of the last transfer, after it has woken who waited for it
    machine = BOOT_ID.read_text() if BOOT_ID.exists() else socket.gethostname()
    mine = {"machine": machine, "began": began, "host": socket.gethostname(), **read(profiler.events())}
    ranks = gather(mine)
    if dist.get_rank() == 0:
        (folder / "timeline.json").write_text(json.dumps({"step": number, **assemble(ranks)}) + "\n")
    return result


def read(events):
    """A rank's lane and collectives from the profiler's events; seconds since the step began.

    {"stop": its end, "lane": [kind, start, stop] without gaps, where "wait" is not yet told apart, "collectives":
    [operation, ranks or None for all, start, stop] in order}
    """
    step = next(event for event in events if event.name == "one step")
    zero = step.time_range.start

    def span(event):
        return (event.time_range.start - zero) / 1e6, (min(event.time_range.end, step.time_range.end) - zero) / 1e6

    stop = span(step)[1]
    events = [event for event in events if 0 <= span(event)[0] < stop and event is not step]
    sent = sorted((span(e)[0], span(e)[1], e) for e in events if e.name.startswith(BACKENDS))
    main = [e for e in events if e.thread == step.thread and not e.is_async and e.device_type.name == "CPU"]
    kernels = [e for e in events if e.device_type.name == "CUDA" and not e.is_user_annotation]
    calls = [(*span(e), plain(e.name)) for e in main if e.name.startswith(CALLS)]
    marks = sorted((*span(e), e.name.removeprefix(MARK)) for e in main if e.name.startswith(MARK) and not kernels)
    collectives = marked(marks, calls, sent)
    groups = sorted((span(e)[0], ranks_of(e.name)) for e in main if e.name.startswith(SENT))
    for number, (first, last, event) in enumerate(sent):
        collectives.append([event.name, groups[number][1] if number < len(groups) else None, first, last])
    collectives.sort(key=lambda each: each[2])
    if kernels:
        busy = [(*span(e), "compute") for e in kernels if not e.name.startswith(BACKENDS)]
    else:
        leaves = [e for e in main if not e.cpu_children and not e.name.startswith((*CALLS, MARK, SENT))]
        ended = max((span(e)[1] for e in leaves if part(e) == "backward"), default=0)
        busy = [(*span(e), part(e) or ("forward" if span(e)[0] < ended else "optimizer")) for e in leaves]
    # gloo notes the end of a send when somebody waits for it, not when it has left.
    flights = [(first, last) for first, last, event in sent if event.name != SEND]
    found = lane(busy, [mark[:2] for mark in marks], flights, [call[:2] for call in calls], stop)
    return {"stop": stop, "lane": found, "collectives": collectives}


def marked(marks, calls, sent):
    """[operation, ranks, start, stop] of each mark (start, stop, name), in order.

    If the backend carried it, the backend has recorded the same collective, which is taken out of `sent`.
    """
    collectives = []
    for first, last, name in marks:
        called = [call for start, _, call in calls if first <= start < last]
        inside = (each for each in reversed(sent) if first <= each[0] and each[1] <= last)
        own = next((each for each in inside if any(call.startswith(plain(each[2].name)) for call in called)), None)
        operation = name.rpartition(" ")[0]
        if own:
            sent.remove(own)
            operation = own[2].name if own[2].name in POINT_TO_POINT else operation
        collectives.append([operation, ranks_of(name), first, last])
    return collectives


def plain(name):
    """allreduce, of c10d::allreduce_ and of gloo:all_reduce."""
    return name.rpartition(":")[2].replace("_", "")


def ranks_of(name):
    """[0, 1] of "forward 0,1"."""
    return [int(rank) for rank in name.split()[-1].split(",")]


def part(event):
    """Which part of a step an operation belongs to, if what called it tells."""
    while event:
        if event.name.startswith("autograd::engine::evaluate_function"):
            return "backward"
        if event.name.startswith("Optimizer.step"):
            return "optimizer"
        event = event.cpu_parent
    return ""


def lane(busy, marks, flights, calls, stop):
    """[kind, start, stop] from 0 to `stop`, without gaps: computing, and "wait".

    `busy` are operations (start, stop, kind). A rank waits in `marks`, and in a pause of `busy`, from the first of the
    `calls` and `flights` there until the last of the `flights` that ends there. A pause in which none ends is Python's,
    or the operating system's.
    """
    busy = [each for each in sorted(busy) if not any(first <= each[0] < last for first, last in marks)]
    taken = merged([each[:2] for each in busy] + marks)
    blocked = []
    for a, b in zip([0.0, *(last for _, last in taken)], [*(first for first, _ in taken), stop], strict=True):
        ends = [end for _, end in flights if a < end <= b + LATE]
        if ends and b - a > SHORT:
            begun = min(start for start, end in flights + calls if end > a)
            blocked.append((max(a, begun), min(b, max(ends))))
    waits = merged(marks + blocked)
    spans, now = [], 0.0
    for start, end, kind in sorted([*busy, *((*wait, "wait") for wait in waits)]):
        if kind == "wait":
            if start > now:  # Python after the last operation
                add(spans, spans[-1][0] if spans and spans[-1][0] != "wait" else "forward", now, start)
            add(spans, "wait", max(start, now), end)
        else:
            add(spans, kind, now, end)
        now = max(now, end)
    add(spans, next((span[0] for span in reversed(spans) if span[0] != "wait"), "forward"), now, stop)
    return spans


def add(spans, kind, start, stop):
    """Append a span, or make the last one longer."""
    if stop <= start:
        return
    if spans and spans[-1][0] == kind:
        spans[-1][2] = stop
    else:
        spans.append([kind, start, stop])


def assemble(ranks):
    """What timeline.json says, from what `read` found on every rank."""
    shared = len({rank["machine"] for rank in ranks}) == 1
    origin = min(rank["began"] for rank in ranks)
    shifts = [rank["began"] - origin if shared else 0.0 for rank in ranks]
    # Rounded before anything is cut, so that no span is left that is shorter than what is written.
    moved = [
        [(op, group, round(a + shift, DIGITS), round(b + shift, DIGITS)) for op, group, a, b in rank["collectives"]]
        for rank, shift in zip(ranks, shifts, strict=True)
    ]
    lanes = []
    for number, (rank, shift, begun) in enumerate(zip(ranks, shifts, all_began(moved), strict=True)):
        known = [each for each in zip(begun, moved[number], strict=True) if each[1][0] != SEND]
        transfers = merged([(start, last) for start, (_, _, _, last) in known])
        late = merged([(first, start) for start, (_, _, first, _) in known])
        idle = without(late, transfers)
        spans = []
        for kind, a, b in rank["lane"]:
            start, stop = round(a + shift, DIGITS), round(b + shift, DIGITS)
            if kind != "wait":
                add(spans, kind, start, stop)
                continue
            pieces = [(*piece, "idle") for piece in common([(start, stop)], idle)]
            pieces += [(*piece, "transfer") for piece in without([(start, stop)], idle)]
            for first, last, kind_of_wait in sorted(pieces):
                add(spans, kind_of_wait, first, last)
        waits = [(a, b) for kind, a, b in spans if kind in ("transfer", "idle")]
        lanes.append(
            {
                "rank": number,
                "host": rank["host"],
                "spans": spans,
                "beside": [list(each) for each in without(transfers, merged(waits))],
                # A send is counted where it is waited for.
                "collectives": sum(operation != SEND for operation, *_ in rank["collectives"]),
            }
        )
    return {"clock": "shared" if shared else "barrier", "ranks": lanes}


def all_began(collectives):
    """When each collective of each rank had begun on all of its ranks, between its own start and end.

    `collectives` are lists by rank of (operation, ranks, start, stop). Those that cannot be matched count from their
    own start.
    """
    everyone = range(len(collectives))
    alike = {}  # (operation, group) -> rank -> its collectives of this sort, in order
    for rank, own in enumerate(collectives):
        for index, (operation, group, _, _) in enumerate(own):
            if operation not in POINT_TO_POINT:
                alike.setdefault((operation, tuple(group or everyone)), {}).setdefault(rank, []).append(index)
    began = [[first for _, _, first, _ in own] for own in collectives]
    for (_, group), members in alike.items():
        lists = [members.get(rank, []) for rank in group]
        if len({len(each) for each in lists}) == 1:
            for together in zip(*lists, strict=True):
                latest = max(collectives[rank][index][2] for rank, index in zip(group, together, strict=True))
                for rank, index in zip(group, together, strict=True):
                    began[rank][index] = min(latest, collectives[rank][index][3])
    sends = [(each[2], rank) for rank, own in enumerate(collectives) for each in own if each[0] == SEND]
    for rank, own in enumerate(collectives):
        for index, (operation, _, first, last) in enumerate(own):
            if operation == RECEIVE:
                meanwhile = [start for start, other in sends if other != rank and first < start < last]
                began[rank][index] = max(meanwhile, default=first)
    return began


def merged(intervals):
    """Intervals in order that do not overlap, with the same union."""
    found = []
    for start, stop in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif stop > start:
            found.append((start, stop))
    return found


def common(some, others):
    """Where intervals of both lists are; those of `others` do not overlap."""
    ends = [stop for _, stop in others]
    found = []
    for start, stop in some:
        for first, last in others[bisect_left(ends, start) :]:
            if first >= stop:
                break
            if min(stop, last) > max(start, first):
                found.append((max(start, first), min(stop, last)))
    return found


def without(some, others):
    """Where intervals of `some` are and none of `others`, which are in order and do not overlap."""
    outside = zip(
        [float("-inf"), *(stop for _, stop in others)], [*(start for start, _ in others), float("inf")], strict=True
    )
    return common(some, list(outside))
