"""The host user's ssh keys, for alice on the login node."""

from collections.abc import Callable, Sequence
from pathlib import Path

from slurmbed.process import Result

ADD = """
cd ~alice/.ssh
for key; do grep -qsxF "$key" authorized_keys || echo "$key" >>authorized_keys; done
"""


def public_keys() -> list[str]:
    """The keys in all of the user's files ~/.ssh/*.pub; certificates are none."""
    keys = []
    for path in sorted(Path("~/.ssh").expanduser().glob("*.pub")):
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            continue
        keys += [line.strip() for line in lines if line.startswith(("ssh-", "ecdsa-", "sk-")) and "-cert-" not in line]
    return list(dict.fromkeys(keys))


def let_in(as_alice: Callable[[Sequence[str]], Result], keys: Sequence[str], say: Callable[[str], None]) -> None:
    """Add the keys that alice does not accept yet. What her home holds may be in the way: that is said."""
    if keys and not as_alice(["timeout", "5", "bash", "-ec", ADD, "bash", *keys]).ok:
        say("alice does not accept your ssh keys: check /home/alice/.ssh")
