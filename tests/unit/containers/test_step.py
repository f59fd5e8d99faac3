"""What bubblewrap is told for a step's container."""

import os
import pwd

import pytest
import step
from imagestore.errors import Refused


def image(folder, **files):
    """The folder of an image in a store, with one empty layer."""
    (folder / "layer").mkdir(parents=True)
    for name in ("env", "entrypoint", "cmd", "workdir", "user"):
        (folder / name).write_text(files.get(name, ""))
    (folder / "layers").write_text(f"{folder}/layer\n")
    return str(folder)


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Call ``start``; the words of bubblewrap and its environment instead of bubblewrap."""
    folder = image(tmp_path / "image", env="CARGO=bricks\0PATH=/bin\0", workdir="/harbour", entrypoint="/entry\0-v\0")
    monkeypatch.setattr(step, "HOLDER", "/dev/null")
    monkeypatch.setattr("imagestore.pull.pull", lambda name: folder)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    told = {}
    monkeypatch.setattr(os, "execvpe", lambda program, words, environment: told.update(words=words, env=environment))

    def start(**asked):
        step.start({"prolog": "", "image": "ship", **{name.replace("_", "-"): text for name, text in asked.items()}})
        return told["words"], told["env"]

    return start


def after(words, *option):
    """The word after this run of words."""
    places = [i for i in range(len(words)) if tuple(words[i : i + len(option)]) == option]
    return words[places[0] + len(option)] if places else None


def test_a_container_is_the_layers_and_what_is_above_them(started, tmp_path):
    words, environment = started()
    assert after(words, "--overlay-src") == f"{tmp_path}/image/layer"
    assert after(words, "--tmp-overlay") == "/"
    assert after(words, "--chdir") == "/harbour"
    assert words[words.index("--") + 1 :] == [words[-1]]
    assert words[-1].startswith("/proc/self/fd/")
    assert environment["CARGO"] == "bricks"
    assert "--uid" not in words
    assert "--remount-ro" not in words


def test_switches_change_their_part(started):
    words, environment = started(remap_root="", readonly="", entrypoint="", workdir="/tmp", mounts="/a:/b")
    assert after(words, "--uid") == "0"
    assert environment["HOME"] == "/root"
    assert words[words.index("--") + 1 : -1] == ["/entry", "-v"]
    assert after(words, "--chdir") == "/tmp"
    assert words.index("--remount-ro") > words.index("/b"), "mount points are made before"


def test_a_kept_container_is_its_first_image_whatever_is_asked_for_later(started, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    words, _ = started(kept=str(kept), name="kept")
    assert after(words, "--overlay", f"{kept}/upper", f"{kept}/work") == "/"
    other = image(tmp_path / "other")
    (kept / "image").write_text(other)
    words, _ = started(kept=str(kept), name="kept")
    assert after(words, "--overlay-src") == f"{other}/layer"


def test_a_step_that_joins_has_its_own_jobs_variables(started, tmp_path, monkeypatch):
    prolog = tmp_path / "prolog"
    prolog.write_text("#!/bin/sh\necho export SLURM_TMPDIR=/of/7\necho unset SECRET\n")
    prolog.chmod(0o755)
    kept = tmp_path / "kept"
    started(kept=str(kept), mounts="/a:/b")
    (kept / "running").write_bytes(b"/harbour\0CARGO=bricks\0SLURM_TMPDIR=/of/6\0SECRET\0\0 12 5 6 99\n")
    monkeypatch.setenv("SLURM_TMPDIR", "/of/7")
    monkeypatch.setenv("SECRET", "x")
    asked = {"prolog": str(prolog), "kept": str(kept)}
    folder, *variables = step.joined({**asked, "mounts": "/a:/b"})
    assert folder == "/harbour"
    assert {"CARGO=bricks", "SLURM_TMPDIR=/of/7", "SLURM_JOB_ID=7"} <= set(variables)
    assert not any(each.startswith("SECRET") for each in variables)
    monkeypatch.setenv("CARGO", "sand")
    assert "CARGO=sand" in step.joined({**asked, "env": "CARGO"})
    assert step.joined({**asked, "workdir": "/tmp"})[0] == "/tmp"
    for option in ({"mounts": "/a:/c"}, {"readonly": ""}):
        with pytest.raises(Refused, match=f"--container-{next(iter(option))}.*: the container runs already"):
            step.joined({**asked, **option})


def test_a_name_that_nobody_has_is_said(tmp_path):
    with pytest.raises(Refused, match="no container kept is kept on"):
        step.image({"name": "kept", "kept": str(tmp_path)})


def test_a_place_that_takes_no_file_is_said_before_the_work_is_done(started, tmp_path):
    assert started(save=f"{tmp_path}/saved.sqsh")
    for place in (f"{tmp_path}/no/saved.sqsh", str(tmp_path)):
        with pytest.raises(Refused, match=f"--container-save={place}: you cannot"):
            started(save=place)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("/a:/b", ["--bind", "/a", "/b"]),
        ("/a", ["--bind", "/a", "/a"]),
        ("/a:/b:ro", ["--ro-bind", "/a", "/b"]),
        ("/a:/b:ro+rprivate,./c:/d:rw", ["--ro-bind", "/a", "/b", "--bind", "./c", "/d"]),
        ("/a:/b:nosuid+nodev+noexec+x-create=dir", ["--bind", "/a", "/b"]),
        ("tmpfs:/x", ["--tmpfs", "/x"]),
        ("tmpfs:/x:ro+nosuid", ["--tmpfs", "/x", "--remount-ro", "/x"]),
        ("./tmpfs:/x", ["--bind", "./tmpfs", "/x"]),
        ("/dev/null:/x", ["--dev-bind", "/dev/null", "/x"]),
        ("/dev/null:/x:ro", ["--dev-bind", "/dev/null", "/x"]),
        ("/dev:/x", ["--dev-bind", "/dev", "/x"]),
        ("/dev:/x:ro", ["--ro-bind", "/dev", "/x"]),
        ("", []),
    ],
)
def test_mounts(asked, words):
    assert step.mounts(asked) == words


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("/a:b", "'b' is no absolute path"),
        ("tmpfs", "'tmpfs' is no absolute path"),
        ("/c,/a:../b:ro", "/a:../b:ro: '../b' is no absolute path"),
        (":/b", "write SRC:DST"),
        ("umount:/b", "write SRC:DST"),
        ("/a:/b:exec", "flag 'exec'"),
        ("/a:/b:ro:rw", "flag 'ro:rw'"),
    ],
)
def test_what_is_no_mount_is_refused(asked, said):
    with pytest.raises(Refused, match="container-mounts") as refused:
        step.mounts(asked)
    assert said in str(refused.value)


def test_the_image_has_precedence_but_for_the_names_that_are_kept():
    job, of_image = {"A": "job", "B": "job", "SLURM_PROCID": "3"}, ["A=image", "B=image", "C=image=1"]
    assert step.merged(job, of_image, "") == {"A": "image", "B": "image", "C": "image=1", "SLURM_PROCID": "3"}
    assert step.merged(job, of_image, "B,C") == {"A": "image", "B": "job", "C": "image=1", "SLURM_PROCID": "3"}


def test_where_the_job_has_no_path_there_is_one(started, monkeypatch):
    """As with `--export=NONE`; the image's goes before it."""
    monkeypatch.setenv("PATH", "/job")
    assert step.job_with({})["PATH"] == "/job"
    monkeypatch.delenv("PATH")
    assert step.job_with({})["PATH"].startswith("/usr/local/sbin:")
    assert started()[1]["PATH"] == "/bin"


def test_apt_works_for_a_user_who_is_called_root(started, tmp_path):
    setting = "/etc/apt/apt.conf.d/90-without-sandbox"
    assert setting not in started(remap_root="")[0], "an image without apt"
    (tmp_path / "image/layer/etc/apt/apt.conf.d").mkdir(parents=True)
    assert setting not in started()[0]
    words, _ = started(remap_root="")
    with os.fdopen(int(words[words.index(setting) - 1])) as file:
        assert file.read() == 'APT::Sandbox::User "root";\n'


def test_the_task_prolog_adds_and_takes_away_variables(tmp_path):
    program = tmp_path / "prolog"
    program.write_text("#!/bin/sh\necho export A=1=2\necho unset B\necho print hello\nexit ${STATUS:-0}\n")
    program.chmod(0o755)
    job = {"PATH": os.environ["PATH"], "B": "here"}
    assert step.of_prolog(job, str(program)) == {"A": "1=2", "B": None}
    assert step.of_prolog(job, "") == {}
    with pytest.raises(Refused, match="status 3"):
        step.of_prolog({**job, "STATUS": "3"}, str(program))


def test_the_user_has_a_name_in_the_container(tmp_path):
    (tmp_path / "low" / "etc").mkdir(parents=True)
    (tmp_path / "low" / "etc" / "users").write_text("root:x:0:0::/:/bin/sh")
    (tmp_path / "top" / "etc").mkdir(parents=True)
    (tmp_path / "top" / "etc" / "passwd").symlink_to("/etc/users")
    entry = pwd.struct_passwd(("ann", "*", 4711, 4711, "", "/home/ann", "/bin/bash"))
    words = step.known_user([str(tmp_path / "low"), str(tmp_path / "top")], entry)
    assert words[2::5] == ["--file", "--file"]
    with os.fdopen(int(words[3])) as passwd, os.fdopen(int(words[8])) as group:
        assert passwd.read() == "root:x:0:0::/:/bin/sh\nann:x:4711:4711::/home/ann:/bin/sh\n"
        assert group.read() == "ann:x:4711:\n"
    (tmp_path / "top" / "etc" / "passwd").unlink()
    (tmp_path / "top" / "etc" / "passwd").write_text("me:x:4711:4711::/:/bin/sh\n")
    assert "/etc/passwd" not in step.known_user([str(tmp_path / "low"), str(tmp_path / "top")], entry)


def test_what_slurm_made_for_the_step_is_there(tmp_path):
    spool, temporary = tmp_path / "spool", tmp_path / "tmp"
    for folder in ("spool/job00007", "spool/pmix.7.1", "spool/pmix.7.2", "tmp/spmix_appdir_ann_7.1", "tmp/other"):
        (tmp_path / folder).mkdir(parents=True)
    environment = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}
    assert step.made_by_slurm(environment, spool, temporary) == [
        f"{spool}/job00007",
        f"{spool}/pmix.7.1",
        f"{temporary}/spmix_appdir_ann_7.1",
    ]
