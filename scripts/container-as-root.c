/*
 * `container-as-root PROGRAM WORD...`: becomes the program, with what container-root.c says. For `enroot start --root`.
 */
#include "container.h"

int main(int argc, char **argv)
{
	if (argc > 1 && !pretend_to_be_root())
		execvp(argv[1], argv + 1);
	perror(argc > 1 ? argv[1] : argv[0]);
	return 1;
}
