"""Who may start a kept container: scripts/container-kept.c, compiled with a main of its own."""

import fcntl
import os
import subprocess

import pytest
from made import compiled, wait_for

MAIN = """
#include "container.h"
#include <stdarg.h>
char *asked[OPTIONS], *report, failure[1024];
struct user user;
int user_namespace = -1, mount_namespace = -1;
int hold(int pid, const char *what) { (void) pid, (void) what; return -1; }
int is_cancelled(void) { return 0; }
char *print(const char *format, ...)
{
	char *text;
	va_list values;
	va_start(values, format);
	if (vasprintf(&text, format, values) < 0) abort();
	va_end(values);
	return text;
}
int fail(const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vprintf(format, values);
	va_end(values);
	return -1;
}
int main(int count, char **words)
{
	if (count < 2) return 2;
	asked[NAME] = "kept";
	kept = words[1];
	puts(lock_or_join() >= 0 ? "start" : "");
	fflush(stdout);
	getchar();
	return 0;
}
"""


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("kept"), MAIN, "container-kept.c")


@pytest.fixture
def step(program):
    """Start it as a step of this kept container would; ended after the test."""
    started = []

    def step(folder):
        words = [program, str(folder)]
        started.append(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield step
    for each in started:
        each.kill()
        each.communicate(timeout=60)


def locked_by_another(path):
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_step_that_waits_while_the_container_is_removed_makes_a_new_one(step, tmp_path):
    folder = tmp_path / "containers" / "kept"
    folder.mkdir(parents=True)
    with (folder / "running").open("w") as removing:
        fcntl.flock(removing, fcntl.LOCK_EX)
        waiting = step(folder)
        wait_for(lambda: opened(waiting, folder / "running"))
        folder.rename(tmp_path / "aside")
    assert waiting.stdout.readline() == "start\n"
    assert locked_by_another(folder / "running")
    assert not locked_by_another(tmp_path / "aside" / "running")


def test_a_step_makes_the_folders_of_a_new_container(step, tmp_path):
    folder = tmp_path / "containers" / "node" / "kept"
    assert step(folder).stdout.readline() == "start\n"
    assert locked_by_another(folder / "running")


def test_a_store_that_is_not_there_is_said(step, tmp_path):
    (tmp_path / "file").touch()
    assert step(tmp_path / "file" / "kept").stdout.readline() == f"{tmp_path}/file/kept: Not a directory\n"


def opened(process, path):
    folder = f"/proc/{process.pid}/fd"
    return any(os.path.realpath(f"{folder}/{name}") == str(path) for name in os.listdir(folder))
