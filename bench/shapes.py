"""JSON of other shapes than flat events: each decoded by Headrace, and by DuckDB's from_json with the same columns.

Run: PYTHONPATH=src python -m bench.shapes [records [parts of names …]] — prints the figures and their ratios.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pyarrow as pa

from bench.cost import Measured, Run, lowest_costs
from bench.records import ARROW
from headrace.decode.base import DecodeLimits
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.payload_field import is_json_text, json_field
from headrace.engine import duck
from headrace.source.sample_events import bench_event

PEER = "peer: duckdb from_json, "
EVENT = [item for item in ARROW if item.name not in ("headers", "_source")]
Row = dict[str, Any]

_SPARSE = [pa.field(f"f{at:02}", (pa.string(), pa.int64(), pa.float64(), pa.bool_())[at % 4]) for at in range(40)]
_LINE = pa.struct([("sku", pa.string()), ("n", pa.int32()), ("price", pa.float64()), ("gift", pa.bool_())])
_WORDS = ("red", "green", "blue", "small", "large", "new", "used", "north", "south")
_ESCAPED = ('say "hello"', "C:\\temp\\new", "two\nlines", "tab\there", "caf\u00e9 \u00fcber", "a/b")


def _sparse(row: Row, rng: random.Random) -> Row:
    values: tuple[Any, ...] = (rng.choice(_WORDS), rng.randrange(10**6), rng.random() * 100, rng.random() < 0.5)
    return {"id": row["id"], **{item.name: values[at % 4] for at, item in enumerate(_SPARSE) if rng.random() < 0.3}}


def _lines(row: Row, rng: random.Random) -> Row:
    lines = [
        {"sku": f"{rng.getrandbits(32):08x}", "n": rng.randrange(9), "price": rng.randrange(10**5) / 100, "gift": True}
        for _ in range(rng.randrange(1, 6))
    ]
    return {"id": row["id"], "timestamp": row["timestamp"], "lines": lines, "ok": row["ok"]}


def _maps(row: Row, rng: random.Random) -> Row:
    labels = {word: f"{rng.getrandbits(24):06x}" for word in rng.sample(_WORDS, rng.randrange(6))}
    counts = {word: rng.randrange(10**6) for word in rng.sample(_WORDS, rng.randrange(6))}
    return {"id": row["id"], "timestamp": row["timestamp"], "labels": labels, "counts": counts, "ok": row["ok"]}


def _escaped(row: Row, rng: random.Random) -> Row:
    return {**row, "url": f"{row['url']} {rng.choice(_ESCAPED)}", "session_id": rng.choice(_ESCAPED)}


# The columns, and how an event becomes a record.
SHAPES: dict[str, tuple[list[pa.Field], Callable[[Row, random.Random], Row]]] = {
    "sparse, 40 optional fields": ([pa.field("id", pa.int64()), *_SPARSE], _sparse),
    "an array of objects": ([*EVENT[:1], EVENT[2], pa.field("lines", pa.list_(_LINE)), EVENT[-1]], _lines),
    "two maps": (
        [
            *(EVENT[0], EVENT[2], pa.field("labels", pa.map_(pa.string(), pa.string()))),
            *(pa.field("counts", pa.map_(pa.string(), pa.int64())), EVENT[-1]),
        ],
        _maps,
    ),
    "an object kept as text": (
        [*EVENT, json_field("extra")],
        lambda row, _: {**row, "extra": {"k": {"m": 1}, "n": "x"}},
    ),
    "an ignored list of objects": (EVENT, lambda row, _: {**row, "extra": [{"k": 1, "n": "x"}, {"k": 2}]}),
    "escaped text": (EVENT, _escaped),
}


def values_of(name: str, count: int) -> pa.BinaryArray:
    """Records of a shape as JSON values."""
    _, convert = SHAPES[name]
    rng = random.Random(name)
    rows = (convert(orjson.loads(bench_event(1, number)), rng) for number in range(count))
    return pa.array([json.dumps(row, separators=(",", ":")).encode() for row in rows], pa.binary())


def from_json(columns: list[pa.Field]) -> Measured:
    """DuckDB's from_json of these columns: typed and lossy."""
    types = ", ".join(f"{duck.quote(item.name)} {_duck_type(item)}" for item in columns)
    sql = f"SELECT from_json(v, {duck.literal(json.dumps(f'STRUCT({types})'))}) AS x FROM texts"
    return lambda values: duck.plan_of_query(sql, texts=pa.table({"v": values.cast(pa.string())}))


def _duck_type(item: pa.Field) -> str:
    kind = item.type
    if is_json_text(item):
        return "JSON"
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{duck.quote(each.name)} {_duck_type(each)}' for each in kind)})"
    if pa.types.is_list(kind):
        return f"{_duck_type(kind.value_field)}[]"
    if pa.types.is_map(kind):
        return f"MAP(VARCHAR, {_duck_type(kind.item_field)})"
    names = {pa.int64(): "BIGINT", pa.int32(): "INTEGER", pa.float64(): "DOUBLE", pa.bool_(): "BOOLEAN"}
    return "TIMESTAMPTZ" if pa.types.is_timestamp(kind) else names.get(kind, "VARCHAR")


def runs(count: int, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Run]]:
    """Values and functions of each shape, or of those whose name contains one of the words."""
    for name, (columns, _) in SHAPES.items():
        if words and not any(word in name for word in words):
            continue
        values = values_of(name, count)
        yield f"shape: {name}", (values, JsonDecoder(pa.schema(columns), "ignore", DecodeLimits()).decode)
        yield f"{PEER}{name}", (values, from_json(columns))


if __name__ == "__main__":
    costs = lowest_costs(dict(runs(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000, tuple(sys.argv[2:]))))
    for label in (label for label in costs if label.startswith("shape: ")):
        name = label.removeprefix("shape: ")
        ours, peer = costs[label], costs[PEER + name]
        print(f"{name:32s}{ours:8.2f} CPU-s per million, from_json {peer:6.2f}, ratio {ours / peer:5.2f}")
