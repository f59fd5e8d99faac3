"""The gateway to the engine: what it makes of the SDK's answers and errors, without an engine."""

import socket
import struct
import threading
from contextlib import nullcontext
from types import SimpleNamespace

import docker
import pytest

from slurmbed.engine.client import Engine, RunningCommand, endpoint, output_of
from slurmbed.errors import CommandError, SlurmbedError

TYPED = ("docker", "exec", "--user", "alice", "c-login-1", "sinfo")


def running(chunks: list[tuple], status: int | None = 0, timeout: float = 60) -> RunningCommand:
    """A command whose output comes in these (standard output, standard error) pieces."""
    api = SimpleNamespace(exec_inspect=lambda _: {"ExitCode": status})
    engine = SimpleNamespace(api=api, explained=lambda _: nullcontext())
    return RunningCommand(engine, TYPED, "id", iter(chunks), timeout)


def test_lines_come_whole_however_the_engine_cuts_them():
    command = running([(b"one\ntw", None), (None, b"oops\n"), (b"o\n", None), (b"rest", None)])
    assert list(command.lines()) == ["one", "two"]
    result = command.result()
    assert (result.stdout, result.stderr, result.returncode) == ("one\ntwo\nrest", "oops\n", 0)
    assert result.command == "docker exec --user alice c-login-1 sinfo"


def frame(kind: int, content: bytes) -> bytes:
    return struct.pack(">BxxxL", kind, len(content)) + content


@pytest.mark.parametrize("cut", [0, 3, 1000])
def test_output_that_comes_with_the_answers_headers_is_not_lost(cut):
    """An engine on a busy machine sends both in one packet; ``cut`` bytes of the output come so, the rest later."""
    headers = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    output = frame(1, b"one\n") + frame(2, b"oops\n") + frame(1, b"two\n")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                received = b""
                while not received.endswith(b"}"):  # the request's body
                    received += connection.recv(4096)
                connection.sendall(headers + output[:cut])
                connection.sendall(output[cut:])

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        api = docker.APIClient(f"tcp://127.0.0.1:{server.getsockname()[1]}", version="1.41", timeout=30)
        assert list(output_of(api, "id")) == [(b"one\n", None), (None, b"oops\n"), (b"two\n", None)]
        thread.join(30)


def test_a_command_that_was_ended_for_its_time_limit_is_an_error_with_its_last_lines():
    command = running([(b"still at it\n", None)], status=124, timeout=0)
    list(command.lines())
    with pytest.raises(CommandError, match=r"timed out after 0 s: docker exec(.|\n)*still at it"):
        command.result()


def test_a_command_with_that_exit_status_of_its_own_is_none():
    command = running([], status=124)
    list(command.lines())
    assert command.result().returncode == 124


class Refusing:
    """An API whose every call fails."""

    def __init__(self, error: Exception):
        self.error = error

    def __getattr__(self, name: str):
        def call(*_, **__):
            raise self.error

        return call


@pytest.fixture
def engine(monkeypatch):
    """engine(error): connected, and then refused everything."""

    def engine(error: Exception) -> Engine:
        monkeypatch.setattr(docker, "APIClient", lambda **_: Refusing(error))
        return Engine()

    return engine


def test_a_refusal_is_said_in_the_engines_words(engine):
    gone = docker.errors.NotFound("404", explanation="No such container: c-db-1")
    with pytest.raises(CommandError, match="docker logs c-db-1: No such container"):
        engine(gone).logs("c-db-1", 8)


def test_what_is_gone_already_need_not_be_removed(engine):
    engine(docker.errors.NotFound("404")).remove_containers(["c-db-1"])


def test_an_engine_that_is_not_there_is_said_in_a_line(monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    with pytest.raises(
        SlurmbedError, match=r"^DOCKER_HOST=tcp://127.0.0.1:9 does not answer\n(.|\n)*unset DOCKER_HOST"
    ):
        Engine()


def test_the_engine_is_the_one_of_the_docker_command(monkeypatch, tmp_path):
    """DOCKER_HOST comes before the context in use, and that before the usual socket."""
    monkeypatch.setenv("DOCKER_HOST", "unix:///there.sock")
    assert endpoint() == "unix:///there.sock"
    monkeypatch.delenv("DOCKER_HOST")
    context = SimpleNamespace(Host="unix:///desktop.sock")
    monkeypatch.setattr("docker.context.ContextAPI.get_current_context", lambda: context)
    assert endpoint() == "unix:///desktop.sock"
