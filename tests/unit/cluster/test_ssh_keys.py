"""Which of the user's files are keys to let in."""

from slurmbed.cluster.ssh_keys import let_in, public_keys
from slurmbed.process import Result


def test_all_of_the_users_public_keys_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert public_keys() == []
    (tmp_path / ".ssh").mkdir()
    files = {
        "id_rsa.pub": "ssh-rsa AAAA me\n",
        "work.pub": "# at work\necdsa-sha2-nistp256 BBBB me\n",
        "work_again.pub": "ecdsa-sha2-nistp256 BBBB me\n",
        "id_rsa-cert.pub": "ssh-rsa-cert-v01@openssh.com CCCC me\n",
        "id_rsa": "secret",
    }
    for name, text in files.items():
        (tmp_path / ".ssh" / name).write_text(text)
    assert public_keys() == ["ssh-rsa AAAA me", "ecdsa-sha2-nistp256 BBBB me"]


def test_what_is_in_the_way_is_said():
    said: list[str] = []
    for keys in ([], ["ssh-rsa AAAA me"]):
        let_in(lambda argv: Result(argv, 1, "", ""), "alice", keys, said.append)
    assert said == ["alice does not accept your ssh keys: check /home/alice/.ssh"]
