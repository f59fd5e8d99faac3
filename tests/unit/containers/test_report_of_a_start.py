"""What slurmstepd reads of a container's start: scripts/container-run.c, with a main of its own."""

import subprocess

from made import compiled

# A child that reports and has ended before anybody reads; what it started keeps the other end open.
MAIN = """
#include "container-run.c"
char *asked[OPTIONS], *kept;
struct user user;
int main(void)
{
	int ends[2], child;
	char text[4];
	siginfo_t ended;
	pid_t pid;

	if (pipe(ends)) return 2;
	pid = fork();
	if (!pid) _exit(write(ends[1], "told", 4) != 4);
	child = syscall(SYS_pidfd_open, pid, 0);
	if (waitid(P_PID, pid, &ended, WEXITED | WNOWAIT) || ended.si_status) return 2;
	printf("%d ", is_readable(ends[0], pid, child));
	if (read(ends[0], text, 4) != 4) return 2;
	printf("%d\\n", is_readable(ends[0], pid, child));
	return 0;
}
"""


def test_a_report_is_read_although_who_wrote_it_has_ended_and_then_no_more_is_waited_for(tmp_path):
    program = compiled(tmp_path, MAIN)
    assert subprocess.run([program], check=True, capture_output=True, timeout=60).stdout == b"1 0\n"
