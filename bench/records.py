"""Records that all peers read (sizes, formats, types, invalid ones), and the columns that all peers write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import orjson

from bench.columns import ARROW, FIELDS
from bench.encodings import AVRO, PROTOBUF, Encoding
from headrace.source.sample_events import bench_event

__all__ = ["ARROW", "FIELDS", "KINDS", "POISON", "Events", "Kind"]

SHORT = {name: FIELDS[name] for name in ("id", "event_type", "session_id", "ok")}
BARE = {name: kind for name, kind in FIELDS.items() if name != "session_id"}
LONG = {**FIELDS, "note": "string"}
# Invalid JSON for these columns: each value becomes a dead letter.
POISON = (
    b"",
    b" ",
    b'{"id":1,',
    b'{"id":1,}',
    b'{"id":"12"}',
    b'{"id":1.0}',
    b'{"id":9223372036854775808}',
    b'{"id":-9223372036854775809}',
    b'{"amount":1e400}',
    b'{"amount":NaN}',
    b'{"amount":Infinity}',
    b'{"id":1,"id":2}',
    b'{"user":{"id":1,"id":2}}',
    b'{"x":' + b"[" * 200 + b"]" * 200 + b"}",
    b"[1,2]",
    b'"text"',
    b"true",
    b'{"id":1}{"id":2}',
    b'{"id":1}\n{"id":2}',
    b'{"url":"\x80"}',
    b'{"url":"\xc0\xaf"}',
    b'{"url":"\xed\xa0\x80"}',
    b'{"timestamp":"0000-00-00"}',
    b'{"timestamp":"2026-01-01T00:00:00"}',
    b'{"user":5}',
    b'{"url":{"a":1}}',
    b'{"tags":["a",1]}',
    b'{"tags":[["a"]]}',
)


@dataclass(frozen=True)
class Kind:
    """A kind of records: conversion from an event, and columns."""

    convert: Callable[[int, bytes], bytes] = lambda _, value: value
    columns: dict[str, str] = field(default_factory=lambda: FIELDS)
    encoding: Encoding | None = None  # other than JSON
    headers: int = 1
    keyed: bool = False

    def records(self, events: Iterable[bytes], id: int = 0) -> Iterator[bytes]:
        """Convert events to records of this kind; `id` is the schema id in the registry."""
        values = (self.convert(number, event) for number, event in enumerate(events))
        if self.encoding is None:
            yield from values
        else:
            yield from map(self.encoding.framed(id), map(orjson.loads, values))


def _poisoned(number: int, value: bytes) -> bytes:
    return POISON[number // 10 % len(POISON)] if number % 10 == 0 else value


def _short(_: int, value: bytes) -> bytes:
    event = orjson.loads(value)
    return orjson.dumps({name: event[name] for name in SHORT})


def _bare(_: int, value: bytes) -> bytes:
    """Without the session: about 270 bytes."""
    before, _, after = value.partition(b'"session_id":')
    return before + after.partition(b",")[2]


def _long(number: int, value: bytes) -> bytes:
    return value[:-1] + b',"note":"' + (f"{number:09d} a longer text ".encode() * 68)[:1660] + b'"}'


def _very_long(number: int, value: bytes) -> bytes:
    return value[:-1] + b',"note":"' + (f"{number:09d} a longer text ".encode() * 820)[:19_660] + b'"}'


def _rejected(number: int, value: bytes) -> bytes:
    """Half of them with a wrong type, half invalid JSON; about as long as the event."""
    return value.replace(b'"id":', b'"id":"x","number":', 1) if number % 2 else value[:-1]


def _spread(tables: int) -> Callable[[int, bytes], bytes]:
    def named(number: int, value: bytes) -> bytes:
        event = orjson.loads(value)
        return orjson.dumps({**event, "event_type": f"table_{number % tables:02d}"})

    return named


def _unlike(number: int, value: bytes) -> bytes:
    """200 types, each with one additional field."""
    return orjson.dumps({**orjson.loads(_spread(200)(number, value)), f"own_{number % 200}": number})


def _tagged(number: int, value: bytes) -> bytes:
    return orjson.dumps({**orjson.loads(value), "tags": [f"tag-{nth}" for nth in range(number % 40)]})


KINDS = {
    "plain": Kind(),
    "poison": Kind(_poisoned),
    "bare": Kind(_bare, BARE, headers=0),
    "100 bytes": Kind(_short, SHORT),
    "2 kB": Kind(_long, LONG),
    "20 kB": Kind(_very_long, LONG),
    "rejected": Kind(_rejected),
    **{
        f"{headers} headers, {'key' if keyed else 'no key'}": Kind(headers=headers, keyed=keyed)
        for headers in (0, 1, 5)
        for keyed in (False, True)
    },
    "1 table": Kind(_spread(1)),
    "10 tables": Kind(_spread(10)),
    "50 tables": Kind(_spread(50)),
    "200 types": Kind(_spread(200)),
    "200 unlike types": Kind(_unlike),
    "avro": Kind(encoding=AVRO),
    "protobuf": Kind(encoding=PROTOBUF),
    "long lists": Kind(_tagged),
    "avro, long lists": Kind(_tagged, encoding=AVRO),
}


class Events:
    """Generated events in a file: generating an event costs more than sending it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = 0

    def first(self, count: int) -> Iterator[bytes]:
        """First events, generated if the file has fewer."""
        if self._count < count:
            with self._file.open("ab") as out:
                out.writelines(bench_event(1, number) + b"\n" for number in range(self._count, count))
            self._count = count
        with self._file.open("rb") as lines:
            yield from (line[:-1] for line in islice(lines, count))
