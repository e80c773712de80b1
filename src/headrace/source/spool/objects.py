"""Names and content of a spool's objects in an object store.

spool.json                 format, id and pipeline
committed                  position that the ledger has recorded: what is before it may be deleted
lease/                     which process writes
log/<number>               a group of appends: one block per topic; numbers have no gaps, and 20 digits
fronts/<number>            objects before this number are deleted; the highest one is valid
requests/<number>-<count>  the requests of deleted objects before a number, as long as they can be retried

Every object of `log/` has a header before its blocks: `HRSO`, version, size and checksum of a JSON document, the
document, and padding to a multiple of 64 bytes. The header of the newest object has the ends of all topics.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice

from headrace.errors import SpoolDamaged
from headrace.source.spool.block import BadBlock, Block, Parts, read_blocks
from headrace.storage.base import ObjectMeta
from headrace.storage.store import Store

LOG, FRONTS, REQUESTS_KEPT = "log", "fronts", "requests"
HEADER_BYTES = 16_384  # of the first read; longer headers need a second one
_LISTED = 1000  # objects, which most stores list with one request
_DIGITS = 20
_ALIGNED = 64
_PREFIX = struct.Struct("<4sHHII")  # magic, version, reserved, bytes of the document, its checksum
_MAGIC, _VERSION = b"HRSO", 1


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """A block in an object: offsets `[first, until)` of a topic."""

    topic: str
    first: int
    until: int
    requests: int
    size: int


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """What an object contains. One that `opens` has no blocks: it ends the writes of all earlier writers."""

    number: int
    writer: str
    time: int  # milliseconds since 1970
    opens: bool
    ends: dict[str, int]  # of all topics, after this object
    blocks: tuple[BlockEntry, ...] = ()

    def entry(self, topic: str) -> BlockEntry | None:
        """The block of a topic."""
        return next((each for each in self.blocks if each.topic == topic), None)


def encode_object(header: ObjectHeader, parts: Parts) -> bytes:
    """The content of an object; `parts` are those of its blocks, in the order of the header."""
    text = json.dumps(asdict(header), separators=(",", ":")).encode()
    prefix = _PREFIX.pack(_MAGIC, _VERSION, 0, len(text), zlib.crc32(text))
    return b"".join((prefix, text, bytes(-(len(prefix) + len(text)) % _ALIGNED), *parts))


def decode_header(data: bytes, number: int | None) -> ObjectHeader | None:
    """The header at the start of `data`; None if it is longer; BadBlock if it is changed or of another object."""
    size = _text_size(data)
    text = data[_PREFIX.size : _PREFIX.size + size]
    if len(text) < size:
        return None
    if zlib.crc32(text) != _PREFIX.unpack_from(data)[4]:
        raise BadBlock(0, "wrong checksum")
    content = json.loads(text)
    header = ObjectHeader(**{**content, "blocks": tuple(BlockEntry(**each) for each in content["blocks"])})
    if number not in (None, header.number):
        raise BadBlock(0, f"content of object {header.number}")
    return header


def _text_size(data: bytes) -> int:
    if len(data) < _PREFIX.size or (prefix := _PREFIX.unpack_from(data))[:2] != (_MAGIC, _VERSION):
        raise BadBlock(0, "no header")
    return int(prefix[3])


class SpoolObjects:
    """The objects of a spool. Can be pickled."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def listed(self, after: int = 0) -> dict[int, ObjectMeta]:
        """The objects with numbers above `after`, in order."""
        return {number: item for item in self.store.list(LOG, object_path(after)) if (number := _number(item))}

    def newest(self, known: int) -> int:
        """The highest number, at least `known`; 0 if there are no objects."""
        while items := list(islice(self.store.list(LOG, object_path(known)), _LISTED)):
            known = max(known, *map(_number, items))
            if len(items) < _LISTED:
                break
            known = self._near_end(known)
        return known

    def _near_end(self, number: int) -> int:
        """A later number that is found without a listing of those between; objects may be deleted meanwhile."""
        step = _LISTED
        while self.store.exists(object_path(number + step)):
            number, step = number + step, step * 2
        while (step := step // 2) >= _LISTED:
            if self.store.exists(object_path(number + step)):
                number += step
        return number

    def fronts(self) -> list[int]:
        """Numbers before which all objects are deleted, or are being deleted, ascending; the last one is valid."""
        names = (item.path.removeprefix(f"{FRONTS}/") for item in self.store.list(FRONTS))
        return sorted(int(name) for name in names if name.isdigit()) or [1]

    def header(self, number: int) -> ObjectHeader:
        """The header of an object; NotFound if it does not exist, SpoolDamaged if it is changed."""
        path = object_path(number)
        try:
            start = self.store.read(path, 0, HEADER_BYTES)
            header = decode_header(start, number)
            if header is None:
                header = decode_header(self.store.read(path, 0, _PREFIX.size + _text_size(start)), number)
            if header is None:
                raise BadBlock(0, "incomplete header")
        except BadBlock as error:
            raise self.damaged(f"{error} of {path}") from None
        return header

    def content(self, number: int) -> tuple[ObjectHeader, bytes]:
        """Header and content of an object; NotFound if it does not exist, SpoolDamaged if its header is changed."""
        return self.decoded(object_path(number), number)

    def decoded(self, path: str, number: int | None = None) -> tuple[ObjectHeader, bytes]:
        """Header and content of any object with blocks."""
        data = self.store.get(path)
        try:
            header = decode_header(data, number)
        except BadBlock as error:
            raise self.damaged(f"{error} of {path}") from None
        if header is None:
            raise self.damaged(f"incomplete header of {path}")
        return header, data

    def blocks(self, header: ObjectHeader, data: bytes, topic: str | None = None) -> Iterator[tuple[str, Block]]:
        """The blocks of an object, or those of a topic; SpoolDamaged at an incomplete or changed one."""
        view, size = memoryview(data), _PREFIX.size + _text_size(data)
        position = size + -size % _ALIGNED
        try:
            for entry in header.blocks:
                if topic in (None, entry.topic):
                    for block in read_blocks(view[position : position + entry.size], entry.size):
                        yield entry.topic, block
                position += entry.size
        except BadBlock as error:
            raise self.damaged(f"{error} of a block in {object_path(header.number)}") from None

    def verify_deleted(self, number: int) -> int:
        """The front, behind an object that was not found; SpoolDamaged if the object is not before it."""
        if (front := self.fronts()[-1]) <= number:
            raise self.damaged(f"{object_path(number)} is missing")
        return front

    def damaged(self, what: str) -> SpoolDamaged:
        """The error for this spool."""
        return SpoolDamaged(
            f"The spool {self.store.uri} is damaged: {what}.",
            hint="Restore the objects from a copy, or from versions of the bucket; nothing was deleted or skipped.",
        )


def _number(item: ObjectMeta) -> int:
    """The number of an object of the log; 0 of another one."""
    name = item.path.removeprefix(f"{LOG}/")
    return int(name) if name.isdigit() else 0


def object_path(number: int) -> str:
    """Path of an object of the log."""
    return f"{LOG}/{number:0{_DIGITS}}"


def front_path(number: int) -> str:
    """Path of the object that says that the objects before a number are deleted."""
    return f"{FRONTS}/{number:0{_DIGITS}}"


def kept_path(number: int, count: int) -> str:
    """Path of the requests of deleted objects before a number."""
    return f"{REQUESTS_KEPT}/{number:0{_DIGITS}}-{count}"


def kept_count(path: str) -> int:
    """Number of requests in an object of `kept_path`."""
    return int(path.rpartition("-")[2])
