"""scripts/base-image, where no registry answers, with a mirror whose lists may have expired."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What each is asked goes to the file `asked`. The engine has no image and reaches no registry.
DOCKER = """
case $1 in
  image | pull) exit 1 ;;
  import) echo "import $(cat "$4") as $5" >>asked ;;
esac
"""
MMDEBSTRAP = """
echo "mmdebstrap ${*: 1:$# - 1}" >>asked
if [[ $MIRROR == expired && $* != *Check-Valid-Until* ]]; then
  echo "E: Release file for http://mirror/dists/sid/InRelease is expired (invalid since 16d). Updates ..." >&2
  exit 1
fi
[[ $MIRROR != broken ]] || { echo "E: Unable to fetch some archives" >&2; exit 1; }
echo archive
"""
PLAIN = "mmdebstrap --variant=minbase --include=ca-certificates sid"
UNCHECKED = """mmdebstrap --variant=minbase --include=ca-certificates --aptopt=Acquire::Check-Valid-Until "false" sid"""


def bootstrap(folder: Path, mirror: str) -> tuple[subprocess.CompletedProcess, list[str]]:
    """What `base-image sid` did, and what it asked of mmdebstrap and the engine."""
    for name, script in {"docker": DOCKER, "mmdebstrap": MMDEBSTRAP, "sudo": '"$@"'}.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "MIRROR": mirror, "TMPDIR": str(folder)}
    argv = [ROOT / "scripts" / "base-image", "sid"]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=60)
    return done, (folder / "asked").read_text().splitlines()


@pytest.mark.parametrize(("mirror", "tries"), [("current", [PLAIN]), ("expired", [PLAIN, UNCHECKED])])
def test_lists_are_checked_unless_they_have_expired(tmp_path, mirror, tries):
    done, asked = bootstrap(tmp_path, mirror)
    assert done.returncode == 0, done.stderr
    assert asked == [*tries, "import archive as debian:sid-slim"]
    assert not list(tmp_path.glob("tmp.*"))


def test_what_mmdebstrap_says_is_the_error(tmp_path):
    done, asked = bootstrap(tmp_path, "broken")
    assert done.returncode == 1
    assert "could not make debian:sid-slim: E: Unable to fetch some archives" in done.stderr
    assert asked == [PLAIN]
