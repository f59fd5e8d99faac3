"""Processes and waits: bounded, and their failures say what was tried and what came back."""

import sys
from itertools import pairwise

import pytest

from slurmbed.errors import CommandError, WaitTimeout
from slurmbed.process import last_lines, run
from slurmbed.wait import Pending, wait_until


def test_a_failure_shows_a_command_to_paste_and_the_last_lines():
    code = "import sys; [print(i) for i in range(100)]; sys.exit(3)"
    with pytest.raises(CommandError) as caught:
        run([sys.executable, "-c", code, "two words"], timeout=20).check("try again")
    message = str(caught.value)
    assert "exit status 3" in message
    assert "'two words'" in message
    assert "    99" in message
    assert "    50\n" not in message
    assert message.endswith("try again")


def test_a_command_that_hangs_is_ended_and_its_output_kept():
    code = "import time; print('so far', flush=True); time.sleep(60)"
    with pytest.raises(CommandError, match=r"timed out after 1 s(.|\n)*so far"):
        run([sys.executable, "-c", code], timeout=1)


def test_a_missing_command_is_named():
    with pytest.raises(CommandError, match="no-such-command could not be started"):
        run(["no-such-command"], timeout=5)


def test_stdin_and_environment_reach_the_command():
    code = "import os, sys; print(sys.stdin.read() + os.environ['WORD'])"
    assert run([sys.executable, "-c", code], timeout=20, stdin="a", env={"WORD": "b"}).check().stdout == "ab\n"


def test_without_stdin_a_command_reads_nothing():
    assert run([sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"], timeout=20).stdout == "''\n"


def test_last_lines_leaves_out_empty_ones():
    assert last_lines("a\n\n  \nb\n", 1) == "    b"


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_wait_returns_what_the_check_returned():
    clock, answers = Clock(), iter([Pending("no"), Pending("not yet"), "yes"])

    def check():
        answer = next(answers)
        if isinstance(answer, Pending):
            raise answer
        return answer

    assert wait_until(check, what="it", timeout=10, interval=2, clock=clock, sleep=clock.sleep) == "yes"
    assert clock.now == 4


def test_a_long_wait_looks_less_often():
    clock, looks = Clock(), []

    def check():
        looks.append(clock.now)
        raise Pending("no")

    with pytest.raises(WaitTimeout):
        wait_until(check, what="it", timeout=100, interval=0.2, clock=clock, sleep=clock.sleep)
    assert looks[:4] == pytest.approx([0, 0.2, 0.4, 0.6])
    assert looks[-1] - looks[-2] == pytest.approx(1)
    assert max(later - earlier for earlier, later in pairwise(looks)) <= 1.001


def test_a_timeout_names_the_condition_the_bound_and_the_last_status():
    clock = Clock()

    def check():
        raise Pending(f"status at {clock.now:g}")

    with pytest.raises(WaitTimeout, match=r"nodes idle: not after 3 s; last status: status at 3\nlook there"):
        wait_until(check, what="nodes idle", timeout=3, interval=1, hint="look there", clock=clock, sleep=clock.sleep)


def test_another_error_of_the_check_ends_the_wait_at_once():
    clock = Clock()

    def check():
        raise CommandError("broken")

    with pytest.raises(CommandError, match="broken"):
        wait_until(check, what="it", timeout=10, clock=clock, sleep=clock.sleep)
    assert clock.now == 0
