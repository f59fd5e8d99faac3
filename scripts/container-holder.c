/*
 * The command that container.c starts a container with: it says who and where it is and what its environment has become,
 * and waits until the plugin has taken hold of its namespaces. It is linked statically, as an image may have no libraries.
 *
 * Descriptors: 3 takes the report, each text ended by a NUL and an empty one at the end; 4 ends when the plugin is done.
 */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv, char **environment)
{
	char folder[PATH_MAX] = "/", end;
	FILE *report = fdopen(3, "w");

	(void) argc, (void) argv;
	if (!report || !getcwd(folder, sizeof(folder)))
		return 1;
	fprintf(report, "%d%c%s%c", getpid(), 0, folder, 0);
	for (; *environment; environment++)
		if (**environment)
			fprintf(report, "%s%c", *environment, 0);
	fputc(0, report);
	if (fflush(report))
		return 1;
	while (read(4, &end, 1) > 0)
		;
	return 0;
}
