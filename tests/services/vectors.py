"""Deletion vectors as Spark leaves them, without Spark: bitmaps in every form, and commits that delete rows by them."""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from headrace.delta import log
from headrace.delta.log import newest_version, version_path
from headrace.storage.store import Store

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FEATURES = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "changeDataFeed"],
}


def encoded(rows: Iterable[int], as_runs: Callable[[int], bool] = lambda _: False) -> bytes:
    """A 64-bit bitmap; `as_runs` says of each container whether it holds runs."""
    high = groupby(sorted(set(rows)), lambda row: row >> 32)
    maps = [(key, _of_32_bits([row & 0xFFFFFFFF for row in part], as_runs)) for key, part in high]
    return struct.pack("<iq", 1681511377, len(maps)) + b"".join(struct.pack("<I", key) + data for key, data in maps)


def _of_32_bits(rows: list[int], as_runs: Callable[[int], bool]) -> bytes:
    grouped = {key: [row & 0xFFFF for row in part] for key, part in groupby(rows, lambda row: row >> 16)}
    runs = [as_runs(key) for key in grouped]
    bodies = [_runs(part) if run else _plain(part) for run, part in zip(runs, grouped.values(), strict=True)]
    heads = b"".join(struct.pack("<HH", key, len(part) - 1) for key, part in grouped.items())
    if any(runs):
        flags = bytearray((len(runs) + 7) // 8)
        for at, run in enumerate(runs):
            flags[at // 8] |= run << at % 8
        begin = struct.pack("<I", 12347 | len(runs) - 1 << 16) + bytes(flags)
    else:
        begin = struct.pack("<II", 12346, len(runs))
    offsets = b"\0" * (4 * len(runs)) if not any(runs) or len(runs) >= 4 else b""  # a reader in order needs none
    return begin + heads + _offsets(begin + heads, offsets, bodies) + b"".join(bodies)


def _offsets(before: bytes, room: bytes, bodies: list[bytes]) -> bytes:
    at, told = len(before) + len(room), []
    for body in bodies:
        told.append(at)
        at += len(body)
    return struct.pack(f"<{len(told)}I", *told) if room else b""


def _plain(rows: list[int]) -> bytes:
    if len(rows) <= 4096:
        return struct.pack(f"<{len(rows)}H", *rows)
    return sum(1 << row for row in rows).to_bytes(8192, "little")


def _runs(rows: list[int]) -> bytes:
    starts = [row for at, row in enumerate(rows) if not at or rows[at - 1] != row - 1]
    ends = [row for at, row in enumerate(rows) if at == len(rows) - 1 or rows[at + 1] != row + 1]
    pairs = [number for one, two in zip(starts, ends, strict=True) for number in (one, two - one)]
    return struct.pack(f"<{len(pairs) + 1}H", len(starts), *pairs)


def z85(data: bytes) -> str:
    words = struct.unpack(f">{len(data) // 4}I", data)
    return "".join(_Z85[word // 85**place % 85] for word in words for place in range(4, -1, -1))


def written(store: Store, rows: Iterable[int]) -> dict[str, Any]:
    """A vector in a file of its own, as a commit names it."""
    name, data = uuid.uuid4(), encoded(rows)
    store.put(
        f"deletion_vector_{name}.bin", b"\1" + struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    )
    told = {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 1}
    return {**told, "sizeInBytes": len(data), "cardinality": len(set(rows))}


def vectored(store: Store, rows: Iterable[int] | None, inline: bool = False) -> Mapping[str, Any] | None:
    """A commit after which the table's one file has just these rows deleted; None: the file is gone, with its rows."""
    version = newest_version(store)
    assert version is not None
    commits = list(log.LogWalk(store, version))
    raw = [json.loads(line) for at in range(version + 1) for line in store.get(version_path(at)).splitlines()]
    last = [each for each in raw if "add" in each][-1]["add"]
    there = bool(commits[0].added) or not commits[0].removed
    lines: list[dict[str, Any]] = [{"commitInfo": {"timestamp": commits[0].timestamp + 1, "operation": "DELETE"}}]
    lines += (
        [{"protocol": _FEATURES}] if not any("deletionVectors" in str(each.get("protocol")) for each in raw) else []
    )
    gone = {key: last[key] for key in ("path", "partitionValues", "size", "deletionVector") if key in last}
    lines += [{"remove": {**gone, "deletionTimestamp": commits[0].timestamp + 1, "dataChange": True}}] if there else []
    vector = None
    if rows is not None:
        data = encoded(rows)
        data += b"\0" * (-len(data) % 4)
        inlined = {
            "storageType": "i",
            "pathOrInlineDv": z85(data),
            "sizeInBytes": len(data),
            "cardinality": len(set(rows)),
        }
        vector = inlined if inline else written(store, rows)
        lines.append({"add": {**last, "dataChange": True, "deletionVector": vector}})
    store.put(version_path(version + 1), "\n".join(map(json.dumps, lines)).encode())
    return vector
