"""What Avro costs beside the same records as JSON: CPU-seconds per million records, one thread.

Run: PYTHONPATH=src python bench/avro.py [records] — prints the table.
"""

from __future__ import annotations

import io
import json
import sys
from datetime import datetime
from typing import Any

import fastavro
import pyarrow as pa

from bench.decode import BATCH, ROUNDS, SCHEMA, Way, cost, faithful, records, written
from headrace.decode.avro import AvroDecoder, OneSchema
from headrace.decode.avro_schema import parse
from headrace.decode.contract import Limits

_DEVICE = {
    "type": "record",
    "name": "Device",
    "fields": [
        {"name": "os", "type": "string"},
        {"name": "version", "type": "string"},
        {"name": "width", "type": "int"},
    ],
}
_FIELDS: dict[str, Any] = {
    **{"id": "long", "event": "string", "user_id": "long", "session": "string"},
    "ts": {"type": "long", "logicalType": "timestamp-millis"},
    **{"url": "string", "amount": "double", "ok": "boolean", "device": _DEVICE},
    "tags": {"type": "array", "items": "string"},
    "note": "string",
}


def schema(optional: bool = False) -> dict[str, Any]:
    """The events of the JSON bench; `optional`: every field may be null."""
    fields = [{"name": name, "type": ["null", kind] if optional else kind} for name, kind in _FIELDS.items()]
    return {"type": "record", "name": "Event", "fields": fields}


def encoded(rows: list[dict[str, Any]], of: dict[str, Any]) -> pa.BinaryArray:
    """The rows as Avro values."""
    parsed, made = fastavro.parse_schema(of), []
    for row in rows:
        out = io.BytesIO()
        moment = row["ts"] and datetime.fromisoformat(row["ts"])
        fastavro.schemaless_writer(out, parsed, {**row, "ts": moment})
        made.append(out.getvalue())
    return pa.array(made, pa.binary())


def by_column(of: dict[str, Any]) -> Way:
    """Our decode."""
    return AvroDecoder(OneSchema(parse(json.dumps(of))), SCHEMA, "ignore", Limits()).decode


def by_fastavro(values: pa.BinaryArray) -> object:
    """The library, one record at a time, without the way into columns."""
    parsed = fastavro.parse_schema(schema())
    return [fastavro.schemaless_reader(io.BytesIO(value), parsed) for value in values.to_pylist()]


def ways(count: int) -> dict[str, tuple[pa.BinaryArray, Way]]:
    """What is measured: the values and the way, by name."""
    rows = records(count)
    plain, optional = encoded(rows, schema()), encoded(rows, schema(True))
    halves = [{**row, "note": None, "device": None} if at % 2 else row for at, row in enumerate(rows)]
    long = [{**row, "tags": [f"t{n}" for n in range(at % 40)]} for at, row in enumerate(rows[:50_000])]
    poisoned = [value[:-3] if at % 10 == 0 else value for at, value in enumerate(plain.to_pylist())]
    return {
        "json": (written(rows), faithful()),
        "avro": (plain, by_column(schema())),
        "avro, every field may be null": (optional, by_column(schema(True))),
        "avro, nulls in half": (encoded(halves, schema(True)), by_column(schema(True))),
        "avro, up to 39 texts in an array": (encoded(long, schema()), by_column(schema())),
        "avro, 10 % cut short": (pa.array(poisoned, pa.binary()), by_column(schema())),
        "peer: fastavro, no columns": (plain.slice(0, 20_000), by_fastavro),
    }


def main() -> None:
    """Measure in turn, so that a neighbour's load falls on all alike, and print the least of each."""
    runs = ways(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000)
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(ROUNDS + 1):
        for name, (values, way) in runs.items():
            taken = cost(values if number else values.slice(0, BATCH), way)
            if number:  # the first round only plans and learns
                spent[name].append(taken)
    for name, taken in spent.items():
        print(f"{name:42s}{min(taken):8.2f} CPU-s per million")


if __name__ == "__main__":
    main()
