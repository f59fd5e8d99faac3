/*
 * Of a user who is called root in a container the kernel knows one id only. So it refuses to give a file to another one, or
 * to become another one, and apt-get, tar and useradd end with that. As in enroot and pyxis these calls do nothing here,
 * and say that they have.
 *
 * Source: seccomp(2)
 */
#include "container.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifdef __x86_64__
#define HERE AUDIT_ARCH_X86_64
#else
#define HERE AUDIT_ARCH_AARCH64
#endif

#define DO_NOTHING(call) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO)

static struct sock_filter filter[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, HERE, 1, 0),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
#ifdef SYS_chown
	DO_NOTHING(SYS_chown),
	DO_NOTHING(SYS_lchown),
#endif
	DO_NOTHING(SYS_fchown),
	DO_NOTHING(SYS_fchownat),
	DO_NOTHING(SYS_setuid),
	DO_NOTHING(SYS_setgid),
	DO_NOTHING(SYS_setreuid),
	DO_NOTHING(SYS_setregid),
	DO_NOTHING(SYS_setresuid),
	DO_NOTHING(SYS_setresgid),
	DO_NOTHING(SYS_setgroups),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

/* Of this process, and of all that it starts. */
int pretend_to_be_root(void)
{
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? -1 : 0;
}
