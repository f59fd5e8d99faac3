"""The client of slurmrestd, beside a server that answers what slurmrestd answered."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from slurmbed.errors import CommandError
from slurmbed.slurm.rest import Refused, Rest

PATHS = {f"/slurm/{version}/ping/": {} for version in ("v0.0.9", "v0.0.42", "v0.0.40")} | {"/slurmdb/v0.0.43/jobs/": {}}


class Server(ThreadingHTTPServer):
    """Answers by method and path; keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, str]] = {"GET /openapi/v3": (200, json.dumps({"paths": PATHS}))}
        self.asked: list[tuple[str, dict[str, str], bytes]] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = f"{self.command} {self.path}"
        self.server.asked.append((asked, dict(self.headers), body))
        status, text = self.server.answers.get(asked, (404, "no such path"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 (http.server's names)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def rest(server) -> Rest:
    return Rest(f"http://127.0.0.1:{server.server_port}/", "the-token", user="bob")


def test_the_newest_version_is_spoken_with_the_token_in_each_request(rest, server):
    assert rest.versions() == ["v0.0.9", "v0.0.40", "v0.0.42"]
    for answer, is_up in (('"pinged": "UP"', True), ('"pinged": "DOWN"', False), ('"responding": false', False)):
        server.answers["GET /slurm/v0.0.42/ping/"] = (200, f'{{"pings": [{{{answer}}}], "errors": []}}')
        assert rest.ping() is is_up
    for _, headers, _ in server.asked:
        assert (headers["X-SLURM-USER-TOKEN"], headers["X-SLURM-USER-NAME"]) == ("the-token", "bob")


def test_a_job_is_submitted_with_its_script_and_properties(rest, server):
    server.answers["POST /slurm/v0.0.42/job/submit"] = (200, '{"job_id": 7, "errors": []}')
    assert rest.submit("#!/bin/sh\ntrue", tasks=2) == "7"
    sent = json.loads(server.asked[-1][2])
    assert (sent["script"], sent["job"]["tasks"]) == ("#!/bin/sh\ntrue", 2)


@pytest.mark.parametrize(
    ("status", "text", "error", "reason"),
    [
        (401, "Authentication failure", Refused, "HTTP status 401: Authentication failure"),
        (511, '{"errors": [{"description": "Unable", "error": "Protocol"}]}', Refused, "511: Unable: Protocol"),
        (200, '{"errors": [], "status": [{"error": {"code": 2, "message": "Access denied"}}]}', Refused, "denied"),
        (500, '{"errors": [{"description": "Zero Bytes"}]}', CommandError, "HTTP status 500: Zero Bytes"),
        (500, '{"errors": [{"error": "Access/permission denied"}]}', Refused, "Access/permission denied"),
        (200, '{"errors": [{"error": "Invalid job id"}]}', CommandError, "Invalid job id"),
        (404, "", CommandError, "HTTP status 404: Not Found"),
    ],
)
def test_what_slurm_says_is_the_error(rest, server, status, text, error, reason):
    server.answers["DELETE /slurm/v0.0.42/job/7"] = (status, text)
    with pytest.raises(error) as raised:
        rest.cancel("7")
    assert type(raised.value) is error
    assert reason in str(raised.value)


def test_nobody_answers():
    with pytest.raises(CommandError, match=r"http://127\.0\.0\.1:9 does not answer"):
        Rest("http://127.0.0.1:9", "token").ping()


def test_this_machine_is_reached_without_a_proxy_and_the_ca_bundle_of_the_environment_counts(rest, server, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/the/bundle.pem")
    assert rest.versions()
    settings = rest.session.merge_environment_settings("https://slurm.example.org", {}, False, None, None)
    assert settings["verify"] == "/the/bundle.pem"
