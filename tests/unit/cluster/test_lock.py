"""One command at a time: who waits, for whom, and until when."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slurmbed.cluster import lock as module
from slurmbed.cluster.lock import lock
from slurmbed.errors import CommandError, SlurmbedError, WaitTimeout
from slurmbed.process import run
from slurmbed.wait import Pending, wait_until


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    return tmp_path


def test_the_second_waits_and_hears_for_whom():
    heard, order, inside = [], [], threading.Event()

    def second() -> None:
        inside.wait(10)
        with lock("AB:CD", "here", "clean", heard.append):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with lock("AB:CD", "here", "up --name c", print):
        inside.set()
        while not heard:
            thread.join(0.01)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert len(heard) == 1
    assert heard[0].startswith("waiting for slurmbed up --name c of ")
    assert f"process {os.getpid()}, since " in heard[0]


def test_other_names_and_other_engines_do_not_meet():
    with lock("A", "here", "up", print), lock("A", "there", "up", print), lock("B", "here", "up", print):
        pass


def test_a_wait_that_takes_too_long_names_the_holder(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 0)
    held, second = lock("A", "here", "up", print), lock("A", "here", "clean", lambda _: None)
    with held, pytest.raises(WaitTimeout, match=r"the lock of here: .*held by slurmbed up of"), second:
        pytest.fail("two hold it")


def test_the_commands_of_one_that_was_killed_hold_it_until_they_end(folder):
    program = (
        "import sys; from pathlib import Path; from slurmbed.cluster import lock; from slurmbed.process import run\n"
        f"lock.FOLDER = Path({str(folder)!r})\n"
        "with lock.lock('A', 'here', 'up', print):\n"
        "    run(['sh', '-c', 'echo begun >&2; read line'], timeout=60, stdin=sys.stdin.buffer, capture=False)\n"
    )
    options = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-c", program], **options)
    assert first.stderr.readline() == "begun\n"
    first.kill()
    first.wait(10)
    heard: list[str] = []

    def say(text: str) -> None:
        heard.append(text)
        first.stdin.close()  # and so the command that is left ends

    with lock("A", "here", "clean", say):
        assert f"process {first.pid}" in heard[0]
    first.stderr.close()


def test_what_anybody_may_write_into_the_file_does_no_harm(folder):
    with lock("A", "here", "up", print):
        (path,) = folder.iterdir()
        path.write_bytes(b"\x1b[2Jyou\nare \xff" + b"x" * 1000)
        descriptor = os.open(path, os.O_RDONLY)
        assert module.read_holder(descriptor).startswith("[2Jyouare")
        assert len(module.read_holder(descriptor)) < 200
        os.close(descriptor)
    assert path.stat().st_mode & 0o777 == 0o666


def test_a_link_in_its_place_is_not_followed(folder, tmp_path):
    (tmp_path / "precious").write_text("data")
    (folder / "slurmbed-A-here.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(SlurmbedError, match=r"cannot be opened: .*symbolic links"), lock("A", "here", "up", print):
        pass
    assert (tmp_path / "precious").read_text() == "data"


def test_a_command_that_runs_out_of_time_ends_with_all_that_it_started(tmp_path):
    script = f"sh -c 'echo $$ >{tmp_path}/pid; exec sleep 60' & wait"
    with pytest.raises(CommandError, match="timed out after 1 s"):
        run(["sh", "-c", script], timeout=1)
    status = Path("/proc", (tmp_path / "pid").read_text().strip(), "status")

    def ended() -> None:
        if status.exists() and "State:\tZ" not in status.read_text():  # Z: ended, if perhaps not collected
            raise Pending("it lives")

    wait_until(ended, what="the command's command has ended", timeout=10)
