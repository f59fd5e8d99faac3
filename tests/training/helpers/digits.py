"""Made-up digits in MNIST's format: each class is a bright square in a place of its own, under noise."""

import random
import struct
import zlib

from mnist import data

TRAIN, TEST = 203, 37  # odd, so that 2 ranks do not divide them


def pixels_and_labels(count):
    """Pixels [count * 784] and one-hot labels [count * 10], as the package has them."""
    draw = random.Random(7)
    pixels, one_hot = bytearray(), bytearray()
    for _ in range(count):
        digit = draw.randrange(10)
        row, column = 4 + digit // 5 * 12, 2 + digit % 5 * 5
        for y in range(28):
            noise = bytearray(draw.randbytes(28)).translate(bytes(byte // 3 for byte in range(256)))
            if row <= y < row + 8:
                noise[column : column + 4] = bytes(255 - byte for byte in noise[:4])
            pixels += noise
        one_hot += bytes(digit == each for each in range(10))
    return bytes(pixels), bytes(one_hot)


def files(train=TRAIN, test=TEST):
    """The four files, by name."""
    return data.split(*pixels_and_labels(train + test), train)


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    for name, each in content.items():
        (folder / name).write_bytes(each)
    return folder


def png(pixels, width, filters=(0, 1, 2), kind=(8, 0, 0, 0, 0)):
    """A PNG of 8-bit grey; row i is filtered by filters[i % ...]."""
    filtered, above = bytearray(), bytes(width)
    for number, start in enumerate(range(0, len(pixels), width)):
        row, filter = pixels[start : start + width], filters[number % len(filters)]
        before = {0: bytes(width), 1: b"\0" + row[:-1], 2: above}.get(filter, bytes(width))
        filtered.append(filter)
        filtered += bytes((byte - other) & 255 for byte, other in zip(row, before, strict=True))
        above = row
    packed = zlib.compress(bytes(filtered))
    header = struct.pack(">II5B", width, len(pixels) // width, *kind)
    parts = [(b"IHDR", header), (b"IDAT", packed[:99]), (b"IDAT", packed[99:]), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    )
