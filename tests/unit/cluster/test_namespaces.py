"""Whether a machine lets containers make others, and what is said where it does not."""

import pytest

from slurmbed.cluster import namespaces
from slurmbed.errors import UsageError
from slurmbed.process import Result


def settings_of(folder, **values: str):
    for name, value in values.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"{value}\n")
    return folder


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("kernel__apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
        ("user__max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("kernel__unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user__max_user_namespaces", "96365", "Linux 5.11 or later"),
    ],
)
def test_the_setting_that_forbids_it_is_named(tmp_path, setting, value, told):
    assert told in namespaces.remedy(settings_of(tmp_path, **{setting: value}))


def test_a_machine_that_refuses_says_so_in_a_line(monkeypatch):
    said = "unshare: unshare failed: Operation not permitted\n"
    monkeypatch.setattr(namespaces, "run", lambda argv, **_: Result(tuple(argv), 1, "", said))
    with pytest.raises(UsageError, match=r"CONTAINERS=1: .*: unshare: unshare failed: Operation not permitted"):
        namespaces.check("image", apparmor=False)


def test_what_is_tried_has_no_right_but_the_profile(monkeypatch):
    tried = []
    monkeypatch.setattr(namespaces, "run", lambda argv, **_: tried.extend(argv) or Result(tuple(argv), 0, "", ""))
    namespaces.check("image", apparmor=True)
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--security-opt=apparmor=unconfined"} <= set(tried)
    assert any(word.startswith("--security-opt=seccomp=/") for word in tried)
    assert not {"--privileged", "--cap-add"} & set(tried)
