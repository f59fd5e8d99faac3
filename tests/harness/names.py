"""Names of the tests' own clusters: no two runs, and no two workers of a run, ever use the same."""

import os

from dev import testrun

RUN = testrun.name()
NAME = "-".join(filter(None, (RUN, os.environ.get("PYTEST_XDIST_WORKER"))))
