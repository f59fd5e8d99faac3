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
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>

int user_namespace = -1, mount_namespace = -1, entrypoint_log = -1;
char *report, failure[1024];

static const char *const words_of[OPTIONS] = {
	"image",      "name",	    "mounts",	  "workdir",	    "save",    "env",
	"mount-home", "remap-root", "entrypoint", "entrypoint-log", "readonly"
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
static pid_t start(char **words, char **environment, int complaints, int report_end, int hold_end)
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
	execve(words[0], words, environment);
	_exit(127);
}

/* The state of the step's own job; "" if squeue does not answer. It is asked as slurmstepd itself may not while it has the
 * user's ids, and without the user's variables, which could turn what it prints. An array's last task has the array's
 * number, by which squeue lists the whole array. */
static void ask_state(char state[32])
{
	char *words[] = { SQUEUE, "--all", "--noheader", "--format=%A %T", "--states=all", print("--jobs=%u", user.job), NULL };
	char *nothing[] = { NULL };
	int answer = memfd_create("answer", MFD_CLOEXEC);
	pid_t pid = start(words, nothing, answer, answer, answer);
	FILE *lines = fdopen(answer, "r");
	unsigned job = 0;

	while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	if (lines) {
		rewind(lines);
		while (fscanf(lines, "%u %31s", &job, state) == 2 && job != user.job)
			;
		fclose(lines);
	}
	if (job != user.job)
		*state = 0;
	free(words[5]);
}

/* Slurm sends no signal to a step that has no tasks yet. So whoever waits here asks for its job every other second. */
int is_cancelled(void)
{
	static const char *const alive[] = { "", "RUNNING", "CONFIGURING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED" };
	static time_t asked_at;
	char state[32] = "";
	size_t i;

	if (asked_at && time(NULL) < asked_at + 2)
		return 0;
	if (asked_at)
		ask_state(state);
	asked_at = time(NULL);
	for (i = 0; i < sizeof(alive) / sizeof(*alive) && strcmp(state, alive[i]); i++)
		;
	return i == sizeof(alive) / sizeof(*alive);
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

/* Waits until the child has ended, or there is something to read, and ends the child if its job is cancelled. False: it
 * has ended, and all that it wrote is read. Whoever still has the other end, like a daemon of the entrypoint, is not
 * waited for. */
static int is_readable(int end, pid_t pid, int child)
{
	struct pollfd waited[] = { { child, POLLIN, 0 }, { end, POLLIN, 0 } };

	do
		if (is_cancelled())
			kill(pid, SIGKILL);
	while (poll(waited, 2, 1000) <= 0);
	return waited[1].revents & POLLIN || !waited[0].revents;
}

/* The report up to the empty text that ends it; NULL if it ended before. The image's entrypoint may have written it. */
static char *read_report(int end, pid_t pid, int child)
{
	char *text = calloc(1, LONGEST + 2); /* ended as it should be, whatever is in it */
	size_t size = 0;
	ssize_t got;

	while (text && size < LONGEST && is_readable(end, pid, child) && (got = read(end, text + size, LONGEST - size)) > 0) {
		size += got;
		if (size > 2 && !text[size - 1] && !text[size - 2])
			return text;
	}
	free(text);
	return NULL;
}

/* Opens a namespace that a process is in, or that another slurmstepd has as a descriptor. Root may; and as the number
 * comes from the user, nothing but a namespace is opened: O_PATH opens nothing, and a device would notice to be opened.
 * The kernel lets a task enter those of its own user only. */
int hold(int pid, const char *what)
{
	char *path = print("/proc/%d/%s", pid, what), *same;
	int place, file = -1, own = geteuid();
	struct statfs about;

	if (seteuid(0))
		return -1;
	place = open(path, O_PATH | O_CLOEXEC);
	same = print("/proc/self/fd/%d", place);
	if (place >= 0 && !fstatfs(place, &about) && about.f_type == NSFS_MAGIC)
		file = open(same, O_RDONLY | O_CLOEXEC);
	if (seteuid(own))
		abort();
	close(place);
	free(path);
	free(same);
	return file;
}

/* Keeps of the report's environment what the image, its entrypoint and the TaskProlog say: NAME=VALUE, or NAME if they have
 * unset the job's. What has its value from the job is left out: tasks have other values, like SLURM_PROCID, which Slurm
 * sets later, and so has a step that joins. */
static void keep_what_changed(void)
{
	char *first = report + strlen(report) + 1, *entry, **own, *text;
	size_t size, length;
	FILE *file = open_memstream(&text, &size);

	if (!file)
		abort();
	fprintf(file, "%s%c", report, 0);
	for (entry = first; *entry; entry += strlen(entry) + 1) {
		for (own = user.environment; *own && strcmp(*own, entry); own++)
			;
		if (!*own && strchr(entry, '='))
			fprintf(file, "%s%c", entry, 0);
	}
	for (own = user.environment; *own; own++) {
		length = strcspn(*own, "=");
		for (entry = first; *entry && strncmp(*own, entry, length + 1); entry += strlen(entry) + 1)
			;
		if (!*entry && length)
			fprintf(file, "%.*s%c", (int) length, *own, 0);
	}
	fputc(0, file);
	if (fclose(file))
		abort();
	report = text;
}

/* Runs container-start. For a container what it reports begins with the number of its first process, whose namespaces are
 * taken hold of, unless a running one was joined. */
int run(int is_container, const char *word, const char *text)
{
	int complaints = memfd_create("complaints", MFD_CLOEXEC), taken[2], held[2], status = 0, option, count = 0, child;
	char *words[OPTIONS + 5] = { START };
	pid_t pid;

	words[++count] = print("%s=%s", word, text);
	for (option = 0; option < OPTIONS; option++)
		if (asked[option])
			words[++count] = print("%s=%s", words_of[option], asked[option]);
	if (kept)
		words[++count] = print("kept=%s", kept);
	if (is_container && user_namespace >= 0)
		words[++count] = print("joined=");
	if (complaints < 0 || pipe2(taken, O_CLOEXEC) || pipe2(held, O_CLOEXEC))
		return fail("no pipe: %s", strerror(errno));
	pid = start(words, user.environment, complaints, taken[1], held[0]);
	child = pid > 0 ? syscall(SYS_pidfd_open, pid, 0) : -1;
	if (child < 0)
		return fail("no process: %s", strerror(errno));
	close(taken[1]);
	close(held[0]);
	if (is_container && (report = read_report(taken[0], pid, child))) {
		if (user_namespace < 0) {
			user_namespace = hold(atoi(report), "ns/user");
			mount_namespace = hold(atoi(report), "ns/mnt");
		}
		report += strlen(report) + 1;
		keep_what_changed();
	}
	close(taken[0]);
	close(held[1]);
	if (is_container)
		is_readable(-1, pid, child);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	close(child);
	if (status || (is_container && !report))
		failed(complaints, status);
	if (is_container)
		entrypoint_log = complaints;
	else
		close(complaints);
	while (count)
		free(words[count--]);
	return *failure ? -1 : 0;
}
