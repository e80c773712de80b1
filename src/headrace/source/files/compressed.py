"""Decompression of whole files in bounded memory."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from headrace.decode.unpack import RATIO
from headrace.errors import HeadraceError
from headrace.reasons import Reason

_STEP = 1 << 18  # bytes of compressed input; fixed, so that a damaged file always has the same records
_UNCHECKED = 64 << 20  # decompressed bytes below which the ratio does not matter: they are not held in memory


class DamagedFile(Exception):
    """The rest of a file cannot be read; the records before it can."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason, self.detail = reason, detail


Read = Callable[[int], bytes]
"""Reads at most this number of bytes, and at least one before the end of the file; raises DamagedFile."""


class _Decompressor(Protocol):
    """The interface of `bz2` and `lzma`."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...


class _Inflater:
    """A gzip member with the interface of the other decompressors."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._member.decompress(self._member.unconsumed_tail + data, max_length)

    @property
    def eof(self) -> bool:
        return self._member.eof

    @property
    def needs_input(self) -> bool:
        return not self._member.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._member.unused_data


_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": _Inflater,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=256 << 20),
}


class _Decompressed:
    """A file of one or more compressed members."""

    def __init__(self, file: BinaryIO, codec: str) -> None:
        self._file, self._codec, self._new = file, codec, _DECOMPRESSORS[codec]
        self._member: _Decompressor | None = None
        self._rest = b""  # compressed bytes after the last member
        self._taken = self._given = 0

    def read(self, count: int) -> bytes:
        while True:
            if self._member is None and not self._begin():
                return b""
            data = self._step(count)
            self._given += len(data)
            if self._given > max(_UNCHECKED, RATIO * self._taken):
                raise DamagedFile(Reason.RATIO, f"{self._taken} bytes decompress to more than {RATIO} times as many")
            if data:
                return data

    def _begin(self) -> bool:
        """Begin a member; False at the end of the file."""
        self._rest = self._rest or self._input()
        if not self._rest:
            return False
        self._member = self._new()
        return True

    def _step(self, count: int) -> bytes:
        member = self._member
        assert member is not None  # noqa: S101
        data = self._rest or (self._input() if member.needs_input else b"")
        self._rest = b""
        if not data and member.needs_input:
            raise DamagedFile(Reason.MALFORMED, f"unexpected end of {self._codec} data")
        try:
            content = member.decompress(data, count)
        except (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError) as error:
            raise DamagedFile(Reason.MALFORMED, f"not valid {self._codec}: {error}") from None
        if member.eof:
            self._rest, self._member = member.unused_data, None
        return content

    def _input(self) -> bytes:
        data = self._file.read(_STEP)
        self._taken += len(data)
        return data


def decompressed(file: BinaryIO, codec: str) -> Read:
    """Read the content of a file that is compressed with a codec."""
    if codec == "none":
        return file.read
    if codec in _DECOMPRESSORS:
        return _Decompressed(file, codec).read
    return _arrow_reader(file, codec)


def _arrow_reader(file: BinaryIO, codec: str) -> Read:
    """Codecs that only Arrow has; read in small steps, as a step that fails returns nothing."""
    stream = pa.CompressedInputStream(pa.PythonFile(file, "r"), codec)
    given = 0

    def read(count: int) -> bytes:
        nonlocal given
        try:
            content = bytes(stream.read(min(count, _STEP)))
        except HeadraceError:
            raise
        except (OSError, ValueError) as error:
            raise DamagedFile(Reason.MALFORMED, f"not valid {codec}: {error}") from None
        given += len(content)
        if given > max(_UNCHECKED, RATIO * file.tell()):
            raise DamagedFile(Reason.RATIO, f"{file.tell()} bytes decompress to more than {RATIO} times as many")
        return content

    return read
