"""Slurm's REST interface: what a user can do through it, and who is refused; on a cluster of ann and bob."""

import base64
import hashlib
import hmac
import json
import time

import pytest

from harness import engine
from harness.clusters import copy_of_workspace, running
from harness.internals import rest_client
from harness.names import NAME
from slurmbed.errors import CommandError, UsageError
from slurmbed.slurm.rest import Refused, Rest
from slurmbed.wait import Pending, wait_until


@pytest.fixture(scope="module")
def resting(image, tmp_path_factory):
    folder, file = copy_of_workspace(tmp_path_factory.mktemp("rest")), tmp_path_factory.mktemp("users") / "cluster.yaml"
    file.write_text("nodes: [{name: cpu, memory: 512M}]\nusers: [{name: ann}, {name: bob}]\n")
    with running(f"{NAME}-rest", config=file, rest=True, workspace=folder) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def rest(resting) -> Rest:
    return rest_client(resting)


def test_a_job_is_submitted_polled_and_found_in_accounting(resting, rest):
    assert rest.ping()
    assert "v0.0.42" in rest.versions()
    assert [(node.name, node.works) for node in rest.nodes()] == [("node-1", True)]
    script = "#!/bin/bash\nid -un; echo $GREETING; hostname"
    environment = ["PATH=/usr/bin:/bin", "GREETING=hello"]
    job_id = rest.submit(script, name="asked", standard_output="runs/asked.log", environment=environment)
    assert rest.wait(job_id, 120).state == "COMPLETED"
    assert job_id in [job.id for job in rest.jobs()]
    assert (engine.workspace(resting) / "runs" / "asked.log").read_text().split() == ["ann", "hello", "node-1"]

    def accounted() -> None:
        found = {row.id: (row.name, row.user, row.state) for row in rest.accounting(users="ann")}
        if found.get(job_id) != ("asked", "ann", "COMPLETED"):
            raise Pending(str(found))

    wait_until(accounted, what="slurmdbd has the job", timeout=120)


def test_a_job_is_cancelled_by_who_submitted_it_alone(resting, rest):
    job_id = rest.submit("#!/bin/bash\nsleep 600", standard_output="/dev/null")
    with pytest.raises(Refused):
        rest_client(resting, "bob").cancel(job_id)
    assert not rest.job(job_id).is_over
    rest.cancel(job_id)
    assert rest.wait(job_id, 120).state == "CANCELLED"


def test_the_login_node_has_a_socket(resting, rest):
    url = f"http://localhost/slurm/{rest.version}/ping/"
    argv = ["curl", "--silent", "--unix-socket", "/run/slurmrestd/socket", url]
    token = rest.session.headers["X-SLURM-USER-TOKEN"]
    said = engine.execute(resting, "login", [*argv, "--header", f"X-SLURM-USER-TOKEN: {token}"], user="bob").check()
    assert json.loads(said.stdout)["pings"][0]["responding"] is True


def test_slurmrestd_is_nobody_special_and_has_no_key(resting):
    status = (
        engine.execute(resting, "slurmrestd", ["bash", "-c", "cat /proc/$(pidof slurmrestd)/status"]).check().stdout
    )
    lines = dict(line.split(":", 1) for line in status.splitlines())
    others = engine.execute(resting, "slurmrestd", ["bash", "-c", "id -u slurm; id -u munge"]).check().stdout.split()
    assert lines["Uid"].split()[0] not in ("0", *others)
    assert (int(lines["CapEff"], 16), int(lines["CapPrm"], 16), lines["NoNewPrivs"].strip()) == (0, 0, "1")
    assert not engine.execute(resting, "slurmrestd", ["ls", "/keys"]).ok


def in_base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def make_token(key: bytes, algorithm: str = "HS256", **claims: object) -> str:
    """A JSON Web Token, made without Slurm: RFC 7519."""
    parts = ({"alg": algorithm, "typ": "JWT"}, {"iat": int(time.time()) - 60, **claims})
    text = ".".join(in_base64(json.dumps(part).encode()) for part in parts)
    return f"{text}.{in_base64(hmac.new(key, text.encode(), hashlib.sha256).digest()) if key else ''}"


@pytest.fixture(scope="module")
def key(resting) -> bytes:
    argv = ["base64", "--wrap=0", "/keys/jwt/jwt_hs256.key"]
    return base64.b64decode(engine.execute(resting, "slurmctld", argv, user="slurm").check().stdout)


def later() -> int:
    return int(time.time()) + 3600


def test_a_token_of_the_key_is_believed(rest, key):
    """So that what is refused below is refused for its fault."""
    assert Rest(rest.url, make_token(key, sun="bob", exp=later())).ping()
    assert Rest(rest.url, make_token(key, sun="bob", exp=later())).jobs() is not None


BAD = {
    "none": lambda key: "",
    "forged": lambda key: make_token(b"another key, of 32 bytes or more", sun="ann", exp=later()),
    "unsigned": lambda key: make_token(b"", algorithm="none", sun="ann", exp=later()),
    "expired": lambda key: make_token(key, sun="ann", exp=int(time.time()) - 30),
}


@pytest.mark.parametrize("kind", BAD)
def test_without_a_good_token_nothing_is_done(rest, key, kind):
    bad = Rest(rest.url, BAD[kind](key), version=rest.version)
    with pytest.raises(Refused):
        bad.jobs()
    with pytest.raises(Refused):
        bad.submit("#!/bin/sh\ntrue", standard_output="/dev/null")
    with pytest.raises(CommandError):  # of slurmdbd 26.05 slurmrestd says only that it cannot connect
        bad.accounting()


def test_a_token_is_its_users_alone(resting, rest):
    """bob's token does not make a request ann's."""
    posing = Rest(rest.url, rest_client(resting, "bob").session.headers["X-SLURM-USER-TOKEN"], "ann", rest.version)
    with pytest.raises(Refused):
        posing.submit("#!/bin/sh\ntrue", standard_output="/dev/null")
    with pytest.raises(UsageError, match="has no user root"):
        rest_client(resting, "root")
