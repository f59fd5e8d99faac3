"""What is asked of Slurm before a cluster stops, with a Slurm that answers from a table."""

from functools import partial

import pytest

from slurmbed.cluster import farewell
from slurmbed.cluster.farewell import say_goodbye
from slurmbed.process import Result
from slurmbed.wait import wait_until


class Slurm:
    """Two partitions, one of them down already; what has jobs on nodes is listed, look by look."""

    def __init__(self, *looks: str, queue: str = "7"):
        self.looks, self.queue, self.changes = list(looks), queue, []

    def __call__(self, argv) -> Result:
        words = list(argv[2:])  # without timeout and its seconds
        if words[0] == "sinfo":
            return self.answer(argv, "main up\nold down\n")
        if words[0] == "squeue":
            return self.answer(argv, self.looks.pop(0) if "--states" in " ".join(words) else self.queue)
        self.changes.append(" ".join(words))
        return self.answer(argv, "")

    def answer(self, argv, text: str) -> Result:
        return Result(argv, 0, text, "")


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(farewell, "wait_until", partial(wait_until, sleep=lambda _: None))


DOWN, UP = (f"scontrol update PartitionName=main State={state}" for state in ("DOWN", "UP"))


def test_jobs_are_queued_again_once_nothing_starts_and_the_wait_is_for_the_last_to_leave():
    slurm = Slurm("7 RUNNING\n8_3 CONFIGURING\n9+0 RUNNING\n9+1 RUNNING\n6 COMPLETING\n", "7 COMPLETING\n", "")
    say_goodbye(slurm, print)
    again = "scontrol update JobId=7,8_3,9 StartTime=now"
    assert slurm.changes == [DOWN, "scontrol requeue Incomplete 7,8_3,9", again]


def test_what_is_never_queued_again_is_ended():
    slurm = Slurm(*["7 RUNNING\n"] * 4, "7 COMPLETING\n", "")
    say_goodbye(slurm, print)
    assert slurm.changes[1:-1] == ["scontrol requeue Incomplete 7"] * 3 + ["scancel 7"]


def test_without_jobs_nothing_is_done():
    slurm = Slurm(queue="")
    say_goodbye(slurm, print)
    assert slurm.changes == []


def test_an_interrupted_one_leaves_the_partitions_as_they_were():
    slurm = Slurm()  # the first look fails
    with pytest.raises(IndexError):
        say_goodbye(slurm, print)
    assert slurm.changes == [DOWN, UP]


def test_a_slurmctld_that_does_not_answer_keeps_nobody_from_stopping():
    said: list[str] = []
    say_goodbye(lambda argv: Result(argv, 124, "", "no answer"), said.append)
    assert "could not requeue the jobs" in said[0]
    assert "no answer" in said[0]
