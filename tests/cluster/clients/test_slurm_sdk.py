"""slurm-sdk, over ssh."""

import ast

import pytest

from harness import engine
from slurmbed.process import run


@pytest.fixture
def wheels(slurm_cluster, with_a_network):
    """What the job of a wheel installs, in alice's home: nodes may reach no package index."""
    pip = ["python3", "-m", "pip", "wheel", "--quiet", "--wheel-dir", "/home/alice/wheels"]
    run([*with_a_network, *pip, "slurm-sdk==0.4.6", "paramiko<5"], timeout=600).check()
    configuration = "[global]\nno-index = true\nfind-links = /home/alice/wheels\n"
    script = "mkdir -p ~/.config/pip && cat >~/.config/pip/pip.conf"
    engine.execute(slurm_cluster, "login", ["bash", "-lc", script], user="alice", stdin=configuration).check()
    yield
    engine.execute(slurm_cluster, "login", ["bash", "-lc", "rm -r ~/.config/pip ~/wheels"], user="alice").check()


@pytest.mark.client
def test_slurm_sdk(follow, wheels, slurm):
    here, *submitted = map(ast.literal_eval, follow("slurm-sdk"))
    assert here["node"] == "here"
    for best in submitted:
        assert (best["rate"], best["loss"]) == (0.3, 0.0)
        assert best["node"] in ("node-1", "node-2")
    assert len(submitted) == 2
    rows = ("sacct", "--allocations", "--noheader", "--parsable2", "--starttime=now-1days", "--format=JobName,State")
    done = slurm.runner([*rows, "--name=train,best"]).check().stdout.split()
    assert sorted(done) == [*["best|COMPLETED"] * 2, *["train|COMPLETED"] * 8]
