"""Valid records with one byte, field or number changed: the fast paths and the exact path decode them alike.

Changed records are mixed with clean ones, which must not be affected.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.decode.test_json_paths_agree import assert_same

from headrace.decode.base import DecodeLimits, NewField
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.payload_field import PayloadField, json_field

Row = dict[str, Any]

WORDS = [
    "red",
    "green",
    "blue",
    "a,b",
    "x:y",
    "{",
    "]",
    "",
    "null",
    "caf\u00e9",
    'say "hi"',
    "C:\\new",
    "tab\t",
    "\U0001f600",
    '":',
]
NUMBERS = [
    "0",
    "-0",
    "-0.0",
    "01",
    "1.0",
    "1.70",
    "1e3",
    "1e400",
    "-1e-400",
    "1E+2",
    "NaN",
    "-Infinity",
    "9223372036854775807",
]
NUMBERS += [
    "9223372036854775808",
    "2147483648",
    "0.1234567890123456789",
    "12345678901234567890.5",
    "+1",
    ".5",
    "5.",
    "0x1F",
    "1_0",
]
LINE = pa.struct([("sku", pa.string()), ("n", pa.int32()), ("price", pa.decimal128(9, 2)), ("at", pa.date32())])
SPARSE = [pa.field(f"f{at:02}", (pa.string(), pa.int64(), pa.float64(), pa.bool_())[at % 4]) for at in range(40)]


def _event(rng: random.Random) -> Row:
    return {
        "id": rng.randrange(10**6),
        "at": f"2026-01-{rng.randrange(1, 29):02}T00:00:00.{rng.randrange(1000):03}Z",
        "user": {"id": rng.randrange(99), "name": rng.choice(WORDS)},
        "rate": rng.random(),
        "tags": rng.sample(WORDS[:4], rng.randrange(3)),
        "ok": rng.random() < 0.5,
    }


def _lines(rng: random.Random) -> list[Row]:
    line = {"sku": "a", "n": 1, "price": 9.5, "at": "2026-02-28"}
    return [
        {key: line[key] for key in line if rng.random() < 0.9} | {"sku": rng.choice(WORDS)}
        for _ in range(rng.randrange(4))
    ]


def _map(rng: random.Random, value: Callable[[], Any]) -> Row:
    return {word: value() for word in rng.sample(WORDS, rng.randrange(4))}


def _anything(rng: random.Random) -> Any:
    nested = [{"k": 1, "n": "x"}, {"k": {"m": []}}]
    return rng.choice(
        [nested, {"k": nested}, [1, 2.5], ["a", "b"], [[1], [2]], {}, [], None, True, 1.5, "text", [None], [{}]]
    )


EVENT = [
    pa.field("id", pa.int64(), nullable=False),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("user", pa.struct([pa.field("id", pa.int32()), pa.field("name", pa.string())])),
    pa.field("rate", pa.float64()),
    pa.field("tags", pa.list_(pa.field("element", pa.string()))),
    pa.field("ok", pa.bool_()),
]
SHAPES: dict[str, tuple[list[pa.Field], Callable[[random.Random], Row]]] = {
    "event": (EVENT, _event),
    "sparse": (
        [PayloadField("id", pa.int64(), default="7").to_arrow(), *SPARSE],
        lambda rng: {item.name: _scalar(item, rng) for item in SPARSE if rng.random() < 0.3},
    ),
    "array": (
        [EVENT[0], pa.field("lines", pa.list_(pa.field("element", LINE)))],
        lambda rng: {"id": 1, "lines": _lines(rng)},
    ),
    "map": (
        [
            pa.field("texts", pa.map_(pa.string(), pa.string())),
            pa.field("numbers", pa.map_(pa.string(), pa.field("value", pa.int64(), nullable=False))),
            pa.field("objects", pa.map_(pa.string(), LINE)),
        ],
        lambda rng: {
            "texts": _map(rng, lambda: rng.choice(WORDS)),
            "numbers": _map(rng, lambda: rng.randrange(99)),
            "objects": _map(rng, lambda: {"sku": "a", "n": 1}),
        },
    ),
    "text": ([*EVENT, json_field("extra")], lambda rng: {**_event(rng), "extra": _anything(rng)}),
    "ignored": (EVENT, lambda rng: {**_event(rng), rng.choice(["extra", "Extra", "more"]): _anything(rng)}),
    "new field inside": (EVENT, lambda rng: {**_event(rng), "user": {"id": 1, rng.choice(["name", "new"]): "x"}}),
    "paths": (
        [
            PayloadField("city", pa.string(), False, path="a.b.city").to_arrow(),
            PayloadField("n", pa.int16(), path="a.n").to_arrow(),
        ],
        lambda rng: {"a": {"b": {"city": rng.choice(WORDS)}, "n": rng.randrange(99)}, "c": 1},
    ),
}


def _scalar(item: pa.Field, rng: random.Random) -> Any:
    if pa.types.is_boolean(item.type):
        return rng.random() < 0.5
    if pa.types.is_string(item.type):
        return rng.choice(WORDS)
    return rng.randrange(10**6) if pa.types.is_integer(item.type) else round(rng.random() * 100, 3)


def _changed(row: Row, rng: random.Random, spaced: bool) -> bytes:
    change = rng.randrange(8)
    if change == 0 and row:  # a field of another type
        row = {**row, rng.choice([*row]): rng.choice([None, 1, 1.7, "12", True, [], {}, [1], {"k": "v"}, "2026-01-01"])}
    if change == 1 and row:  # a field less
        del row[rng.choice([*row])]
    text = _text(row, spaced)
    if change == 2 and row:  # a key twice, or in another case
        key = rng.choice([*row])
        text = text[:-1] + f",{json.dumps(rng.choice([key, key.upper()]))}:{json.dumps(row[key])}" + "}"
    if change == 3:  # a number
        starts = [at for at, byte in enumerate(text) if byte.isdigit() and not text[at - 1].isdigit()]
        at = rng.choice(starts or [0])
        return (text[:at] + rng.choice(NUMBERS) + text[at:].lstrip("0123456789.")).encode()
    raw = text.encode()
    if change == 4 and rng.random() < 0.1:  # no object at all
        return rng.choice([b"null", b"[]", b"5", b"{}{}", b"{}", b" {}", b"\xef\xbb\xbf{}", b"", b'"a":1'])
    if change >= 4:  # a byte
        at = rng.randrange(len(raw))
        byte = rng.choice([*b'"\\{}[]:, 0-1eEnt\x00\n\xff', rng.randrange(256)])
        raw = raw[:at] + rng.choice([b"", bytes([byte]), bytes([byte, raw[at]])]) + raw[at + 1 :]
    return raw


def _text(row: Row, spaced: bool) -> str:
    return json.dumps(row, separators=(", ", ": ") if spaced else (",", ":"), ensure_ascii=len(str(row)) % 2 == 0)


def _batches(shape: str, count: int, seed: str) -> Iterator[list[bytes]]:
    rng = random.Random(f"{shape}/{seed}")
    produce = SHAPES[shape][1]
    for first in range(0, count, 250):
        spaced, share = rng.random() < 0.3, rng.choice([0.02, 0.5, 1.0])
        yield [
            _changed(produce(rng), rng, spaced) if rng.random() < share else _text(produce(rng), spaced).encode()
            for _ in range(min(250, count - first))
        ]


def _assert_alike(shape: str, new_field: NewField, count: int) -> None:
    schema = pa.schema(SHAPES[shape][0])
    fast, exact = JsonDecoder(schema, new_field, DecodeLimits()), JsonDecoder(schema, new_field, DecodeLimits())
    exact._prover = None
    for values in _batches(shape, count, new_field):
        column = pa.array(values, pa.binary())
        fast._templates._idle = fast._faults._idle = 0  # the paths are not passed over
        fast._faults._useful = True
        if fast._members:
            fast._members._idle = 0
        assert_same(fast.decode(column), exact.decode(column), values)


@pytest.mark.parametrize("shape", SHAPES)
def test_changed_records(shape):
    _assert_alike(shape, "ignore", 250)


@pytest.mark.slow
@pytest.mark.parametrize("new_field", ["ignore", "reject"])
@pytest.mark.parametrize("shape", SHAPES)
def test_many_changed_records(shape, new_field):
    _assert_alike(shape, new_field, 6_250)
