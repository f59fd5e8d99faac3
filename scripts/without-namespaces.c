/*
 * Preloaded into slurmd. For `sbatch --export=NONE`, `--export=NAME,..` and `--get-user-env` slurmd runs `su - USER` in PID
 * and mount namespaces of its own, and ends ("fatal: clone") where it may not make them: that takes CAP_SYS_ADMIN, which
 * no container here has. With this it runs the same command without them, as slurmd itself does where
 * /proc/sys/user/max_pid_namespaces is 0. What it loses: a process that a user's profile leaves behind goes on.
 *
 * Source: _clone_env_child() and _child_fn() in Slurm's src/common/env.c, which makes the namespaces and mounts /proc.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mount.h>

typedef int clone_t(int (*)(void *), void *, int, void *, ...);
typedef int mount_t(const char *, const char *, const char *, unsigned long, const void *);

/* slurmstepd inherits the preloading, and is left as it is. */
static int in_slurmd(void)
{
	return !strcmp(program_invocation_short_name, "slurmd");
}

int clone(int (*function)(void *), void *stack, int flags, void *argument, ...)
{
	clone_t *next = (clone_t *) dlsym(RTLD_NEXT, "clone");
	void *parent_tid, *tls, *child_tid;
	va_list more;

	va_start(more, argument);
	parent_tid = va_arg(more, void *);
	tls = va_arg(more, void *);
	child_tid = va_arg(more, void *);
	va_end(more);
	if (in_slurmd())
		flags &= ~(CLONE_NEWPID | CLONE_NEWNS);
	return next(function, stack, flags, argument, parent_tid, tls, child_tid);
}

int mount(const char *source, const char *target, const char *type, unsigned long flags, const void *data)
{
	mount_t *next = (mount_t *) dlsym(RTLD_NEXT, "mount");

	if (in_slurmd() && target && !strcmp(target, "/proc"))
		return 0; /* it was to be the new namespace's own */
	return next(source, target, type, flags, data);
}
