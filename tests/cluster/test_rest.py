"""Slurm's REST interface: what a user can do through it, and who is refused; on a cluster of ann and bob."""

import base64
import hashlib
import hmac
import json
import time
from functools import partial

import pytest

from harness import engine
from harness.clusters import copy_of_workspace
from harness.internals import rest_client
from slurmbed.errors import CommandError, UsageError
from slurmbed.slurm.rest import Refused, Rest
from slurmbed.wait import Pending, wait_until


@pytest.fixture(scope="module")
def slurm_cluster(slurm_start, tmp_path_factory):
    folder, file = copy_of_workspace(tmp_path_factory.mktemp("rest")), tmp_path_factory.mktemp("users") / "cluster.yaml"
    file.write_text("nodes: [{name: cpu, memory: 512M}]\nusers: [{name: ann}, {name: bob}]\n")
    with slurm_start("rest", config=file, rest=True, workspace=folder) as cluster:
        yield cluster


def test_a_job_is_submitted_polled_and_found_in_accounting(slurm_cluster, slurm_rest):
    assert slurm_rest.ping()
    assert "v0.0.42" in slurm_rest.versions()
    assert [(node.name, node.works) for node in slurm_rest.nodes()] == [("node-1", True)]
    script = "#!/bin/bash\nid -un; echo $GREETING; hostname"
    environment = ["PATH=/usr/bin:/bin", "GREETING=hello"]
    job_id = slurm_rest.submit(script, name="asked", standard_output="runs/asked.log", environment=environment)
    assert slurm_rest.wait(job_id, 120).state == "COMPLETED"
    assert job_id in [job.id for job in slurm_rest.jobs()]
    assert (slurm_cluster.workspace() / "runs" / "asked.log").read_text().split() == ["ann", "hello", "node-1"]

    def accounted() -> None:
        found = {row.id: (row.name, row.user, row.state) for row in slurm_rest.accounting(users="ann")}
        if found.get(job_id) != ("asked", "ann", "COMPLETED"):
            raise Pending(str(found))

    wait_until(accounted, what="slurmdbd has the job", timeout=120)


def test_a_job_is_cancelled_by_who_submitted_it_alone(slurm_cluster, slurm_rest):
    job_id = slurm_rest.submit("#!/bin/bash\nsleep 600", standard_output="/dev/null")
    with pytest.raises(Refused):
        rest_client(slurm_cluster, "bob").cancel(job_id)
    assert not slurm_rest.job(job_id).is_over
    slurm_rest.cancel(job_id)
    assert slurm_rest.wait(job_id, 120).state == "CANCELLED"


def test_the_login_node_has_a_socket(slurm_cluster, slurm_rest):
    url = f"http://localhost/slurm/{slurm_rest.version}/ping/"
    argv = ["curl", "--silent", "--unix-socket", "/run/slurmrestd/socket", url]
    token = slurm_rest.session.headers["X-SLURM-USER-TOKEN"]
    argv += ["--header", f"X-SLURM-USER-TOKEN: {token}"]
    said = engine.execute(slurm_cluster, "login", argv, user="bob").check()
    assert json.loads(said.stdout)["pings"][0]["responding"] is True


def test_slurmrestd_is_nobody_special_and_has_no_key(slurm_cluster):
    inside = partial(engine.execute, slurm_cluster, "slurmrestd")
    status = inside(["bash", "-c", "cat /proc/$(pidof slurmrestd)/status"]).check().stdout
    lines = dict(line.split(":", 1) for line in status.splitlines())
    others = inside(["bash", "-c", "id -u slurm; id -u munge"]).check().stdout.split()
    assert lines["Uid"].split()[0] not in ("0", *others)
    assert (int(lines["CapEff"], 16), int(lines["CapPrm"], 16), lines["NoNewPrivs"].strip()) == (0, 0, "1")
    assert not inside(["ls", "/keys"]).ok


def in_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def make_token(key: bytes, algorithm: str = "HS256", **claims: object) -> str:
    """A JSON Web Token, made without Slurm: RFC 7519."""
    parts = ({"alg": algorithm, "typ": "JWT"}, {"iat": int(time.time()) - 60, **claims})
    text = ".".join(in_base64(json.dumps(part).encode()) for part in parts)
    return f"{text}.{in_base64(hmac.new(key, text.encode(), hashlib.sha256).digest()) if key else ''}"


@pytest.fixture(scope="module")
def key(slurm_cluster) -> bytes:
    argv = ["base64", "--wrap=0", "/keys/jwt/jwt_hs256.key"]
    return base64.b64decode(engine.execute(slurm_cluster, "slurmctld", argv, user="slurm").check().stdout)


def later() -> int:
    return int(time.time()) + 3600


def test_a_token_of_the_key_is_believed(slurm_rest, key):
    """So that what is refused below is refused for its fault."""
    assert Rest(slurm_rest.url, make_token(key, sun="bob", exp=later())).ping()
    assert Rest(slurm_rest.url, make_token(key, sun="bob", exp=later())).jobs() is not None


BAD = {
    "none": lambda key: "",
    "forged": lambda key: make_token(b"another key, of 32 bytes or more", sun="ann", exp=later()),
    "unsigned": lambda key: make_token(b"", algorithm="none", sun="ann", exp=later()),
    "expired": lambda key: make_token(key, sun="ann", exp=int(time.time()) - 30),
}


@pytest.mark.parametrize("kind", BAD)
def test_without_a_good_token_nothing_is_done(slurm_rest, key, kind):
    bad = Rest(slurm_rest.url, BAD[kind](key), version=slurm_rest.version)
    with pytest.raises(Refused):
        bad.jobs()
    with pytest.raises(Refused):
        bad.submit("#!/bin/sh\ntrue", standard_output="/dev/null")
    with pytest.raises(CommandError):  # of slurmdbd 26.05 slurmrestd says only that it cannot connect
        bad.accounting()


def test_a_token_is_its_users_alone(slurm_cluster, slurm_rest):
    """bob's token does not make a request ann's."""
    token = rest_client(slurm_cluster, "bob").session.headers["X-SLURM-USER-TOKEN"]
    posing = Rest(slurm_rest.url, token, "ann", slurm_rest.version)
    with pytest.raises(Refused):
        posing.submit("#!/bin/sh\ntrue", standard_output="/dev/null")
    with pytest.raises(UsageError, match="has no user root"):
        rest_client(slurm_cluster, "root")
