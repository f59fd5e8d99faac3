"""Create or update the QOS and accounts of a configuration file with sacctmgr."""

from collections.abc import Callable, Iterator, Sequence

from slurmbed.process import Result
from slurmbed.spec.model import READY_QOS, USERS, Account, ClusterSpec, Qos

Runner = Callable[[Sequence[str]], Result]
"""Runs an argv as root where sacctmgr is."""


def apply(spec: ClusterSpec, as_root: Runner) -> None:
    """Create QOS, accounts and their users, or update them.

    Raises:
        CommandError: with sacctmgr's message.
    """
    if not spec.needs_accounts:
        return

    def ask(*arguments: str) -> set[str]:
        return set(as_root(["sacctmgr", "--noheader", "--parsable2", "show", *arguments]).check().stdout.split())

    known = ask("qos", "format=name")
    accounts = ask("account", "format=account")
    users = ask("association", "format=account,user")
    limits = (*qos_commands(spec, known), *account_commands(spec, accounts)) if spec.enforces_limits else ()
    for command in (*limits, *user_commands(spec, users)):
        as_root(["sacctmgr", "--immediate", "--quiet", *command]).check()


def qos_commands(spec: ClusterSpec, known: set[str]) -> Iterator[list[str]]:
    """All are made before any is set: one may preempt another that comes later."""
    every = [READY_QOS, *spec.qos]
    for qos in every:
        if qos.name not in known:
            yield ["add", "qos", qos.name]
    for qos in every:
        yield ["modify", "qos", f"name={qos.name}", "set", *settings(qos)]


def settings(qos: Qos) -> list[str]:
    values = {
        "Priority": qos.priority or 0,
        "Preempt": ",".join(qos.preempts),
        "PreemptMode": qos.preempt_mode or "cluster",
        "GraceTime": qos.grace_time or 0,
        **qos.limits.model_dump(exclude_none=True),
    }
    return [f"{key}={value}" for key, value in values.items()]


def account_commands(spec: ClusterSpec, accounts: set[str]) -> Iterator[list[str]]:
    every_qos = list(dict.fromkeys(["normal", *(qos.name for qos in spec.qos)]))
    yield qos_of("class", every_qos)
    for account in spec.accounts:
        if account.name not in accounts:
            yield ["add", "account", account.name, f"parent={account.parent}"]
        yield qos_of(account.name, account.qos or every_qos)
        yield from (["modify", "account", f"name={account.name}", "set", option] for option in account_options(account))


def user_commands(spec: ClusterSpec, known: set[str]) -> Iterator[list[str]]:
    """Put users into accounts. A user's first account is the default one; a user without an account is in `class`.

    The users of a new cluster, alice and bob, are removed if the file does not list them.

    Args:
        known: associations that exist already, as account|user.
    """
    names = [user.name for user in spec.users]
    for gone in (user.name for user in USERS if user.name not in names and f"class|{user.name}" in known):
        yield ["delete", "user", f"name={gone}"]
    for user in spec.users:
        listed = [account.name for account in spec.accounts if user.name in account.users]
        theirs = list(dict.fromkeys([*([user.account] if user.account else []), *listed])) or ["class"]
        for account in theirs:
            if f"{account}|{user.name}" not in known:
                yield ["add", "user", user.name, f"account={account}"]
        if theirs != ["class"]:
            yield ["modify", "user", f"name={user.name}", "set", f"DefaultAccount={theirs[0]}"]
        if "class" not in theirs and f"class|{user.name}" in known:
            yield ["delete", "user", f"name={user.name}", "account=class"]


def account_options(account: Account) -> list[str]:
    fairshare = [] if account.fairshare is None else [f"fairshare={account.fairshare}"]
    return [f"description={account.description or account.name}", *fairshare]


def qos_of(account: str, names: list[str]) -> list[str]:
    options = [f"QOS={','.join((*names, READY_QOS.name))}", f"DefaultQOS={names[0]}"]
    return ["modify", "account", f"name={account}", "set", *options]
