"""Layers that are unpacked: what overlay shows of them, and archives that want out."""

import io
import os
import stat
import subprocess
import tarfile

import pytest
from imagestore.errors import Refused
from imagestore.layer import unpack
from made import archive, special

LINK, HARD, PIPE = tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE


def unpacked(folder, *members):
    folder.mkdir()
    unpack(io.BytesIO(archive(*members)), folder, "layer")
    return folder


def test_files_folders_and_links_are_as_in_the_archive(tmp_path):
    root = unpacked(
        tmp_path / "root",
        ("./", None),
        ("usr/", None),
        ("usr/file", "content"),
        special("usr/program", tarfile.REGTYPE, mode=0o6755),
        special("closed", tarfile.DIRTYPE, mode=0o2500),
        ("closed/file", "inside"),
        special("bin", LINK, "/usr"),
        special("usr/twin", HARD, "usr/file"),
        special("usr/pipe", PIPE),
        special("dev/null", tarfile.CHRTYPE),
        ("no/folder/named", "1"),
    )
    assert (root / "usr/file").read_text() == "content"
    assert (root / "usr/file").stat().st_mtime == (root / "usr").stat().st_mtime == 1_000_000_000
    assert (root / "usr/twin").samefile(root / "usr/file")
    assert os.readlink(root / "bin") == "/usr"
    assert stat.S_ISFIFO((root / "usr/pipe").stat().st_mode)
    assert stat.S_IMODE((root / "usr/program").stat().st_mode) == 0o755, "neither setuid nor setgid"
    assert stat.S_IMODE((root / "closed").stat().st_mode) == 0o700, "its owner can remove it"
    assert (root / "no/folder/named").read_text() == "1"
    assert not (root / "dev/null").exists(), "a container has the node's /dev"


def test_a_later_member_takes_the_place_of_an_earlier_one(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("mine")
    root = unpacked(tmp_path / "root", special("a", LINK, str(outside)), ("a", "theirs"))
    assert (root / "a").read_text() == "theirs"
    assert outside.read_text() == "mine"


def test_overlay_shows_what_the_layers_mean(tmp_path, overlay, user_mounts):
    """The kernel is asked: it mounts the folders."""
    low = unpacked(
        tmp_path / "low",
        *(("gone", "1"), ("kept", "1"), ("d/gone", "1"), ("d/kept", "1"), ("opaque/gone", "1"), ("again/gone", "1")),
    )
    high = unpacked(
        tmp_path / "high",
        *((".wh.gone", ""), ("d/.wh.gone", ""), ("opaque/.wh..wh..opq", ""), ("opaque/new", "2")),
        *((".wh.again", ""), ("again/", None), ("again/new", "2"), (".wh..wh.plnk/1.2", "aufs")),
    )
    highest = unpacked(tmp_path / "highest", ("kept", "3"), ("opaque/last", "3"))
    script = (
        f"mount -t overlay -o userxattr,lowerdir={highest}:{high}:{low} overlay {tmp_path}/merged && "
        f"cd {tmp_path}/merged && find . -type f -printf '%P=' -exec cat {{}} \\; -printf '\\n'"
    )
    (tmp_path / "merged").mkdir()
    done = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, timeout=60)
    assert not done.returncode, done.stderr
    seen = sorted(done.stdout.split())
    assert seen == ["again/new=2", "d/kept=1", "kept=3", "opaque/last=3", "opaque/new=2"]
    from imagestore.merged import copy

    copy([str(low), str(high), str(highest)], str(tmp_path / "copy"))
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert sorted(f"{path.relative_to(tmp_path / 'copy')}={path.read_text()}" for path in copied) == seen


def sparse(name, size, *pieces):
    """A file with holes as GNU tar writes it: (START, CONTENT)."""
    numbers = [len(pieces), *(number for start, piece in pieces for number in (start, len(piece)))]
    head = "".join(f"{number}\n" for number in numbers).encode()
    content = head.ljust(-(-len(head) // 512) * 512, b"\0") + b"".join(piece for _, piece in pieces)
    member = special(name, tarfile.REGTYPE, mode=0o644, size=len(content))
    fields = {"major": "1", "minor": "0", "name": name, "realsize": str(size)}
    member.pax_headers = {f"GNU.sparse.{field}": value for field, value in fields.items()}
    return member, content


def test_a_file_with_holes_takes_no_more_room_than_its_content(tmp_path):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        member, content = sparse("disk", 1 << 33, (4096, b"low" * 100), (1 << 32, b"high"))
        tar.addfile(member, io.BytesIO(content))
    file.seek(0)
    (tmp_path / "root").mkdir()
    unpack(file, tmp_path / "root", "layer")
    disk = tmp_path / "root" / "disk"
    assert (disk.stat().st_size, disk.stat().st_blocks * 512 < 1 << 20) == (1 << 33, True)
    with disk.open("rb") as opened:
        assert opened.read(4098)[4094:] == b"\0\0lo"
        opened.seek(1 << 32)
        assert opened.read(5) == b"high\0"


def test_long_names_in_both_kinds_of_archive(tmp_path):
    name = "/".join(["d" * 200] * 4) + "/file"
    for kind in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=kind) as tar:
            tar.addfile(special(name, tarfile.REGTYPE))
            tar.addfile(special("twin", HARD, name))
        file.seek(0)
        root = tmp_path / str(kind)
        root.mkdir()
        unpack(file, root, "layer")
        assert (root / name).samefile(root / "twin")


def test_extended_attributes_stay_out(tmp_path):
    member = special("file", tarfile.REGTYPE)
    member.pax_headers = {"SCHILY.xattr.user.overlay.opaque": "y", "SCHILY.xattr.security.capability": "x"}
    root = unpacked(tmp_path / "root", member)
    assert os.listxattr(root / "file") == []


OUT = "outside/file"


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("../outside/file", "x")], "climbs out"),
        ([("a/../../outside/file", "x")], "climbs out"),
        ([("/outside/file", "x")], "absolute"),
        ([special("a", LINK, "../outside"), ("a/file", "x")], "link"),
        ([special("a", LINK, ".."), ("a/outside/file", "x")], "link"),
        ([special("a", LINK, "../outside"), ("a/", None), ("a/file", "x")], None),
        ([special("a", HARD, "../outside/file"), ("a", "x")], "climbs out"),
        ([special("a", HARD, "/etc/passwd")], "absolute"),
        ([special("b", LINK, "../outside"), special("a", HARD, "b/file"), ("a", "x")], "link"),
        ([special("a", HARD, "no")], "hard link"),
        ([special("a", HARD, "a")], "link"),
        ([special("b", LINK, "../outside"), ("b/.wh.file", "")], "link"),
        ([("..", None)], "climbs out"),
        ([(".wh...", "")], "mark of nothing"),
        ([(".wh.", "")], "mark of nothing"),
        ([(".wh.a/file", "x")], "below the mark"),
        ([special("a", tarfile.CHRTYPE, devmajor=1, devminor=3)], "device"),
        ([special("usr/sda", tarfile.BLKTYPE, devmajor=8)], "device"),
        ([special("dev", tarfile.CHRTYPE)], "device"),
        ([("a/", None), special("a", LINK, "../outside")], "folder and"),
        ([("a", "x"), ("a/b", "x")], "file"),
        ([("a" * 300, "x")], "too long"),
    ],
)
def test_an_archive_that_wants_out_is_refused_and_writes_nothing_there(tmp_path, members, reason):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("mine")
    if reason:
        with pytest.raises(Refused, match=reason) as refused:
            unpacked(tmp_path / "root", *members)
        assert "\n" not in str(refused.value)
    else:
        unpacked(tmp_path / "root", *members)
    assert [path.name for path in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "root"]


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive" * 100, archive(("a", "x" * 5000))[:1500], b"\0" * 100, b"\xff" * 1024],
    ids=["nothing", "text", "cut", "short", "ones"],
)
def test_what_is_no_archive_is_refused(tmp_path, content):
    with pytest.raises(Refused, match=r"no archive|ends"):
        unpack(io.BytesIO(content), tmp_path, "layer 1 of 1")


def test_handles_do_not_leak(tmp_path):
    before = os.listdir("/proc/self/fd")
    unpacked(tmp_path / "root", *((f"{i}/{i}/{i}", "x") for i in range(50)))
    with pytest.raises(Refused):
        unpacked(tmp_path / "other", ("a/b/c", "x"), ("../x", "x"))
    assert len(os.listdir("/proc/self/fd")) == len(before)
