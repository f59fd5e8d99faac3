"""The developers' commands: `python -m dev test ONLY=unit`, as the Makefile calls them."""

import sys

from slurmbed.cli.main import Commands, run

COMMANDS = {
    "test": ("dev.suites:test", "lint and all tests"),
    "test-versions": ("dev.suites:test_versions", "the core of the cluster tests with other versions of Slurm"),
    "test-launchers": ("dev.suites:test_launchers", "the whole matrix of launchers"),
    "test-clients": ("dev.suites:test_clients", "other projects' programs, from PyPI"),
    "mutate": ("dev.mutate:mutate", "does a test find each of many mistakes?"),
    "bench": ("dev.bench:bench", "how fast: ratios measured in one run"),
    "bench-train": ("dev.bench_train:bench_train", "training: tokens a second, and seconds to a loss"),
}

if __name__ == "__main__":
    run(Commands("make", COMMANDS, help=__doc__), sys.argv[1:])
