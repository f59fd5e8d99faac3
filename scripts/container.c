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
#include "container.h"
#include <ctype.h>
#include <limits.h>
#include <sched.h>
#include <slurm/slurm.h>
#include <slurm/spank.h>

SPANK_PLUGIN(container, 1)

/* slurmstepd's slurm.conf, of its libslurmfull. It runs the TaskProlog after slurm_spank_task_init, where the container
 * has no such program: container-start runs it instead, and no task does. */
extern slurm_conf_t slurm_conf;

/* ---- what a user asks for ---- */

char *asked[OPTIONS];
static char is_said[OPTIONS]; /* and not left to what is the default */
struct user user;
static int is_on;

static int take(int option, const char *text, int is_remote);

/* The first of them are in the order of container.h; those after them take a switch back. Their variables are pyxis',
 * PYXIS_CONTAINER_IMAGE and so on. */
static struct spank_option options[] = {
	{ "container-image", "IMAGE", "run in a container of IMAGE: [HOST/]NAME[:TAG] or a file", 1, IMAGE, take },
	{ "container-name", "NAME[:FLAG]", "keep the container on its node, or use the kept one", 1, NAME, take },
	{ "container-mounts", "SRC:DST[:ro],..", "what of the node the container sees", 1, MOUNTS, take },
	{ "container-workdir", "PATH", "working directory in the container", 1, WORKDIR, take },
	{ "container-save", "FILE", "write the container into FILE (squashfs) after the step", 1, SAVE, take },
	{ "container-env", "NAME,..", "variables that are the job's although the image has its own", 1, ENV, take },
	{ "container-mount-home", NULL, "the container sees the user's home", 0, MOUNT_HOME, take },
	{ "container-remap-root", NULL, "the user is called root in it, without more rights", 0, REMAP_ROOT, take },
	{ "container-entrypoint", NULL, "run the image's entrypoint before the tasks", 0, ENTRYPOINT, take },
	{ "container-entrypoint-log", NULL, "print what the entrypoint prints", 0, ENTRYPOINT_LOG, take },
	{ "container-readonly", NULL, "nobody writes to the container's files", 0, READONLY, take },
	{ "no-container-mount-home", NULL, "it does not (default)", 0, OPTIONS + MOUNT_HOME, take },
	{ "no-container-remap-root", NULL, "the user has the same name in it (default)", 0, OPTIONS + REMAP_ROOT, take },
	{ "no-container-entrypoint", NULL, "do not run it (default)", 0, OPTIONS + ENTRYPOINT, take },
	{ "no-container-entrypoint-log", NULL, "do not print it (default)", 0, OPTIONS + ENTRYPOINT_LOG, take },
	{ "container-writable", NULL, "tasks may, to no other container's (default)", 0, OPTIONS + READONLY, take },
	SPANK_OPTIONS_TABLE_END
};

/* Ends srun, sbatch or salloc. */
static void refuse(const char *reason)
{
	slurm_error("%s", reason);
	exit(1);
}

static int take(int option, const char *text, int is_remote)
{
	if (!is_on && !is_remote)
		refuse("--container-image: this cluster runs no containers in jobs; make up CONTAINERS=1 "
		       "(slurmbed up --containers) makes one that does");
	if (!is_remote && is_said[option % OPTIONS] && !asked[option % OPTIONS] != (option >= OPTIONS))
		refuse(print("--%s is asked for, and its opposite too", options[option % OPTIONS].name));
	is_said[option % OPTIONS] = 1;
	asked[option % OPTIONS] = option < OPTIONS ? strdup(text ? text : "") : NULL;
	return 0;
}

/* On a node they are the job's. Without an image or a name the others are left alone: a user's profile may set them. */
static void take_variables(spank_t spank)
{
	static char variable[64], text[1 << 16];
	struct spank_option *each;
	char *at, *value;
	int is_remote = spank_context() == S_CTX_REMOTE;

	for (each = options; each->name; each++) {
		if (strncmp(each->name, "container-", 10) || is_said[each->val % OPTIONS])
			continue;
		if (each->val > NAME && !asked[IMAGE] && !asked[NAME])
			break;
		snprintf(variable, sizeof(variable), "PYXIS_%s", each->name);
		for (at = variable; *at; at++)
			*at = *at == '-' ? '_' : toupper((unsigned char) *at);
		value = !is_remote ? getenv(variable) : spank_getenv(spank, variable, text, sizeof(text)) ? NULL : text;
		if (!value || !*value)
			continue;
		if (each->has_arg || !strcasecmp(value, "1") || !strcasecmp(value, "true") || !strcasecmp(value, "yes"))
			take(each->val, value, is_remote);
		else if (!strcasecmp(value, "0") || !strcasecmp(value, "false") || !strcasecmp(value, "no"))
			take((each->val + OPTIONS) % (2 * OPTIONS), NULL, is_remote);
	}
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

/* NAME[:auto|create|exec|no_exec], as pyxis has it. */
#define NO_NAME "--container-name: letters, digits, '.', '_' and '-' make a name; after it :auto, :create, :exec or :no_exec"

static int is_name(const char *text)
{
	size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
	const char *flag = text + length;

	return isalnum((unsigned char) *text) && length < 200 &&
	       (!*flag || !strcmp(flag, ":auto") || !strcmp(flag, ":create") || !strcmp(flag, ":exec") ||
		!strcmp(flag, ":no_exec"));
}

int slurm_spank_init_post_opt(spank_t spank, int, char **)
{
	int option, is_user = spank_context() == S_CTX_LOCAL || spank_context() == S_CTX_ALLOCATOR;

	if (is_user || spank_context() == S_CTX_REMOTE)
		take_variables(spank);
	if (!is_user)
		return 0;
	for (option = 0; option < OPTIONS; option++)
		if (asked[option] && !asked[IMAGE] && !asked[NAME])
			refuse("options of containers need --container-image, or the --container-name of a kept one");
	if (asked[NAME] && !is_name(asked[NAME]))
		refuse(NO_NAME);
	return 0;
}

/* ---- a step on a node ---- */

/* slurmstepd, with the user's effective ids, in the step's working directory. */
int slurm_spank_user_init(spank_t spank, int, char **)
{
	char here[PATH_MAX];
	int lock = -1;

	if (!asked[IMAGE] && !asked[NAME])
		return 0;
	user.uid = geteuid();
	user.gid = getegid();
	user.count = getgroups(256, user.groups);
	if (!is_on || user.count < 0 || spank_get_item(spank, S_JOB_ENV, &user.environment) ||
	    spank_get_item(spank, S_JOB_ID, &user.job) || spank_get_item(spank, S_JOB_STEPID, &user.step))
		return fail("this node runs no containers"), 0;
	if (asked[NAME] && !is_name(asked[NAME]))
		return fail(NO_NAME), 0;
	if (asked[SAVE] && *asked[SAVE] != '/') /* slurmstepd is elsewhere when the step has ended */
		asked[SAVE] = print("%s/%s", getcwd(here, sizeof(here)) ? here : "", asked[SAVE]);
	if (asked[NAME] || asked[SAVE]) {
		kept = folder_of_kept();
		lock = lock_or_join();
		if (*failure)
			return 0;
	}
	if (!run(1, "prolog", slurm_conf.task_prolog ? slurm_conf.task_prolog : "") && (user_namespace < 0 || mount_namespace < 0))
		fail("the container's namespaces: %s", strerror(errno));
	if (lock >= 0 && !*failure)
		note_start(lock);
	return 0;
}

static void set_environment(spank_t spank)
{
	char *entry = report + strlen(report) + 1;

	for (; *entry; entry += strlen(entry) + 1) {
		char *value = strchr(entry, '='), *name = strndup(entry, strcspn(entry, "="));

		if (value)
			spank_setenv(spank, name, value + 1, 1);
		else
			spank_unsetenv(spank, name);
		free(name);
	}
}

/* What pyxis and enroot's hook 50-slurm-pytorch.sh set for images of PyTorch, so that env:// serves in a step. */
static void set_for_pytorch(spank_t spank)
{
	static const char *const of_task[] = { "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS" };
	static const char *const names[] = { "RANK", "LOCAL_RANK", "WORLD_SIZE" };
	char text[4096], *first;
	void *hosts;
	int i;

	if (spank_getenv(spank, "PYTORCH_VERSION", text, sizeof(text)) ||
	    spank_getenv(spank, "SLURM_STEP_NODELIST", text, sizeof(text)) || !(hosts = slurm_hostlist_create(text)))
		return;
	if ((first = slurm_hostlist_shift(hosts)))
		spank_setenv(spank, "MASTER_ADDR", first, 0);
	if (!spank_getenv(spank, "SLURM_JOB_ID", text, sizeof(text)))
		spank_setenv(spank, "MASTER_PORT", print("%d", atoi(text) % 4536 + 61000), 0);
	for (i = 0; i < 3; i++)
		if (!spank_getenv(spank, of_task[i], text, sizeof(text)))
			spank_setenv(spank, names[i], text, 1);
}

static void show_entrypoint_log(void)
{
	char text[4096];
	ssize_t got;

	lseek(entrypoint_log, 0, SEEK_SET);
	while ((got = read(entrypoint_log, text, sizeof(text))) > 0 && write(2, text, got) == got)
		;
}

/* A task, as the user, about to become its program. */
int slurm_spank_task_init(spank_t spank, int, char **)
{
	int task = 0;

	if (!asked[IMAGE] && !asked[NAME])
		return 0;
	if (!*failure && (setns(user_namespace, CLONE_NEWUSER) || setns(mount_namespace, CLONE_NEWNS)))
		fail("the container cannot be entered: %s", strerror(errno));
	if (!*failure && !geteuid() && pretend_to_be_root())
		fail("no root in the container: %s", strerror(errno));
	if (!*failure && chdir(report))
		fail("%s: %s", report, strerror(errno));
	spank_get_item(spank, S_TASK_ID, &task);
	if (asked[ENTRYPOINT_LOG] && !task)
		show_entrypoint_log();
	if (*failure) {
		if (!task)
			dprintf(2, "slurmstepd: error: container: %s\n", failure);
		_exit(1);
	}
	set_environment(spank);
	set_for_pytorch(spank);
	slurm_conf.task_prolog = NULL;
	return 0;
}

/* slurmstepd, as root, when a task has ended. The step goes on until the last one's call returns. */
int slurm_spank_task_exit(spank_t spank, int, char **)
{
	static uint32_t ended;
	uint32_t tasks = 0;

	if (!asked[SAVE] || *failure || spank_get_item(spank, S_JOB_LOCAL_TASK_COUNT, &tasks) || ++ended < tasks)
		return 0;
	if (run(0, "save", asked[SAVE]))
		slurm_error("container: %s", failure);
	return 0;
}
