/*
 * Preloaded into slurmd, and so into slurmstepd. Slurm numbers a node's CPUs from 0, but the kernel knows those of a
 * container by the host's numbers: on a node that has the host's CPU 3 alone a job could not be bound to "CPU 0". With
 * this the node's I-th CPU is the I-th of its container. What is bound is told so to the caller too, for
 * `--cpu-bind=verbose` to show the numbers that `taskset` shows. Users' programs are not preloaded: their environment is
 * the job's, not slurmd's.
 *
 * Source: slurm_setaffinity() and its callers in Slurm's src/plugins/task/affinity.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <string.h>

typedef int setaffinity_t(pid_t, size_t, const cpu_set_t *);

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *mask)
{
	setaffinity_t *next = (setaffinity_t *) dlsym(RTLD_NEXT, "sched_setaffinity");
	cpu_set_t all, mapped;
	int cpu, index = 0;

	/* Process 1, the container's init, may run on all of the container's CPUs. */
	if (size != sizeof(all) || sched_getaffinity(1, sizeof(all), &all))
		return next(pid, size, mask);
	CPU_ZERO(&mapped);
	for (cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &all) && CPU_ISSET(index++, mask))
			CPU_SET(cpu, &mapped);
	memcpy((cpu_set_t *) mask, &mapped, sizeof(mapped));
	return next(pid, size, mask);
}
