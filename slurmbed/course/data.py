"""Prepare the data to train on, by the workspace's own programs, in a container, as the user that runs jobs.

Nothing of a workspace runs on the host, because every job may write there.
"""

import csv
import io
import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from slurmbed.cluster import host
from slurmbed.cluster.cluster import Cluster
from slurmbed.cluster.settings import Choices
from slurmbed.errors import UsageError
from slurmbed.process import Result, last_lines, run
from slurmbed.project import option

TIMEOUT = 600  # seconds, downloads included
INSIDE = "/workspace"
CA_INSIDE = "/run/ca.pem"
Record = TypeVar("Record", bound=BaseModel)
# Variables that say how the host reaches other machines. Docker takes them over by name, because a proxy's address may
# hold a password, which a command line would show.
FROM_HOST = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "PIP_INDEX_URL")


class TextRecord(BaseModel):
    """The record that workspace/gpt/data.py prints of a text."""

    file: str
    name: str
    source: str
    characters: int

    @property
    def path(self) -> str:
        """The path of the text's file from the workspace."""
        return self.file.removeprefix(f"{INSIDE}/")


class DigitsRecord(BaseModel):
    """The record that workspace/mnist/data.py prints of MNIST; ``train`` and ``test`` are numbers of images."""

    name: str
    source: str
    train: int
    test: int


def text(cluster: Cluster, file: str | None = None) -> TextRecord:
    """Have workspace/gpt/data.py prepare a text: Shakespeare, or the host's ``file``, read from standard input.

    Raises:
        UsageError: it failed; with the last lines of its output.
    """
    arguments = ["--text", "-", "--source", str(Path(file).resolve())] if file else []
    answer = in_container(cluster, ["gpt/data.py", *arguments], file or "")
    return parsed(TextRecord, answer, "there is no text to train on", f"name a text with {option('text', 'file')}")


def digits(cluster: Cluster) -> DigitsRecord:
    """Have workspace/mnist/data.py prepare MNIST. UsageError with the last lines of its output if it failed."""
    return parsed(DigitsRecord, in_container(cluster, ["mnist/data.py"]), "there is no MNIST to train on", "")


def parsed(kind: type[Record], answer: Result, reason: str, hint: str) -> Record:
    """The record on the last line of a program's output. UsageError for ``reason`` if there is none."""
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
    """Run a Python program of the workspace, with the host's file ``stdin`` as its standard input.

    It runs on Docker's bridge network. If it fails there, and pip reaches its index only on the host's network, it runs
    again on that. pip is asked, not the program: a job may have changed the program to get the host's network.
    """
    made = cluster.choices()
    start = partial(run_in_image, cluster.name, made, cluster.node_image())
    answer = start("bridge", ["python3", *program], stdin)
    if not answer.ok:
        pip = ["python3", "-I", "-m", "pip"]
        index = [*pip, "download", "--quiet", "--no-deps", "--no-cache-dir", "--dest=/tmp", "pip"]
        if not start("bridge", index).ok and start("host", index).ok:
            answer = start("host", ["python3", *program], stdin)
    return answer


def run_in_image(
    cluster_name: str, made: Choices, image: str, network: str, command: list[str], stdin: str = ""
) -> Result:
    """Run a command in a container of the cluster's node image: in the workspace, as the job user, with its rights."""
    name = f"{cluster_name}-data-{os.getpid()}"
    ca_bundle = host.ca_bundle()
    argv = [
        *("docker", "run", "--rm", "--init", "--name", name, "--network", network),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges:true", "--user", f"{made.job_uid}:{made.job_uid}"),
        *("--mount", bind(made.workspace, INSIDE), "--workdir", INSIDE),
        *("--env", "HOME=/tmp", "--env", "PYTHONDONTWRITEBYTECODE=1"),
        *(argument for variable in FROM_HOST for argument in ("--env", variable)),
    ]
    if ca_bundle != os.devnull:
        argv += ["--mount", bind(ca_bundle, CA_INSIDE, "readonly")]
        argv += ["--env", f"PIP_CERT={CA_INSIDE}", "--env", f"SSL_CERT_FILE={CA_INSIDE}"]
    with open(stdin, "rb") if stdin else nullcontext() as file:
        interactive = ["--interactive"] if file else []
        try:
            return run([*argv, *interactive, image, *command], timeout=TIMEOUT, stdin=file)
        except BaseException:  # the docker command has ended, but the container may still run
            run(["docker", "rm", "--force", name], timeout=60)
            raise


def bind(source: Path | str, target: str, *options: str) -> str:
    """A folder or file of the host for ``docker run --mount``, which reads a line of CSV: names may have colons."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(["type=bind", f"source={source}", f"target={target}", *options])
    return line.getvalue()
