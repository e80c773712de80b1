"""Names and small files of a spool's folder.

spool.json                      format, id and pipeline
writer.lock                     locked by the process that writes
ends                            durable end of each topic: readers read no further
committed                       position that the ledger has recorded: what is before it may be deleted
topics/<topic>/<offset>.seg     blocks; the name is the first offset, in 20 digits
topics/<topic>/<offset>.ids     the requests of a deleted segment, as long as they can be retried
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import SpoolDamaged, UsageError

FORMAT = 1
SPOOL = "spool"  # the folder in the state, by default
ABOUT, LOCK, ENDS, COMMITTED, TOPICS = "spool.json", "writer.lock", "ends", "committed", "topics"
SEGMENT, REQUESTS = ".seg", ".ids"
_MAX_NAME = 200
_DIGITS = 20


@dataclass(frozen=True, slots=True)
class SpoolIdentity:
    """Which spool a folder is; a new folder has a new id."""

    spool_id: str
    pipeline: str

    def encode(self) -> bytes:
        """The content of `spool.json`."""
        return json.dumps({"format": FORMAT, "id": self.spool_id, "pipeline": self.pipeline}).encode()

    def verify(self, pipeline: str, where: str) -> None:
        """UsageError if the spool belongs to another pipeline."""
        if self.pipeline != pipeline:
            raise UsageError(
                f"The spool {where} belongs to the pipeline '{self.pipeline}'.", hint="Set another `spool.path`."
            )


def decode_identity(data: bytes, where: str) -> SpoolIdentity:
    """Parse `spool.json`; SpoolDamaged if it is invalid or of a newer version."""
    try:
        about = json.loads(data)
        number, spool_id, pipeline = about["format"], str(about["id"]), str(about["pipeline"])
    except (ValueError, KeyError, TypeError):
        raise SpoolDamaged(f"{where}/{ABOUT} is invalid.", hint="Restore the file from a backup.") from None
    if number != FORMAT:
        raise SpoolDamaged(
            f"{where} has format {number}; this version reads format {FORMAT}.", hint="Use the version that wrote it."
        )
    return SpoolIdentity(spool_id, pipeline)


def folder_name(topic: str) -> str:
    """The folder of a topic: other characters than letters, digits, `.`, `_` and `-` as `=` and two hex digits."""
    name = re.sub(rb"[^A-Za-z0-9._-]|^\.", lambda match: b"=%02X" % match[0][0], topic.encode()).decode()
    if not 0 < len(name) <= _MAX_NAME:
        raise UsageError(f"Invalid topic for a spool: '{topic[:80]}'.", hint="Topics have 1 to 200 characters.")
    return name


def topic_name(folder: str) -> str:
    """The topic of a folder."""
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), folder.encode()).decode()


def topic_folder(topic: str) -> str:
    """Path of a topic's folder."""
    return f"{TOPICS}/{folder_name(topic)}"


def segment_path(topic: str, first: int, suffix: str = SEGMENT) -> str:
    """Path of the segment that starts at an offset."""
    return f"{topic_folder(topic)}/{first:0{_DIGITS}}{suffix}"


def first_offsets_of(names: list[str], suffix: str = SEGMENT) -> list[int]:
    """First offsets of the segments among the names of a topic's folder, ascending."""
    bare = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(name) for name in bare if len(name) == _DIGITS and name.isdigit())


def encode_offsets(offsets: Mapping[str, int]) -> bytes:
    """Offsets by topic with a checksum."""
    text = json.dumps(offsets, sort_keys=True).encode()
    return b"%08x\n%s\n" % (zlib.crc32(text), text)


def decode_offsets(read: Callable[[], bytes | memoryview]) -> dict[str, int] | None:
    """Offsets by topic; None if the file is missing, or incomplete after a crash of the machine."""
    try:
        checksum, _, text = bytes(read()).rstrip(b"\n").partition(b"\n")
    except FileNotFoundError:
        return None
    if checksum != b"%08x" % zlib.crc32(text):
        return None
    offsets: dict[str, Any] = json.loads(text)
    return {topic: int(offset) for topic, offset in offsets.items()}
