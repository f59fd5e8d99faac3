"""A disk of 1 MB that is full, where users may mount one: one line says so, and nothing half-made is left."""

import os
import subprocess

import pytest
from made import PROGRAMS, Image, archive, squashfs

BIG = 3_000_000


@pytest.fixture
def small(user_mounts, command, tmp_path):
    """Run lines of shell with the disk in $SMALL: (output, errors). `images` and `enroot` are the two programs."""
    words, env = command
    folder = tmp_path / "small"
    folder.mkdir()
    python = " ".join(words[:-1])
    functions = (
        f'images() {{ {python} {PROGRAMS}/container-image "$@"; }}; enroot() {{ {python} {PROGRAMS}/enroot "$@"; }}'
    )

    def small(lines, **more):
        script = f"{functions}\nmount -t tmpfs -o size=1m small $SMALL\n{lines}"
        done = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", script],
            env={**env, "SMALL": str(folder), **more},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        return done.stdout, done.stderr

    return small


@pytest.fixture
def name(registry):
    """The image a:1, of 3 MB; a:small is of some bytes."""
    registry.push("a", "1", Image(archive(("a", "1")), archive(("b", os.urandom(BIG)))))
    registry.push("a", "small", Image(archive(("a", "1"))))
    return f"127.0.0.1:{registry.port}/a:1"


def test_a_pull(small, name, tmp_path):
    folder = f"{tmp_path}/small"
    output, errors = small(f"images pull {name}; echo status $?; ls -A $SMALL/*", CONTAINER_IMAGES=folder)
    assert errors == f"container-image: {name}: No space left on device in {folder}\n"
    status, *kept = output.splitlines()
    assert status == "status 1"
    assert not [line for line in kept if line and not line.endswith((":", "/lock"))]


def test_what_makes_room_needs_none(small, name, tmp_path):
    """The note in the lock file has no room, either."""
    name = name.replace("a:1", "a:small")
    lines = f"""
images pull {name} >/dev/null
: >$SMALL/lock
cat /dev/zero >$SMALL/fill 2>/dev/null
images remove {name}
echo status $?
ls $SMALL/images $SMALL/l
"""
    output, errors = small(lines, CONTAINER_IMAGES=f"{tmp_path}/small")
    assert (output.splitlines()[0], errors) == ("status 0", "")
    assert not [line for line in output.splitlines()[1:] if line and not line.endswith(":")]


@squashfs
def test_a_save(small, run, name, tmp_path):
    assert run("pull", name)[0] == 0
    output, errors = small(
        f"echo old >$SMALL/a.sqsh; images save {name} $SMALL/a.sqsh; cat $SMALL/a.sqsh; ls -A $SMALL"
    )
    assert output == "old\na.sqsh\n"
    assert errors.startswith(f"container-image: {tmp_path}/small/a.sqsh: ")
    assert errors.endswith("No space left on device\n")
    assert errors.count("\n") == 1


@squashfs
def test_a_bundle(small, run, name, tmp_path):
    assert run("pull", name)[0] == 0
    output, errors = small(f"images bundle {name} $SMALL/bundle; ls -A $SMALL")
    assert (output, errors) == ("", f"container-image: {tmp_path}/small/bundle: No space left on device\n")


@squashfs
@pytest.mark.parametrize("option", ["", "--force"])
def test_enroot_create(small, run, name, tmp_path, option):
    assert run("save", name, tmp_path / "a.sqsh")[0] == 0
    before = "mkdir $SMALL/a;" if option else ""
    output, errors = small(
        f"{before} enroot create {option} a.sqsh; echo status $?; ls -A $SMALL", ENROOT_DATA_PATH=f"{tmp_path}/small"
    )
    assert output == ("status 1\na\n" if option else "status 1\n"), "what was there stays"
    assert errors.splitlines()[0] == "[INFO] Extracting squashfs filesystem..."
    assert errors.endswith("No space left on device\n")
    assert errors.count("\n") == 2
