"""When a cluster is ready: all nodes work, a job ran on them as the unprivileged user, and accounting has it."""

import json
from collections.abc import Callable, Iterator

from slurmbed.engine.client import Engine
from slurmbed.engine.compose import container_name
from slurmbed.engine.overlay import REST, SERVICES
from slurmbed.engine.snapshot import REST_PORT_INSIDE, Container
from slurmbed.errors import CommandError, NotReady, WaitTimeout
from slurmbed.process import last_lines
from slurmbed.project import command
from slurmbed.slurm.node_states import NODE_STATES
from slurmbed.slurm.records import Node, parse_nodes
from slurmbed.wait import Pending, wait_until

LATE, IN_VAIN = 1, 2  # exit statuses of scripts/wait-ready
PUT_BACK = "as root, put a node back into service: scontrol update NodeName=.. State=RESUME"
ENDED = ("exited", "dead", "restarting")


def wait_ready(
    engine: Engine, name: str, user: str, nodes: int, qos: str = "", reached: Callable[[str], None] = lambda _: None
) -> list[Node]:
    """Block until the cluster ``name`` is ready. One command in the cluster waits; the engine reports what ended.

    Args:
        user: the user of the jobs that prove it.
        qos: the QOS of these jobs, if users have limits.
        reached: called with each stage: user, controller, nodes, job, accounting.

    Returns:
        All node records, as they were when the nodes worked.

    Raises:
        NotReady: a container ended, or the jobs did not run as asked.
        WaitTimeout: with what was missing last.
    """
    seconds = 120 + 2 * nodes
    ended: list[str] = []
    argv = ["wait-ready", user, str(nodes), str(seconds), json.dumps(NODE_STATES), *([qos] if qos else [])]
    running = None

    def died(container: str) -> None:
        if container in wanted:
            ended.append(container)
            if running:
                running.stop()

    services = (*SERVICES, *(f"node-{number}" for number in range(1, nodes + 1)))
    wanted = {container_name(name, each) for each in services}
    with engine.watched(name, died):
        check_containers([each for each in map(Container.read, engine.containers()) if each.name in wanted])
        try:
            running = engine.start(container_name(name, "login"), argv, timeout=seconds + 60)
        except CommandError as error:  # it has ended since, and may be about to start again
            raise NotReady("ended while the cluster started: login", "", str(error)) from None
        told = list(stages(running.lines(), reached))
        if ended:
            raise NotReady(f"ended while the cluster started: {', '.join(dict.fromkeys(ended))}")
    done = running.result()
    if done.returncode == IN_VAIN:
        raise NotReady(told[-1], PUT_BACK, last_lines(done.stderr))
    if done.returncode == LATE:
        status = told[-1] if told else "none"
        reason = f"the cluster is not ready after {seconds} s; last status: {status}"
        raise WaitTimeout(reason, f"see: {command('logs', name=name)}", last_lines(done.stderr))
    if not done.ok:  # it ended with its container, of which the engine may tell later
        raise NotReady("ended while the cluster started: login", "", last_lines(done.output))

    return parse_nodes(told[-1])


def wait_for_accounting(engine: Engine, name: str) -> None:
    """Block until slurmctld and slurmdbd answer sacctmgr. WaitTimeout after four minutes."""

    def check() -> None:
        argv = ["timeout", "10", "sacctmgr", "--noheader", "show", "cluster"]
        answered = engine.exec(container_name(name, "slurmctld"), argv)
        if not answered.ok:
            raise Pending(" ".join(answered.output.split())[-200:] or "no answer")

    wait_until(check, what="accounting answers", timeout=240, hint=f"see: {command('logs', name=name)}")


def wait_for_rest(engine: Engine, name: str) -> None:
    """Block until slurmrestd listens. WaitTimeout after two minutes."""

    def check() -> None:
        argv = ["bash", "-c", f"exec 3<>/dev/tcp/{REST}/{REST_PORT_INSIDE}"]
        if not engine.exec(container_name(name, "slurmctld"), argv, timeout=10).ok:
            raise Pending("its port is closed")

    wait_until(check, what=f"{REST} listens", timeout=120, hint=f"see: {command('logs', name=name)}")


def stages(lines: Iterator[str], reached: Callable[[str], None]) -> Iterator[str]:
    """What scripts/wait-ready prints: each condition that it waits for, and at last the node records, or the reason why
    the cluster will never be ready.
    """
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:  # the engine could not start it
            told = {"waiting": line}
        if "reached" in told:
            reached(told["reached"])
        else:
            yield told.get("waiting") or told.get("never") or json.dumps(told)


def check_containers(containers: list[Container]) -> None:
    """NotReady if one has ended, or the engine is about to start it again: waiting longer would not help."""
    ended = [f"{each.service}: {each.status}" for each in containers if each.state in ENDED]
    if ended:
        raise NotReady(", ".join(ended))
