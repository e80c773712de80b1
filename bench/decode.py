"""CPU cost of decoding, compared with its parts and its peers: CPU-seconds per million records, one thread.

Run: PYTHONPATH=src python -m bench.decode [records] — prints the figures.
"""

from __future__ import annotations

import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from pyarrow import json as arrow_json

from bench import encodings, shapes
from bench.cost import Measured, Run, lowest_costs, to_text
from bench.records import ARROW, FIELDS, POISON
from headrace.decode.base import DecodeLimits, NewField
from headrace.decode.decoders import decoder
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.payload_field import json_field
from headrace.engine import duck
from headrace.source.sample_events import bench_event
from headrace.spec import Decode

SCHEMA = pa.schema([item for item in ARROW if item.name not in ("headers", "_source")])
TYPED = json.dumps(
    {
        **{"id": "BIGINT", "event_type": "VARCHAR", "timestamp": "TIMESTAMPTZ", "session_id": "VARCHAR"},
        "user": {"id": "BIGINT", "country": "VARCHAR", "plan": "VARCHAR"},
        **{"url": "VARCHAR", "status": "INTEGER", "duration_ms": "DOUBLE", "amount": "DOUBLE", "tags": ["VARCHAR"]},
        "ok": "BOOLEAN",
    }
)
Row = dict[str, Any]


def as_json(rows: list[Row], spaced: bool = False) -> pa.BinaryArray:
    """Rows as JSON values."""
    separators = (", ", ": ") if spaced else (",", ":")
    return pa.array([json.dumps(row, separators=separators).encode() for row in rows], pa.binary())


def encoded(rows: list[Row], encode: encodings.Encode, head: bytes = b"") -> pa.BinaryArray:
    """Rows in another format."""
    return pa.array([head + encode(row) for row in rows], pa.binary())


def faithful(schema: pa.Schema = SCHEMA, new_field: NewField = "ignore") -> Measured:
    """Headrace's decoder of JSON."""
    return JsonDecoder(schema, new_field, DecodeLimits()).decode


def by_format(**options: Any) -> Measured:
    """Headrace's decoder of another format."""
    [(name, _)] = options.items()
    format_options = Decode.model_validate(options).options
    decode: Measured = decoder(name, SCHEMA, new_field="ignore", limits=DecodeLimits(), options=format_options).decode
    return decode


def one_by_one(values: pa.BinaryArray) -> object:
    """Headrace's decoder of JSON without the vectorised code path."""
    decoder = JsonDecoder(SCHEMA, "ignore", DecodeLimits())
    decoder._prover = None
    return decoder.decode(values)


def duckdb_sql(select: str) -> Measured:
    """A DuckDB expression over the values as text."""
    return lambda values: duck.plan_of_query(
        f"SELECT {select} AS x FROM texts", texts=pa.table({"v": values.cast(pa.string())})
    )


def by_arrow(values: pa.BinaryArray) -> object:
    """pyarrow's reader of JSON lines: a value of another type fails the batch."""
    options = arrow_json.ParseOptions(explicit_schema=_with_text_times())
    lines = b"\n".join(values.to_pylist())
    return arrow_json.read_json(io.BytesIO(lines), arrow_json.ReadOptions(use_threads=False), options)


def by_orjson(values: pa.BinaryArray) -> object:
    """orjson and Arrow's conversion of Python objects (timestamps stay text)."""
    return pa.Table.from_pylist([orjson.loads(value) for value in values.to_pylist()], _with_text_times())


def by_fastavro(values: pa.BinaryArray) -> object:
    """fastavro, one record at a time, without a conversion to columns."""
    import fastavro

    parsed = fastavro.parse_schema(encodings.avro_schema())
    return [fastavro.schemaless_reader(io.BytesIO(value), parsed) for value in values.to_pylist()]


def by_value_reader(values: pa.BinaryArray) -> object:
    """Headrace's reader of single Avro values, without a conversion to columns."""
    from headrace.decode.avro.schema import parse_avro_schema
    from headrace.decode.avro.value_reader import AvroValueReader

    kind = parse_avro_schema(encodings.AVRO.schema)
    return [AvroValueReader(value, len(value)).value(kind, 0) for value in values.to_pylist()]


def _with_text_times() -> pa.Schema:
    return pa.schema([pa.field("timestamp", pa.string()) if item.name == "timestamp" else item for item in SCHEMA])


def with_every(rows: list[Row], nth: int, change: Callable[[Row], Row]) -> list[Row]:
    """Change every nth row."""
    return [change(row) if at % nth == 0 else row for at, row in enumerate(rows)]


def json_runs(rows: list[Row]) -> dict[str, Run]:
    """Values and function of each JSON figure."""
    clean = as_json(rows)
    absent = as_json(with_every(rows, 2, lambda row: {key: row[key] for key in row if key not in ("url", "amount")}))
    nulls = as_json(with_every(rows, 2, lambda row: {**row, "url": None, "user": None}))
    flat = as_json([{**row, "extra": 1, "more": "x"} for row in rows])
    deep = as_json([{**row, "extra": {"k": {"m": 1}, "n": "x"}} for row in rows])
    lists = as_json([{**row, "extra": [{"k": 1, "n": "x"}, {"k": 2}]} for row in rows])
    few = pa.schema([item for item in SCHEMA if item.name in ("id", "event_type", "timestamp")])
    text = pa.schema([*SCHEMA, json_field("extra")])
    return {
        "faithful": (clean, faithful()),
        "faithful, spaced text": (as_json(rows, spaced=True), faithful()),
        "faithful, fields absent in half": (absent, faithful()),
        "faithful, nulls in half": (nulls, faithful()),
        "faithful, two ignored fields in all": (flat, faithful()),
        "faithful, an ignored object in all": (deep, faithful()),
        "faithful, an ignored list of objects": (lists, faithful()),
        "faithful, 3 columns of 11": (clean, faithful(few)),
        "faithful, an object kept as text": (deep, faithful(text)),
        "faithful, 10 % poison": (_poisoned(clean), faithful()),
        "exact way alone": (clean.slice(0, 20_000), one_by_one),
        "part: json_valid": (clean, duckdb_sql("json_valid(v)")),
        "part: json_type at 14 places": (clean, duckdb_sql("json_type(v, [" + ",".join(["'/url'"] * 14) + "])")),
        "part: json_keys": (clean, duckdb_sql("json_keys(v)")),
        "peer: duckdb from_json, unfaithful": (clean, duckdb_sql(f"from_json(v, {duck.literal(TYPED)})")),
        "peer: duckdb from_json_strict": (clean, duckdb_sql(f"TRY(from_json_strict(v, {duck.literal(TYPED)}))")),
        "peer: duckdb json_structure": (clean, duckdb_sql("json_structure(v)")),
        "peer: pyarrow.json": (clean, by_arrow),
        "peer: orjson + from_pylist": (clean, by_orjson),
    }


def _poisoned(clean: pa.BinaryArray) -> pa.BinaryArray:
    values = clean.to_pylist()
    values[::10] = [POISON[at % len(POISON)] for at in range(len(values[::10]))]
    return pa.array(values, pa.binary())


def typed_runs(rows: list[Row], folder: Path) -> dict[str, Run]:
    """Values and function of each figure of Avro, Protobuf and MessagePack, with schemas in files."""
    (folder / "event.avsc").write_text(encodings.AVRO.schema)
    (folder / "optional.avsc").write_text(json.dumps(encodings.avro_schema(optional=True)))
    (folder / "event.proto").write_text(encodings.PROTOBUF.schema)
    fields = [{"name": name, "type": kind} for name, kind in FIELDS.items()]
    (folder / "layouts.json").write_text(json.dumps({"id": 1, "name": "bench.Event", "fields": fields}))
    plain, optional = encoded(rows, encodings.avro()), encodings.avro(optional=True)
    halves = with_every(rows, 2, lambda row: {**row, "url": None, "user": None})
    longer = [{**row, "tags": [f"t{n}" for n in range(at % 40)]} for at, row in enumerate(rows)]
    cut = [value[:-3] if at % 10 == 0 else value for at, value in enumerate(plain.to_pylist())]
    avro = {"schema": str(folder / "event.avsc")}
    nullable = {"schema": str(folder / "optional.avsc")}
    protobuf = {"descriptor": str(folder / "event.proto"), "message": "bench.Event"}
    packed = encoded(rows, encodings.msgpack(), (1).to_bytes(4, "big"))
    return {
        "avro": (plain, by_format(avro=avro)),
        "avro, every field may be null": (encoded(rows, optional), by_format(avro=nullable)),
        "avro, nulls in half": (encoded(halves, optional), by_format(avro=nullable)),
        "avro, up to 39 texts in an array": (encoded(longer, encodings.avro()), by_format(avro=avro)),
        "avro, 10 % cut short": (pa.array(cut, pa.binary()), by_format(avro=avro)),
        "avro, exact way alone, no columns": (plain.slice(0, 20_000), by_value_reader),
        "protobuf": (encoded(rows, encodings.protobuf()), by_format(protobuf=protobuf)),
        "msgpack": (packed, by_format(msgpack={"schemas": str(folder / "layouts.json")})),
        "peer: fastavro, no columns": (plain.slice(0, 20_000), by_fastavro),
    }


def figures(count: int) -> dict[str, float]:
    """Cost of all runs."""
    rows = [orjson.loads(bench_event(1, number)) for number in range(count)]
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        return lowest_costs({**json_runs(rows), **dict(shapes.runs(count)), **typed_runs(rows, Path(folder))})


if __name__ == "__main__":
    print(to_text(figures(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)))
