"""Public ssh keys that the login node accepts: the host user's, and those of a configuration file."""

from collections.abc import Callable, Sequence
from pathlib import Path

from slurmbed.process import Result

ADD = """
cd "/home/$1/.ssh" && shift
for key; do grep -qsxF "$key" authorized_keys || echo "$key" >>authorized_keys; done
"""


def public_keys() -> list[str]:
    """The keys in all of the user's files ~/.ssh/*.pub, without certificates."""
    keys = []
    for path in sorted(Path("~/.ssh").expanduser().glob("*.pub")):
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        keys += [line.strip() for line in lines if line.startswith(("ssh-", "ecdsa-", "sk-")) and "-cert-" not in line]
    return list(dict.fromkeys(keys))


def let_in(
    as_user: Callable[[Sequence[str]], Result], user: str, keys: Sequence[str], say: Callable[[str], None]
) -> None:
    """Add the keys that ``user`` does not accept yet. If the contents of the home prevent that, ``say`` tells."""
    if keys and not as_user(["timeout", "5", "bash", "-ec", ADD, "bash", user, *keys]).ok:
        say(f"{user} does not accept your ssh keys: check /home/{user}/.ssh")
