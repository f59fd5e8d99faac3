"""Data prepared in a container: on which network, with which arguments, and what is made of the answer."""

import json
from pathlib import Path

import pytest

from slurmbed.cluster.plan import Choices
from slurmbed.course import data
from slurmbed.errors import UsageError
from slurmbed.process import Result

RECORD = {"file": "/workspace/data/hamlet.txt", "name": "hamlet", "source": "/home/ada/hamlet.txt", "characters": 4000}


class StandIn:
    """A cluster of which only its choices and its image are asked."""

    name = "here"

    def choices(self) -> Choices:
        return Choices(workspace=Path("/home/ada/workspace"), job_uid=1234)

    def node_image(self) -> str:
        return "slurmbed-node:of-the-cluster"


@pytest.fixture
def engine(monkeypatch):
    """A stand-in for docker run: engine(answer) -> what was run; answer(network, is_pip) -> ok, what it prints."""

    def answering(answer):
        runs = []

        def run(argv, *, stdin=None, **_):
            if argv[1] != "run":
                return Result(tuple(argv), 0, "", "")
            command = argv[argv.index("slurmbed-node:of-the-cluster") + 1 :]
            network = argv[argv.index("--network") + 1]
            runs.append((network, command, argv, stdin.read() if stdin else None))
            ok, printed = answer(network, "pip" in command)
            return Result(tuple(argv), 0 if ok else 1, printed if ok else "", "" if ok else printed)

        monkeypatch.setattr(data, "run", run)
        return runs

    return answering


def test_the_program_runs_as_the_job_user_with_no_rights_and_gets_the_file(engine, tmp_path):
    (tmp_path / "hamlet.txt").write_text("words")
    runs = engine(lambda network, is_pip: (True, f"noise\n{json.dumps(RECORD)}"))
    record = data.text(StandIn(), str(tmp_path / "hamlet.txt"))
    assert (record.name, record.path, record.characters) == ("hamlet", "data/hamlet.txt", 4000)
    ((network, command, argv, given),) = runs
    assert (network, given) == ("bridge", b"words")
    assert command == ["python3", "gpt/data.py", "--text", "-", "--source", str(tmp_path / "hamlet.txt")]
    options = " ".join(argv)
    assert "--user 1234:1234 --mount type=bind,source=/home/ada/workspace,target=/workspace" in options
    assert "--cap-drop ALL --security-opt no-new-privileges:true" in options


@pytest.mark.parametrize(
    ("bridge", "host", "networks"),
    [
        (False, True, ["bridge", "bridge", "host", "host"]),  # containers do not get outside, the host does
        (True, True, ["bridge", "bridge"]),  # they do: it is the program that fails, and it gets no more rights
        (False, False, ["bridge", "bridge", "host"]),  # nobody does
    ],
)
def test_the_hosts_network_is_for_where_containers_have_none(engine, bridge, host, networks):
    runs = engine(lambda network, is_pip: (is_pip and {"bridge": bridge, "host": host}[network], "no route"))
    with pytest.raises(UsageError, match=r"there is no MNIST to train on(.|\n)*no route"):
        data.digits(StandIn())
    assert [network for network, *_ in runs] == networks


@pytest.mark.parametrize("answer", ["", "no record", "{}", '{"file": 1}', json.dumps(RECORD | {"characters": "many"})])
def test_an_answer_that_is_no_record_is_refused(engine, answer):
    engine(lambda network, is_pip: (True, answer))
    with pytest.raises(UsageError, match="no text to train on: its program printed no record"):
        data.text(StandIn())
