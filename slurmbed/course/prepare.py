"""Data to train on, prepared by the workspace's own programs in a container, as the user that jobs run as.

Nothing of a workspace runs on the host, for every job may write there.
"""

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from slurmbed.cluster import host
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.plan import Choices
from slurmbed.errors import UsageError
from slurmbed.process import Result, last_lines, run

TIMEOUT = 600  # seconds, downloads included
INSIDE = "/workspace"
CA_INSIDE = "/run/ca.pem"
Record = TypeVar("Record", bound=BaseModel)
# How to reach the outside, as the host does; by name only, for a proxy's address may hold a password.
FROM_HOST = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL")


class TextRecord(BaseModel):
    """What workspace/data.py says of a text."""

    file: str
    name: str
    source: str
    characters: int

    @property
    def path(self) -> str:
        """The text's file, from the workspace."""
        return self.file.removeprefix(f"{INSIDE}/")


class DigitsRecord(BaseModel):
    """What workspace/mnist_data.py says of MNIST; numbers of images."""

    name: str
    source: str
    train: int
    test: int


def text(cluster: Cluster, file: str = "") -> TextRecord:
    """The text that data.py made ready: Shakespeare, or the host's ``file``, which it gets on its standard input.

    Raises:
        UsageError: there is none, with data.py's own words.
    """
    words = ["--text", "-", "--source", str(Path(file).resolve())] if file else []
    answer = in_container(cluster, ["data.py", *words], file)
    return parsed(TextRecord, answer, "there is no text to train on", "name a text with TEXT=file")


def digits(cluster: Cluster) -> DigitsRecord:
    """MNIST as mnist_data.py made it ready. UsageError, with its own words, if it is not to be had."""
    return parsed(DigitsRecord, in_container(cluster, ["mnist_data.py"]), "there is no MNIST to train on", "")


def parsed(kind: type[Record], answer: Result, reason: str, hint: str) -> Record:
    if not answer.ok:
        raise UsageError(reason, hint, last_lines(answer.stderr))
    try:
        return kind.model_validate_json(answer.stdout.splitlines()[-1])
    except (IndexError, ValidationError):
        details = last_lines(answer.output)
        raise UsageError(
            f"{reason}: its program printed no record", "restore it from slurmbed's own workspace", details
        ) from None


def in_container(cluster: Cluster, program: list[str], stdin: str = "") -> Result:
    """Run a program of the workspace, with the host's file ``stdin`` as its input.

    On the network that containers have; where that does not lead outside (asked of pip, not of the program, which may
    be anyone's), on the host's.
    """
    made = cluster.choices()
    start = partial(run_in_image, cluster.name, made)
    answer = start("bridge", ["python3", *program], stdin)
    if not answer.ok:
        pip = ["python3", "-I", "-m", "pip"]
        index = [*pip, "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest=/tmp", "pip"]
        if not start("bridge", index).ok and start("host", index).ok:
            answer = start("host", ["python3", *program], stdin)
    return answer


def run_in_image(cluster_name: str, made: Choices, network: str, words: list[str], stdin: str = "") -> Result:
    """``docker run WORDS`` on the cluster's node image, as the job user, with the workspace and a job's rights."""
    name = f"{cluster_name}-data-{os.getpid()}"
    ca_bundle = host.ca_bundle()
    argv = [
        *("docker", "run", "--rm", "--init", "--name", name, "--network", network),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--user", f"{made.job_uid}:{made.job_uid}"),
        *("--volume", f"{made.workspace}:{INSIDE}", "--workdir", INSIDE),
        *("--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *(word for variable in FROM_HOST for word in ("--env", variable)),
    ]
    if ca_bundle != os.devnull:
        argv += ["--volume", f"{ca_bundle}:{CA_INSIDE}:ro"]
        argv += [word for each in ("PIP_CERT", "SSL_CERT_FILE") for word in ("--env", f"{each}={CA_INSIDE}")]
    with open(stdin, "rb") if stdin else nullcontext() as file:
        more = ["--interactive"] if file else []
        try:
            return run([*argv, *more, made.node_image, *words], timeout=TIMEOUT, stdin=file)
        except BaseException:  # the docker command was ended, and the container goes on
            run(["docker", "rm", "--force", name], timeout=60)
            raise
