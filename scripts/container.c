/*
 * SPANK plugin: `srun --container-image=IMAGE ...` runs a step's tasks in a container, with the options of NVIDIA's pyxis.
 * plugstack.conf tells it `on`; without that it refuses them.
 *
 * On each node, before the tasks, container-start gets the image and has bubblewrap make a user and a mount namespace over
 * its layers. slurmstepd keeps descriptors of the two, and each task enters them right before its program starts. No
 * process waits in the container, so nothing is left of it when the last task has ended, however that was.
 *
 * What fails is kept, and said to the user by the tasks: Slurm drains a node whose plugins fail.
 *
 * Source: https://slurm.schedmd.com/spank.html, setns(2), https://github.com/NVIDIA/pyxis/wiki/Usage
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <sched.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(container, 1)

/* slurmstepd's slurm.conf, of its libslurmfull. It runs the TaskProlog after slurm_spank_task_init, where the container
 * has no such program: container-start runs it instead, and no task does. */
extern slurm_conf_t slurm_conf;

#define STORE "/var/lib/container-images"
#define START "/usr/local/bin/container-start"

/* ---- what a user asks for ---- */

enum { IMAGE, MOUNTS, WORKDIR, NAME, SAVE, ENV, MOUNT_HOME, REMAP_ROOT, ENTRYPOINT, READONLY, OPTIONS };
static const char *const words_of[OPTIONS] = {
	"image", "mounts", "workdir", "name", "save", "env", "mount-home", "remap-root", "entrypoint", "readonly"
};
static char *asked[OPTIONS]; /* "" stands for a switch that is on */
static int is_on;

static int take(int option, const char *text, int is_remote);
static int take_back(int option, const char *text, int is_remote);

static struct spank_option options[] = {
	{ "container-image", "IMAGE", "run in a container of IMAGE: [HOST/]NAME[:TAG] or a file", 1, IMAGE, take },
	{ "container-mounts", "SRC:DST[:ro],..", "what of the node the container sees", 1, MOUNTS, take },
	{ "container-workdir", "PATH", "working directory in the container", 1, WORKDIR, take },
	{ "container-name", "NAME", "keep the container on its node, or use the kept one", 1, NAME, take },
	{ "container-save", "FILE", "write the container into FILE (squashfs) after the step", 1, SAVE, take },
	{ "container-env", "NAME,..", "variables that are the job's although the image has its own", 1, ENV, take },
	{ "container-mount-home", NULL, "the container sees the user's home", 0, MOUNT_HOME, take },
	{ "no-container-mount-home", NULL, "it does not (default)", 0, MOUNT_HOME, take_back },
	{ "container-remap-root", NULL, "the user is called root in it, without more rights", 0, REMAP_ROOT, take },
	{ "no-container-remap-root", NULL, "the user has the same name in it (default)", 0, REMAP_ROOT, take_back },
	{ "container-entrypoint", NULL, "run the image's entrypoint before the tasks", 0, ENTRYPOINT, take },
	{ "no-container-entrypoint", NULL, "do not run it (default)", 0, ENTRYPOINT, take_back },
	{ "container-readonly", NULL, "nobody writes to the container's files", 0, READONLY, take },
	{ "container-writable", NULL, "tasks may, to no other container's (default)", 0, READONLY, take_back },
	SPANK_OPTIONS_TABLE_END
};

/* Ends srun, sbatch or salloc. */
static void refuse(const char *reason)
{
	slurm_error("%s", reason);
	exit(1);
}

static void refuse_unless_on(int is_remote)
{
	if (!is_on && !is_remote)
		refuse("--container-image: this cluster runs no containers in jobs; make up CONTAINERS=1 "
		       "(slurmbed up --containers) makes one that does");
}

static int take(int option, const char *text, int is_remote)
{
	refuse_unless_on(is_remote);
	asked[option] = strdup(text ? text : "");
	return 0;
}

static int take_back(int option, const char *text, int is_remote)
{
	(void) text;
	refuse_unless_on(is_remote);
	asked[option] = NULL;
	return 0;
}

/* A table called spank_options would be srun's alone. */
int slurm_spank_init(spank_t spank, int count, char **words)
{
	struct spank_option *each;

	is_on = count && !strcmp(words[0], "on");
	for (each = options; each->name; each++)
		if (spank_option_register(spank, each) != ESPANK_SUCCESS)
			return -1;
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int count, char **words)
{
	int option;

	(void) spank, (void) count, (void) words;
	if (spank_context() != S_CTX_LOCAL && spank_context() != S_CTX_ALLOCATOR)
		return 0;
	for (option = 0; option < OPTIONS; option++)
		if (asked[option] && !asked[IMAGE] && !asked[NAME])
			refuse("options of containers need --container-image, or the --container-name of a kept one");
	if (asked[NAME] && (!isalnum((unsigned char) *asked[NAME]) ||
			    asked[NAME][strspn(asked[NAME], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
							    "0123456789._-")]))
		refuse("--container-name: letters, digits, '.', '_' and '-' make a name");
	return 0;
}

/* ---- what slurmstepd knows of the container ---- */

static int user_namespace = -1, mount_namespace = -1;
static char *report;       /* working directory and environment of its first process, each ended by a NUL */
static char *kept;         /* the folder that has its changes; NULL if they are dropped */
static char failure[1024]; /* what the user is told instead */

static struct {
	uid_t uid;
	gid_t gid, groups[256];
	int count;
	char **environment;
} user;

static int fail(const char *format, ...)
{
	va_list values;

	va_start(values, format);
	vsnprintf(failure, sizeof(failure), format, values);
	va_end(values);
	return -1;
}

static char *print(const char *format, ...)
{
	char *text;
	va_list values;

	va_start(values, format);
	if (vasprintf(&text, format, values) < 0)
		abort();
	va_end(values);
	return text;
}

/* ---- container-start, run as the user ---- */

/* slurmstepd has lent itself the user's effective ids; this child becomes the user for good. */
static void become_user(void)
{
	if (seteuid(0) || setgroups(user.count, user.groups) || setresgid(user.gid, user.gid, user.gid) ||
	    setresuid(user.uid, user.uid, user.uid))
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

/* The report up to the empty text that ends it; NULL if it ended before. */
static char *read_report(int end)
{
	size_t size = 0, room = 0;
	char *text = NULL;
	ssize_t got;

	for (;;) {
		if (room < size + 4096)
			text = realloc(text, room = 2 * size + 65536);
		got = text ? read(end, text + size, room - size) : 0;
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return NULL;
		size += got;
		if (size > 2 && !text[size - 1] && !text[size - 2])
			return text;
	}
}

/* Opens a namespace of a process, or one that another slurmstepd has as a descriptor. Root may. */
static int hold(const char *path)
{
	int file, own = geteuid();

	if (seteuid(0))
		return -1;
	file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (seteuid(own))
		abort();
	return file;
}

static void hold_namespaces(const char *folder, const char *of_user, const char *of_mounts)
{
	char *first = print("%s/%s", folder, of_user), *second = print("%s/%s", folder, of_mounts);

	user_namespace = hold(first);
	mount_namespace = hold(second);
	free(first);
	free(second);
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
static int run(int is_container, const char *word, const char *text)
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
	if (is_container && (report = read_report(taken[0]))) {
		char *folder = print("/proc/%s/ns", report);

		hold_namespaces(folder, "user", "mnt");
		free(folder);
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

/* ---- kept containers ---- */

/* Whose container runs holds its folder's lock, and says in `running` where its namespaces and its report are. A step that
 * comes later joins it. Returns the file, locked; -1 if the container was joined, or on a failure. */
static int lock_or_join(void)
{
	char *path = print("%s/running", kept), folder[64];
	int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600), pid, first, second, at;
	struct stat of_file;
	char *text;

	free(path);
	if (file < 0)
		return fail("%s: %s", kept, strerror(errno));
	while (flock(file, LOCK_EX | LOCK_NB)) {
		if (flock(file, LOCK_SH)) /* who starts it has it for itself until it runs */
			return fail("%s: %s", kept, strerror(errno));
		if (!flock(file, LOCK_EX | LOCK_NB))
			break;
		if (!fstat(file, &of_file) && (text = calloc(1, of_file.st_size + 2)) &&
		    pread(file, text, of_file.st_size, 0) == of_file.st_size &&
		    sscanf(text, "%d %d %d%n", &pid, &first, &second, &at) == 3) {
			snprintf(folder, sizeof(folder), "/proc/%d/fd", pid);
			path = print("%d", first);
			report = text + at + 1;
			text = print("%d", second);
			hold_namespaces(folder, path, text);
		}
		close(file);
		return user_namespace < 0 ? fail("the container %s is just ending; try again", asked[NAME]) : -1;
	}
	return file;
}

/* For as long as this slurmstepd lives: the file stays open. */
static void note_running(int file)
{
	const char *end = report;

	while (*end)
		end += strlen(end) + 1;
	if (ftruncate(file, 0) || dprintf(file, "%d %d %d%c", getpid(), user_namespace, mount_namespace, 0) < 0 ||
	    write(file, report, end - report) < 0 || flock(file, LOCK_SH))
		fail("%s: %s", kept, strerror(errno));
}

static char *folder_of_kept(spank_t spank)
{
	char host[256] = "", *folder, *at;
	struct passwd *entry = getpwuid(user.uid);
	uint32_t job = 0, step = 0;

	gethostname(host, sizeof(host) - 1);
	spank_get_item(spank, S_JOB_ID, &job);
	spank_get_item(spank, S_JOB_STEPID, &step);
	if (asked[NAME])
		folder = print(STORE "/%s/containers/%s/%s", entry ? entry->pw_name : "", host, asked[NAME]);
	else
		folder = print(STORE "/%s/containers/%s/.%u.%u", entry ? entry->pw_name : "", host, job, step);
	for (at = folder + strlen(STORE) + 1; (at = strchr(at, '/')); *at++ = '/') {
		*at = 0;
		mkdir(folder, 0700);
	}
	mkdir(folder, 0700);
	return folder;
}

/* ---- a step on a node ---- */

/* slurmstepd, with the user's effective ids, in the step's working directory. */
int slurm_spank_user_init(spank_t spank, int count, char **words)
{
	int lock = -1;

	(void) count, (void) words;
	if (!asked[IMAGE] && !asked[NAME])
		return 0;
	user.uid = geteuid();
	user.gid = getegid();
	user.count = getgroups(256, user.groups);
	if (!is_on || user.count < 0 || spank_get_item(spank, S_JOB_ENV, &user.environment))
		return fail("this node runs no containers"), 0;
	if (asked[NAME] || asked[SAVE]) {
		kept = folder_of_kept(spank);
		lock = lock_or_join();
		if (lock < 0)
			return 0;
	}
	if (!run(1, "prolog", slurm_conf.task_prolog ? slurm_conf.task_prolog : "") && (user_namespace < 0 || mount_namespace < 0))
		fail("the container's namespaces: %s", strerror(errno));
	if (lock >= 0 && !*failure)
		note_running(lock);
	return 0;
}

static void set_environment(spank_t spank)
{
	char *entry = report + strlen(report) + 1;

	for (; *entry; entry += strlen(entry) + 1) {
		char *name = strndup(entry, strchr(entry, '=') - entry);

		spank_setenv(spank, name, strchr(entry, '=') + 1, 1);
		free(name);
	}
}

/* A task, as the user, about to become its program. */
int slurm_spank_task_init(spank_t spank, int count, char **words)
{
	int task = 0;

	(void) count, (void) words;
	if (!asked[IMAGE] && !asked[NAME])
		return 0;
	if (!*failure && (setns(user_namespace, CLONE_NEWUSER) || setns(mount_namespace, CLONE_NEWNS)))
		fail("the container cannot be entered: %s", strerror(errno));
	if (!*failure && chdir(report))
		fail("%s: %s", report, strerror(errno));
	if (*failure) {
		spank_get_item(spank, S_TASK_ID, &task);
		if (!task)
			dprintf(2, "slurmstepd: error: container: %s\n", failure);
		_exit(1);
	}
	set_environment(spank);
	slurm_conf.task_prolog = NULL;
	return 0;
}

/* slurmstepd, as root, when a task has ended. The step goes on until the last one's call returns. */
int slurm_spank_task_exit(spank_t spank, int count, char **words)
{
	static uint32_t ended;
	uint32_t tasks = 0;

	(void) count, (void) words;
	if (!asked[SAVE] || *failure || spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) || ++ended < tasks)
		return 0;
	if (run(0, "save", asked[SAVE]))
		slurm_error("container: %s", failure);
	return 0;
}
