"""A thin client of slurmrestd: jobs, nodes and accounting over HTTP, with a user's token.

https://slurm.schedmd.com/rest_api.html
"""

import re
from collections.abc import Mapping
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from slurmbed.errors import CommandError
from slurmbed.slurm.client import deciding
from slurmbed.slurm.records import Job, JobAccounting, Node, parse_accounting, parse_jobs, parse_nodes
from slurmbed.wait import Pending, wait_until

PATIENCE = 60  # seconds for one answer
REFUSED = (401, 403, 511)  # HTTP statuses
LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


class Refused(CommandError):
    """Slurm rejected the token, or does not allow its user the request."""


class Direct(HTTPAdapter):
    """Requests without a proxy, whatever the environment says."""

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:  # type: ignore[override]
        return super().send(request, **{**options, "proxies": {}})


class Rest:
    """A client of slurmrestd, as one user.

    Args:
        url: like http://127.0.0.1:6820. Requests use the proxies and CA bundle (REQUESTS_CA_BUNDLE) of the environment,
            but no proxy for this machine.
        token: from `slurmbed token`, or `scontrol token`.
        user: the user; default: the one that the token names.
        version: version of the API, like v0.0.42; default: the newest that slurmrestd has.
    """

    def __init__(self, url: str, token: str, user: str = "", version: str = ""):
        self.url, self._version = url.rstrip("/"), version
        self.session = requests.Session()
        self.session.headers["X-SLURM-USER-TOKEN"] = token
        if user:
            self.session.headers["X-SLURM-USER-NAME"] = user
        for prefix in LOOPBACK:
            self.session.mount(prefix, Direct())

    def request(self, method: str, path: str, **options: Any) -> requests.Response:
        """Send any request; ``{version}`` in the path becomes the version: GET /slurm/{version}/diag/.

        Args:
            options: those of requests, like ``json`` and ``params``.

        Raises:
            Refused: Slurm rejected the token, or the user may not do this.
            CommandError: no answer, or an error; with Slurm's message.
        """
        version = self.version if "{version}" in path else ""
        asked = f"{method} {path.replace('{version}', version)}"
        try:
            answer = self.session.request(method, self.url + asked.partition(" ")[2], timeout=PATIENCE, **options)
        except requests.RequestException as error:
            raise CommandError(f"{asked}: {self.url} does not answer", "is the cluster running?", str(error)) from error
        if told := errors(answer):
            refused = answer.status_code in REFUSED or re.search("authentication|denied", told, re.IGNORECASE)
            raise (Refused if refused else CommandError)(f"{asked}: HTTP status {answer.status_code}: {told}")
        return answer

    def versions(self) -> list[str]:
        """The versions of the API that slurmrestd has, the newest last."""
        paths = self.request("GET", "/openapi/v3").json()["paths"]
        found = {match.group(1) for path in paths if (match := re.match(r"/slurm/(v\d+\.\d+\.\d+)/", path))}
        return sorted(found, key=lambda version: [int(number) for number in version[1:].split(".")])

    @property
    def version(self) -> str:
        if not self._version:
            self._version = self.versions()[-1]
        return self._version

    def ping(self) -> bool:
        """Whether slurmctld answers."""
        pings = self.request("GET", "/slurm/{version}/ping/").json()["pings"]
        return all(each.get("responding", each.get("pinged") == "UP") for each in pings)  # pinged: until v0.0.42

    def nodes(self) -> list[Node]:
        """Like Slurm.nodes."""
        return parse_nodes(self.request("GET", "/slurm/{version}/nodes/").text)

    def submit(self, script: str, **job: object) -> str:
        """Submit a job script. Returns the job's id.

        Args:
            script: its text, which begins with ``#!``.
            job: properties of a job under their names in the API, like ``tasks=2, standard_output="out.log"``. By
                default the job runs in /workspace, with a plain PATH.

        Raises:
            CommandError: Slurm refuses the job; with its message.
        """
        usual = {"current_working_directory": "/workspace", "environment": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
        body = {"script": script, "job": {**usual, **job}}
        return str(self.request("POST", "/slurm/{version}/job/submit", json=body).json()["job_id"])

    def jobs(self) -> list[Job]:
        """All jobs that slurmctld knows."""
        return parse_jobs(self.request("GET", "/slurm/{version}/jobs/").text)

    def job(self, job_id: str) -> Job:
        """Like Slurm.job, for jobs that slurmctld still knows."""
        return deciding(parse_jobs(self.request("GET", f"/slurm/{{version}}/job/{job_id}").text))

    def wait(self, job_id: str, timeout: float) -> Job:
        """Block until the job is over. Returns its record. WaitTimeout after ``timeout`` seconds."""

        def check() -> Job:
            job = self.job(job_id)
            if not job.is_over:
                raise Pending(f"{job.state} {job.reason}")
            return job

        return wait_until(check, what=f"job {job_id} is over", timeout=timeout)

    def cancel(self, job_id: str) -> None:
        self.request("DELETE", f"/slurm/{{version}}/job/{job_id}")

    def accounting(self, **asked: str) -> list[JobAccounting]:
        """slurmdbd's records of jobs; ``asked`` are query parameters of the API, like ``users="alice"``."""
        return parse_accounting(self.request("GET", "/slurmdb/{version}/jobs/", params=asked).text)


def errors(answer: requests.Response) -> str:
    """The errors in an answer; "" if there are none."""
    try:
        body = answer.json()
    except ValueError:
        body = None
    body = body if isinstance(body, Mapping) else {}
    told = [": ".join(filter(None, map(each.get, ("description", "error")))) for each in body.get("errors") or ()]
    # If a job cannot be cancelled, the answer has HTTP status 200 and no errors, but this.
    told += [each["error"]["message"] for each in body.get("status") or () if each["error"]["code"]]
    return "; ".join(told) or ("" if answer.ok else answer.text.strip()[:500] or answer.reason)
