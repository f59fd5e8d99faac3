/* What the files of the plugin share: container.c, container-run.c, container-root.c and container-kept.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STORE "/var/lib/container-images"
#define START "/usr/local/bin/container-start"
#define SQUEUE "/usr/bin/squeue"
#define LONGEST (8 << 20) /* bytes of a report: more than the kernel takes for a program's environment */

enum { IMAGE, NAME, MOUNTS, WORKDIR, SAVE, ENV, MOUNT_HOME, REMAP_ROOT, ENTRYPOINT, ENTRYPOINT_LOG, READONLY, OPTIONS };

/* container.c: what the user asks for, and who it is. */
extern char *asked[OPTIONS]; /* "" stands for a switch that is on */
extern struct user {
	uid_t uid;
	gid_t gid, groups[256];
	int count;
	char **environment;
	uint32_t job, step;
} user;

/* container-run.c: what slurmstepd knows of the container. */
extern int user_namespace, mount_namespace, entrypoint_log;
extern char *report;       /* working directory and environment of its first process, each ended by a NUL */
extern char failure[1024]; /* what the user is told instead */

int fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *print(const char *format, ...) __attribute__((format(printf, 1, 2)));
int run(int is_container, const char *word, const char *text);
int hold(int pid, const char *what);
int is_cancelled(void);

/* container-root.c */
int pretend_to_be_root(void);

/* container-kept.c */
extern char *kept; /* the folder that has its changes; NULL if they are dropped */
char *folder_of_kept(void);
int lock_or_join(void);
void note_start(int file);
