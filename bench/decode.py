"""What a faithful JSON decode costs, beside its parts and its peers: CPU-seconds per million records, one thread.

Run: PYTHONPATH=src python bench/decode.py [records] — prints the table and the JSON it is made from.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from io import BytesIO

import orjson
import pyarrow as pa
from pyarrow import json as arrow_json

from headrace import duck
from headrace.decode.contract import Limits, NewField
from headrace.decode.json import JsonDecoder

BATCH = 50_000
ROUNDS = 5
Way = Callable[[pa.BinaryArray], object]

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("event", pa.string()),
        ("user_id", pa.int64()),
        ("session", pa.string()),
        ("ts", pa.timestamp("us", "UTC")),
        ("url", pa.string()),
        ("amount", pa.float64()),
        ("ok", pa.bool_()),
        ("device", pa.struct([("os", pa.string()), ("version", pa.string()), ("width", pa.int32())])),
        ("tags", pa.list_(pa.field("element", pa.string()))),
        ("note", pa.string()),
    ]
)
TYPED = json.dumps(
    {
        **{"id": "BIGINT", "event": "VARCHAR", "user_id": "BIGINT", "session": "VARCHAR", "ts": "TIMESTAMPTZ"},
        **{"url": "VARCHAR", "amount": "DOUBLE", "ok": "BOOLEAN", "tags": ["VARCHAR"], "note": "VARCHAR"},
        "device": {"os": "VARCHAR", "version": "VARCHAR", "width": "INTEGER"},
    }
)
POISON = [
    b'{"id":1,',
    b'{"id":1,}',
    b'{"id":"12"}',
    b'{"id":1.7}',
    b'{"id":9223372036854775808}',
    b'{"amount":NaN}',
    b'{"amount":1e400}',
    b'{"id":1,"id":2}',
    b"[1,2,3]",
    b'{"id":1}{"id":2}',
    b"\x80\x81",
    b'{"ts":"2024-01-01T00:00:00"}',
    b'{"tags":["a",1]}',
    b'{"device":5}',
    b'{"x":' + b"[" * 200 + b"]" * 200 + b"}",
]


def records(count: int, seed: int = 1) -> list[dict[str, object]]:
    """Events of about 320 bytes: 11 fields, a nested object and an array."""
    pick = random.Random(seed)
    return [
        {
            "id": number,
            "event": pick.choice(["view", "click", "order", "refund"]),
            "user_id": pick.randrange(10**9),
            "session": f"{pick.getrandbits(128):032x}",
            "ts": f"2026-05-{pick.randrange(1, 29):02}T{pick.randrange(24):02}:{pick.randrange(60):02}:07.123Z",
            "url": f"https://shop.example/p/{pick.randrange(10**6)}?ref={pick.randrange(10**4)}",
            "amount": round(pick.random() * 1000, 2),
            "ok": pick.random() < 0.5,
            "device": {"os": pick.choice(["ios", "android"]), "version": "17.4", "width": pick.randrange(300, 3000)},
            "tags": [pick.choice(["alpha", "beta", "gamma"]) for _ in range(3)],
            "note": "n" * pick.randrange(10, 40),
        }
        for number in range(count)
    ]


def written(rows: list[dict[str, object]], spaced: bool = False) -> pa.BinaryArray:
    """The rows as JSON values."""
    separators = (", ", ": ") if spaced else (",", ":")
    return pa.array([json.dumps(row, separators=separators).encode() for row in rows], pa.binary())


def cost(values: pa.BinaryArray, way: Way) -> float:
    """CPU-seconds per million records of one run, in batches as a task sees them."""
    batches = [values.slice(at, BATCH) for at in range(0, len(values), BATCH)]
    begun = time.process_time()
    for batch in batches:
        way(batch)
    return (time.process_time() - begun) * 1e6 / len(values)


def faithful(schema: pa.Schema = SCHEMA, new_field: NewField = "ignore") -> Way:
    """Our decode."""
    return JsonDecoder(schema, new_field, Limits()).decode


def exactly(values: pa.BinaryArray) -> object:
    """Our decode without the fast way."""
    decoder = JsonDecoder(SCHEMA, "ignore", Limits())
    decoder._prover = None
    return decoder.decode(values)


def duckdb_sql(select: str) -> Way:
    """One DuckDB expression over the texts."""
    return lambda values: duck.planned(
        f"SELECT {select} AS x FROM seen", seen=pa.table({"v": values.cast(pa.string())})
    )


def by_arrow(values: pa.BinaryArray) -> object:
    """pyarrow's reader of JSON lines: types or the end of the batch."""
    options = arrow_json.ParseOptions(explicit_schema=SCHEMA)
    lines = b"\n".join(values.to_pylist())
    return arrow_json.read_json(BytesIO(lines), arrow_json.ReadOptions(use_threads=False), options)


def by_orjson(values: pa.BinaryArray) -> object:
    """orjson and Arrow's conversion of Python objects (`ts` stays a text)."""
    plain = pa.schema([item if item.name != "ts" else pa.field("ts", pa.string()) for item in SCHEMA])
    return pa.Table.from_pylist([orjson.loads(value) for value in values.to_pylist()], plain)


def with_every(rows: list[dict[str, object]], share: int, change: Callable[[dict[str, object]], dict[str, object]]):
    """Change every so manieth row."""
    return [change(row) if at % share == 0 else row for at, row in enumerate(rows)]


def ways(count: int) -> dict[str, tuple[pa.BinaryArray, Way]]:
    """What is measured: the values and the way, by name."""
    rows = records(count)
    clean = written(rows)
    absent = written(with_every(rows, 2, lambda row: {key: row[key] for key in row if key not in ("note", "amount")}))
    nulls = written(with_every(rows, 2, lambda row: {**row, "note": None, "device": None}))
    flat = written([{**row, "extra": 1, "more": "x"} for row in rows])
    deep = written([{**row, "extra": {"k": {"m": 1}, "n": "x"}} for row in rows])
    lists = written([{**row, "extra": [{"k": 1, "n": "x"}, {"k": 2}]} for row in rows])
    poisoned = pa.array(
        [POISON[at % 15] if at % 10 == 0 else raw for at, raw in enumerate(clean.to_pylist())], pa.binary()
    )
    few = pa.schema([item for item in SCHEMA if item.name in ("id", "event", "ts")])
    text = pa.schema([*SCHEMA, pa.field("extra", pa.string(), metadata={b"headrace.json": b"true"})])
    return {
        "faithful": (clean, faithful()),
        "faithful, spaced text": (written(rows, spaced=True), faithful()),
        "faithful, fields absent in half": (absent, faithful()),
        "faithful, nulls in half": (nulls, faithful()),
        "faithful, two ignored fields in all": (flat, faithful()),
        "faithful, an ignored object in all": (deep, faithful()),
        "faithful, an ignored list of objects": (lists, faithful()),
        "faithful, 3 columns of 11": (clean, faithful(few)),
        "faithful, an object kept as text": (deep, faithful(text)),
        "faithful, 10 % poison": (poisoned, faithful()),
        "exact way alone": (clean.slice(0, min(count, 20_000)), exactly),
        "part: json_valid": (clean, duckdb_sql("json_valid(v)")),
        "part: json_type at 14 places": (clean, duckdb_sql("json_type(v, [" + ",".join(["'/note'"] * 14) + "])")),
        "part: json_keys": (clean, duckdb_sql("json_keys(v)")),
        "peer: duckdb from_json, unfaithful": (clean, duckdb_sql(f"from_json(v, {duck.literal(TYPED)})")),
        "peer: duckdb from_json_strict": (clean, duckdb_sql(f"TRY(from_json_strict(v, {duck.literal(TYPED)}))")),
        "peer: duckdb json_structure": (clean, duckdb_sql("json_structure(v)")),
        "peer: pyarrow.json": (clean, by_arrow),
        "peer: orjson + from_pylist": (clean, by_orjson),
    }


def figures(count: int) -> dict[str, float]:
    """The least of several rounds, taken in turn, so that a neighbour's load falls on all alike."""
    runs = ways(count)
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, (values, way) in runs.items():
            taken = cost(values if number else values.slice(0, BATCH), way)
            if number:  # the first round only plans and learns
                spent[name].append(taken)
    return {name: round(min(taken), 2) for name, taken in spent.items()}


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    found = figures(count)
    for name, seconds in found.items():
        print(f"{name:42s}{seconds:8.2f} CPU-s per million")
    print(json.dumps({"records": count, "batch": BATCH, "cpu_seconds_per_million": found}))


if __name__ == "__main__":
    main()
