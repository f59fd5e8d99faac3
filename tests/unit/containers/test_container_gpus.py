"""What a container gets of its node's GPUs, from the mounts of a node to which Docker gave one."""

import os

import pytest
from imagestore import gpus

LIBRARIES = ["libnvidia-ml.so.560.35.03", "libcuda.so.560.35.03", "libcudadebugger.so.560.35.03"]
# Mounts as NVIDIA's container runtime makes them. Devices and /proc/driver/nvidia are in each container anyway.
WITHOUT = """\
2190 1650 0:215 / / rw,relatime master:609 - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/diff,workdir=/work
2191 2190 0:219 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
2192 2190 0:220 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755,inode64
2203 2190 259:1 /var/lib/docker/containers/c1/hosts /etc/hosts rw,relatime - ext4 /dev/nvme0n1p1 rw,discard
"""
FILE = "1702 2190 259:1 {0} {0} ro,nosuid,nodev,relatime master:1 - ext4 /dev/nvme0n1p1 rw\n"
MOUNTINFO = (
    WITHOUT
    + "1701 2191 0:226 / /proc/driver/nvidia rw,nosuid,nodev,noexec,relatime - tmpfs tmpfs rw,mode=555,inode64\n"
    + FILE.format("/usr/bin/nvidia-smi")
    + FILE.format("/usr/bin/nvidia-cuda-mps-control")
    + "".join(FILE.format(f"/usr/lib/x86_64-linux-gnu/{name}") for name in LIBRARIES)
    + FILE.format("/usr/lib/firmware/nvidia/560.35.03/gsp_ga10x.bin")
    + """\
1707 2190 0:27 /nvidia-persistenced/socket /run/nvidia-persistenced/socket rw,nosuid,nodev,noexec - tmpfs tmpfs rw
1709 2192 0:5 /nvidiactl /dev/nvidiactl ro,nosuid,noexec,relatime - devtmpfs udev rw,size=8k,mode=755
1710 2192 0:5 /nvidia0 /dev/nvidia0 ro,nosuid,noexec,relatime - devtmpfs udev rw,size=8k,mode=755
"""
)


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A node with these mounts, below a folder."""
    for name, text in (("mountinfo", MOUNTINFO.replace(" /usr/", f" {tmp_path}/usr/")), ("gres.conf", "Name=gpu\n")):
        (tmp_path / name).write_text(text)
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    libraries.mkdir(parents=True)
    for name in LIBRARIES:
        (libraries / name).touch()
    for name, target in (
        ("libcuda.so.1", LIBRARIES[1]),
        ("libcuda.so", "libcuda.so.1"),
        ("libnvidia-ml.so.1", LIBRARIES[0]),
    ):
        (libraries / name).symlink_to(target)
    (libraries / "libnvidia-old.so.1").symlink_to("libnvidia-old.so.550")
    monkeypatch.setattr(gpus, "MOUNTS", str(tmp_path / "mountinfo"))
    monkeypatch.setattr(gpus, "EMULATED", str(tmp_path / "nvidia-smi"))
    monkeypatch.setattr(gpus, "GRES", str(tmp_path / "gres.conf"))
    return tmp_path


def test_the_drivers_files_are_found_among_the_mounts():
    libraries, programs = gpus.driver(MOUNTINFO)
    assert libraries == [f"/usr/lib/x86_64-linux-gnu/{name}" for name in LIBRARIES]
    assert programs == ["/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"]


def test_a_container_has_the_drivers_files_and_their_links(node):
    words, variables = gpus.of_node("/there", lambda path: True)
    text = " ".join(words)
    assert text.startswith("--tmpfs /there ")
    assert text.endswith(" --remount-ro /there")
    for name in LIBRARIES:
        assert f" --ro-bind {node}/usr/lib/x86_64-linux-gnu/{name} /there/lib64/{name} " in text
    assert f" --ro-bind {node}/usr/bin/nvidia-smi /there/bin/nvidia-smi " in text
    places = [i for i, word in enumerate(words) if word == "--symlink"]
    assert [(words[i + 2], words[i + 1]) for i in places] == [
        ("/there/lib64/libcuda.so", LIBRARIES[1]),
        ("/there/lib64/libcuda.so.1", LIBRARIES[1]),
        ("/there/lib64/libnvidia-ml.so.1", LIBRARIES[0]),
    ]
    assert variables == {"PATH": "/usr/local/nvidia/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}


def test_the_emulated_nvidia_smi_runs_in_an_image_with_python(node):
    (node / "mountinfo").write_text(WITHOUT)
    assert gpus.of_node("/there", lambda path: True) == ([], {}), "this node has none"
    (node / "script").write_text("#!/usr/bin/python3 -IS\nprint('GPU 0')\n")
    (node / "nvidia-smi").symlink_to(node / "script")
    assert gpus.of_node("/there", lambda path: False) == ([], {})
    words, variables = gpus.of_node("/there", lambda path: path == "/usr/local/bin/python3")
    script = words.pop(words.index("--file") + 1)
    assert " ".join(words) == (
        "--tmpfs /there --perms 0755 --file /there/bin/nvidia-smi "
        f"--ro-bind {node}/gres.conf /there/gres.conf --remount-ro /there"
    )
    assert variables == {"PATH": "/usr/local/nvidia/bin"}
    with os.fdopen(int(script)) as file:
        assert file.read() == "#!/usr/local/bin/python3 -IS\nprint('GPU 0')\n"


def test_the_drivers_libraries_come_first_and_its_programs_last():
    both = {"PATH": "/gpu/bin", "LD_LIBRARY_PATH": "/gpu/lib"}
    given = {"PATH": "/bin", "LD_LIBRARY_PATH": "/opt/lib", "A": "b"}
    assert gpus.added(given, both) == {"PATH": "/bin:/gpu/bin", "LD_LIBRARY_PATH": "/gpu/lib:/opt/lib", "A": "b"}
    assert gpus.added({}, both) == both
    assert gpus.added(given, {}) == given
