"""Commands start quickly: what draws figures and pages is imported when one is drawn."""

import subprocess
import sys

import pytest

HEAVY = ("matplotlib", "jinja2")


@pytest.mark.parametrize("module", ["train", "compare", "mnist", "bubble", "collectives", "launchers"])
def test_a_command_does_not_import_what_draws(module):
    program = f"import sys, slurmbed.course.{module}; print(*sys.modules.keys() & {set(HEAVY)})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []
