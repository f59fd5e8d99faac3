"""Streams that are read once, front to back: checked against their digest, and decompressed."""

import hashlib
import zlib

from imagestore.errors import Refused

PIECE = 1 << 18
SMALL = 4 << 20  # a manifest or a configuration


def digest_of(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class Checked:
    """Reads `stream`, which must have this digest and, if it is known, this size. Its reader calls finish()."""

    def __init__(self, stream, digest, what, size=None):
        self.stream, self.digest, self.what, self.size = stream, digest, what, size
        self.seen, self.hash = 0, hashlib.sha256()

    def read(self, length=PIECE):
        piece = self.stream.read(length)
        self.seen += len(piece)
        if self.size is not None and self.seen > self.size:
            raise Refused(f"{self.what} is longer than the {self.size} bytes that its manifest says")
        self.hash.update(piece)
        return piece

    def finish(self):
        while self.read():
            pass
        if self.size is not None and self.seen < self.size:
            raise Refused(f"{self.what} ended after {self.seen} of {self.size} bytes")
        found = f"sha256:{self.hash.hexdigest()}"
        if found != self.digest:
            raise Refused(f"{self.what} has the digest {found}, not {self.digest}")


class Pieces:
    """What a generator of bytes gives, as a stream. A piece may be shorter than was asked for; b"" is the end."""

    def __init__(self, pieces):
        self.pieces, self.rest = iter(pieces), b""

    def read(self, length=PIECE):
        while not self.rest:
            try:
                self.rest = next(self.pieces)
            except StopIteration:
                return b""
        piece, self.rest = self.rest[:length], self.rest[length:]
        return piece


def small(stream, digest, what, size=None):
    """All of a small blob, checked."""
    checked = Checked(stream, digest, what, size)
    content = whole(checked, what)
    checked.finish()
    return content


def whole(stream, what="the answer"):
    """All of a small stream."""
    content = b""
    while piece := stream.read(PIECE):
        content += piece
        if len(content) > SMALL:
            raise Refused(f"{what} has more than {SMALL} bytes")
    return content


def decompressed(stream, what):
    """The stream unpacked, by its first bytes: what a manifest says of it is not asked."""
    start = b""
    while len(start) < 4 and (piece := stream.read(PIECE)):
        start += piece
    if start.startswith(b"\x1f\x8b"):
        return Pieces(_gunzip(start, stream, what))
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        return Pieces(_unzstd(start, stream, what))
    return Pieces(_joined(start, stream))


def _joined(start, stream):
    piece = start
    while piece:
        yield piece
        piece = stream.read(PIECE)


def _gunzip(start, stream, what):
    piece = start
    member = zlib.decompressobj(wbits=31)
    while piece:
        try:
            unpacked = member.decompress(piece, PIECE)
        except zlib.error as error:
            raise Refused(f"{what} is no gzip file: {error}") from None
        if unpacked:
            yield unpacked
        if member.eof:
            # A gzip file may have several members, and zeros at its end.
            piece = member.unused_data.lstrip(b"\0") or stream.read(PIECE).lstrip(b"\0")
            if piece:
                member = zlib.decompressobj(wbits=31)
        else:
            piece = member.unconsumed_tail or stream.read(PIECE)
    if not member.eof:
        raise Refused(f"{what} ends in the middle of its gzip data")


def _unzstd(start, stream, what):
    try:
        from compression import zstd
    except ImportError:
        raise Refused(f"{what} is compressed with zstd, which this Python cannot read: build it with gzip") from None
    piece = start
    frame = zstd.ZstdDecompressor()
    while piece or not (frame.eof or frame.needs_input):
        try:
            unpacked = frame.decompress(piece, PIECE)
        except zstd.ZstdError as error:
            raise Refused(f"{what} is no zstd file: {error}") from None
        if unpacked:
            yield unpacked
        if frame.eof:
            piece = frame.unused_data or stream.read(PIECE)
            if piece:
                frame = zstd.ZstdDecompressor()
        else:
            piece = stream.read(PIECE) if frame.needs_input else b""
    if not frame.eof:
        raise Refused(f"{what} ends in the middle of its zstd data")
