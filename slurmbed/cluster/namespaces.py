"""Whether this machine lets containers make user namespaces and mount in them, as containers in jobs do."""

from pathlib import Path

from slurmbed.engine.overlay import security_options
from slurmbed.errors import UsageError
from slurmbed.process import last_lines, run
from slurmbed.project import option

# With the least that a container can have: no capability, an ordinary user. An overlay in a user namespace takes
# Linux 5.11.
PROBE = """mount -t tmpfs none /mnt && mkdir /mnt/lower /mnt/upper /mnt/work /mnt/merged &&
mount -t overlay none -o lowerdir=/mnt/lower,upperdir=/mnt/upper,workdir=/mnt/work,userxattr /mnt/merged"""

SWITCHES = {
    "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    "kernel/unprivileged_userns_clone": ("0", "1"),
    "user/max_user_namespaces": ("0", "10000"),
}
"""Kernel setting to the value that forbids user namespaces, and one that allows them."""


def refusal(image: str, apparmor: bool) -> str:
    """Why containers of the image cannot have containers in them; "" if they can."""
    options = [f"--security-opt={each}" for each in ("no-new-privileges", *security_options(apparmor))]
    bare = ["docker", "run", "--rm", "--network=none", "--cap-drop=ALL", "--user=1000:1000", *options]
    probe = ["--entrypoint=unshare", image, "--user", "--map-root-user", "--mount", "sh", "-c", PROBE]
    tried = run([*bare, *probe], timeout=120)
    return "" if tried.ok else last_lines(tried.output, 1).strip() or "no user namespace can be made"


def remedy(settings: Path = Path("/proc/sys")) -> str:
    """What to set on this machine, as far as its settings tell."""
    for name, (forbids, allows) in SWITCHES.items():
        file = settings / name
        if file.is_file() and file.read_text().strip() == forbids:
            return f"sudo sysctl {name.replace('/', '.')}={allows}"
    return "Linux 5.11 or later, with user namespaces for every user"


def check(image: str, apparmor: bool) -> None:
    """UsageError where jobs can have no containers."""
    if reason := refusal(image, apparmor):
        asked = option("containers", True)
        raise UsageError(f"{asked}: this host does not allow user namespaces in containers: {reason}", remedy())
