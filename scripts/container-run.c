/*
 * Runs container-start for container.c, as the user, and takes hold of the namespaces that it makes.
 */
#include "container.h"
#include <ctype.h>
#include <grp.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

int user_namespace = -1, mount_namespace = -1;
char *report, failure[1024];

static const char *const words_of[OPTIONS] = {
	"image", "mounts", "workdir", "name", "save", "env", "mount-home", "remap-root", "entrypoint", "readonly"
};

int fail(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(failure, sizeof(failure), format, values);
	va_end(values);
	return -1;
}

char *print(const char *format, ...)
{
	char *text;
	va_list values;

	va_start(values, format);
	if (vasprintf(&text, format, values) < 0)
		abort();
	va_end(values);
	return text;
}

/* slurmstepd has lent itself the user's effective ids; this child becomes the user for good. */
static void become_user(void)
{
	if (seteuid(0) || setgroups(user.count, user.groups) || setresgid(user.gid, user.gid, user.gid) ||
	    setresuid(user.uid, user.uid, user.uid) || prctl(PR_SET_PDEATHSIG, SIGKILL))
		_exit(126);
}

/* Its descriptors: 2 takes complaints, 3 the report, and 4 ends when the namespaces are taken hold of. */
static pid_t start(char **words, int complaints, int report_end, int hold_end)
{
	int given[5] = { -1, complaints, complaints, report_end, hold_end }, i;
	pid_t pid = fork();

	if (pid)
		return pid;
	become_user();
	given[0] = open("/dev/null", O_RDONLY);
	for (i = 0; i < 5; i++)
		given[i] = fcntl(given[i], F_DUPFD_CLOEXEC, 16); /* out of the way of 0 to 4 */
	for (i = 0; i < 5; i++)
		dup2(given[i], i);
	close_range(5, ~0U, CLOSE_RANGE_CLOEXEC);
	execve(words[0], words, user.environment);
	_exit(127);
}

/* Slurm sends no signal to a step that has no tasks yet. So whoever waits here asks for its job every other second: by
 * squeue, as slurmstepd itself may not while it has the user's ids. No answer is none. */
int is_cancelled(void)
{
	static time_t asked_at;
	char text[32] = "", *words[] = { SQUEUE, "--noheader", "--format=%T", "--states=all", print("--jobs=%u", user.job), NULL };
	int answer;
	pid_t pid;

	if (asked_at && time(NULL) >= asked_at + 2 && (answer = memfd_create("answer", MFD_CLOEXEC)) >= 0) {
		pid = start(words, answer, answer, answer);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		if (pread(answer, text, sizeof(text) - 1, 0) < 0)
			*text = 0;
		close(answer);
		asked_at = time(NULL);
	}
	if (!asked_at)
		asked_at = time(NULL);
	free(words[4]);
	text[strcspn(text, "\n")] = 0;
	return isupper((unsigned char) *text) && strcmp(text, "RUNNING") && strcmp(text, "CONFIGURING") &&
	       strcmp(text, "SUSPENDED") && strcmp(text, "RESIZING") && strcmp(text, "SIGNALING") && strcmp(text, "STOPPED");
}

/* The last line of what a program complained of is the failure. */
static int failed(int complaints, int status)
{
	char text[4096] = "", *line;
	off_t size = lseek(complaints, 0, SEEK_END);
	ssize_t got = pread(complaints, text, sizeof(text) - 1, size < (off_t) sizeof(text) ? 0 : size - sizeof(text) + 1);

	while (got > 0 && isspace((unsigned char) text[got - 1]))
		text[--got] = 0;
	line = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
	if (*line)
		return fail("%s", line);
	return fail("the container did not start: %s %d", WIFSIGNALED(status) ? "signal" : "exit status",
		    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* The report up to the empty text that ends it; NULL if it ended before. The image's entrypoint may have written it. */
static char *read_report(int end, pid_t pid)
{
	struct pollfd readable = { end, POLLIN, 0 };
	char *text = malloc(LONGEST);
	size_t size = 0;
	ssize_t got;

	while (text && size < LONGEST) {
		if (poll(&readable, 1, 1000) <= 0) {
			if (is_cancelled())
				kill(pid, SIGKILL);
			continue;
		}
		got = read(end, text + size, LONGEST - size);
		if (got <= 0)
			break;
		size += got;
		if (size > 2 && !text[size - 1] && !text[size - 2])
			return text;
	}
	free(text);
	return NULL;
}

/* Opens a namespace that a process is in, or that another slurmstepd has as a descriptor. Root may; and as the number
 * comes from the user, nothing but a namespace stays open. The kernel lets a task enter those of its own user only. */
int hold(int pid, const char *what)
{
	char *path = print("/proc/%d/%s", pid, what);
	int file, own = geteuid();
	struct statfs about;

	if (seteuid(0))
		return -1;
	file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (seteuid(own))
		abort();
	free(path);
	if (file >= 0 && (fstatfs(file, &about) || about.f_type != NSFS_MAGIC)) {
		close(file);
		return -1;
	}
	return file;
}

/* Leaves of the report's environment what the image and its entrypoint say, and nothing that has its value from the job:
 * tasks have other values, like SLURM_PROCID, which Slurm sets later, and so has a step that joins. */
static void drop_what_the_job_says(void)
{
	char *entry = report + strlen(report) + 1, *end = entry, **own;
	size_t size;

	for (; *entry; entry += size) {
		size = strlen(entry) + 1;
		for (own = user.environment; *own && strcmp(*own, entry); own++)
			;
		if (!*own && strchr(entry, '=')) {
			memmove(end, entry, size);
			end += size;
		}
	}
	*end = 0;
}

/* Runs container-start. For a container what it reports begins with the number of its first process. */
int run(int is_container, const char *word, const char *text)
{
	int complaints = memfd_create("complaints", MFD_CLOEXEC), taken[2], held[2], status = 0, option, count = 0;
	char *words[OPTIONS + 4] = { START };
	pid_t pid;

	words[++count] = print("%s=%s", word, text);
	for (option = 0; option < OPTIONS; option++)
		if (asked[option])
			words[++count] = print("%s=%s", words_of[option], asked[option]);
	if (kept)
		words[++count] = print("kept=%s", kept);
	if (complaints < 0 || pipe2(taken, O_CLOEXEC) || pipe2(held, O_CLOEXEC))
		return fail("no pipe: %s", strerror(errno));
	pid = start(words, complaints, taken[1], held[0]);
	close(taken[1]);
	close(held[0]);
	if (is_container && (report = read_report(taken[0], pid))) {
		user_namespace = hold(atoi(report), "ns/user");
		mount_namespace = hold(atoi(report), "ns/mnt");
		report += strlen(report) + 1;
		drop_what_the_job_says();
	}
	close(taken[0]);
	close(held[1]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (status || (is_container && !report))
		failed(complaints, status);
	close(complaints);
	while (count)
		free(words[count--]);
	return *failure ? -1 : 0;
}
