/*
 * Kept containers of container.c (--container-name, --container-save): one step at a time starts one, others join it.
 */
#include "container.h"
#include <pwd.h>
#include <sys/file.h>

char *kept;
static char *flag = ""; /* of --container-name */

/* The file `running` in a kept container's folder is locked by each slurmstepd whose step is in the container. It has the
 * report, and a line for each of them: its number, its descriptors of the namespaces, and the number of the second one. */
static void note_running(int file)
{
	struct stat about;

	if (fstat(mount_namespace, &about) ||
	    dprintf(file, "%d %d %d %lu\n", getpid(), user_namespace, mount_namespace, about.st_ino) < 0)
		fail("%s: %s", kept, strerror(errno));
}

/* container-image remove has moved the folder away since the file was opened: its lock is nobody's any more. */
static int is_gone(int file)
{
	char *path = print("%s/running", kept);
	struct stat held, there;
	int gone = fstat(file, &held) || stat(path, &there) || held.st_ino != there.st_ino || held.st_dev != there.st_dev;

	free(path);
	return gone;
}

/* The container has been started: who comes now may join it. */
void note_start(int file)
{
	const char *end = report;

	while (*end)
		end += strlen(end) + 1;
	if (ftruncate(file, 0) || write(file, report, end + 1 - report) < 0)
		fail("%s: %s", kept, strerror(errno));
	note_running(file);
	flock(file, LOCK_SH);
	if (is_gone(file)) /* the kernel gives the one lock back before it takes the other */
		fail("%s was removed while its container started", kept);
}

/* Takes hold of the container in which another step is; false if there is none. */
static int join(int file)
{
	int pid, of_user, of_mounts;
	unsigned long number;
	struct stat about;
	char *text, *line, *first, *second;

	if (fstat(file, &about) || about.st_size > LONGEST || !(text = calloc(1, about.st_size + 3)) ||
	    pread(file, text, about.st_size, 0) != about.st_size)
		return 0;
	for (line = text; *line; line += strlen(line) + 1)
		;
	for (; line && sscanf(line + 1, "%d %d %d %lu", &pid, &of_user, &of_mounts, &number) == 4; line = strchr(line + 1, '\n')) {
		user_namespace = hold(pid, first = print("fd/%d", of_user));
		mount_namespace = hold(pid, second = print("fd/%d", of_mounts));
		free(first);
		free(second);
		if (user_namespace >= 0 && mount_namespace >= 0 && !fstat(mount_namespace, &about) && about.st_ino == number) {
			free(text);
			return 1;
		}
		close(user_namespace);
		close(mount_namespace);
		user_namespace = mount_namespace = -1;
	}
	free(text);
	return 0;
}

static int open_running(void)
{
	char *path = print("%s/running", kept), *at = kept;
	int file = -1, is_there;

	while ((at = strchr(at + 1, '/'))) {
		*at = 0;
		mkdir(kept, 0700);
		*at = '/';
	}
	do {
		is_there = !mkdir(kept, 0700) || errno == EEXIST;
		if (is_there)
			file = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
	} while (is_there && file < 0 && errno == ENOENT); /* removed in between */
	if (file < 0)
		fail("%s: %s", kept, strerror(errno));
	free(path);
	return file;
}

/* The file `running`, if the container is to be started now; -1 if it was joined, or on a failure. While one step starts
 * it, and has the lock alone, others wait. */
int lock_or_join(void)
{
	char *image = print("%s/image", kept);
	int file = open_running(), is_alone, is_shared;

	for (; file >= 0; usleep(100000)) {
		is_alone = !flock(file, LOCK_EX | LOCK_NB);
		is_shared = !is_alone && !flock(file, LOCK_SH | LOCK_NB);
		if (is_gone(file)) {
			close(file);
			file = open_running();
			continue;
		}
		if ((is_alone || is_shared) && join(file))
			break;
		if (is_alone) {
			if (!strcmp(flag, ":exec"))
				return fail("no container %s runs on this node", asked[NAME]);
			if (!strcmp(flag, ":create") && !access(image, F_OK))
				return fail("a container %s is kept on this node already", asked[NAME]);
			return file;
		}
		flock(file, LOCK_UN);
		if (is_cancelled())
			return fail("cancelled");
	}
	if (file < 0)
		return -1;
	if (!strcmp(flag, ":create") || !strcmp(flag, ":no_exec"))
		return fail("the container %s runs on this node already", asked[NAME]);
	flock(file, LOCK_SH);
	note_running(file);
	return -1;
}

char *folder_of_kept(void)
{
	char host[256] = "", *folder, *at;
	struct passwd *entry = getpwuid(user.uid);

	gethostname(host, sizeof(host) - 1);
	if (asked[NAME] && (at = strchr(asked[NAME], ':'))) {
		flag = strdup(at);
		*at = 0;
	}
	if (asked[NAME])
		folder = print(STORE "/%s/containers/%s/%s", entry ? entry->pw_name : "", host, asked[NAME]);
	else
		folder = print(STORE "/%s/containers/%s/.%u.%u", entry ? entry->pw_name : "", host, user.job, user.step);
	return folder;
}
