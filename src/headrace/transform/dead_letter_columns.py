"""Additional columns of dead letters, by SQL or JMESPath. A failing expression never loses a dead letter."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.delta.schema import DEAD_LETTERS, RECORD_SCHEMA
from headrace.transform.jmespath import dialect
from headrace.transform.steps import SetStep, Transform

ColumnMaker = Callable[[pa.Table, datetime], pa.ChunkedArray | pa.Array]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = ("topic", "partition", "offset", "table", "step", "reason", "detail", "schema_id", "pipeline", "spec")
_BYTES = ("base64_bytes", "json_string")


class DeadLetterColumns:
    """Columns in spec order; NULL if an expression fails. SQL can read the columns before it."""

    def __init__(self, steps: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
        self._columns: list[tuple[pa.Field, ColumnMaker]] = []
        self.schema = DEAD_LETTERS
        for sql, queries in steps:
            for name, text in sql.items():
                self._add_sql(name, text)
            for name, text in queries.items():
                self._add(pa.field(name, pa.string()), _query(text))

    def add(self, dead_letters: pa.Table, now: datetime) -> pa.Table:
        """The dead letters with these columns after their own."""
        for column, make in self._columns:
            dead_letters = dead_letters.append_column(column, make(dead_letters, now).cast(column.type))
        return dead_letters

    def _add(self, column: pa.Field, make: ColumnMaker) -> None:
        self._columns.append((column, make))
        self.schema = self.schema.append(column)

    def _add_sql(self, name: str, text: str) -> None:
        transform = Transform([SetStep({name: text})])
        kind = transform.output(self.schema).field(name).type
        self._add(pa.field(name, pa.string() if pa.types.is_null(kind) else kind), _expression(name, transform))


def _expression(name: str, transform: Transform) -> ColumnMaker:
    def make(dead_letters: pa.Table, now: datetime) -> pa.ChunkedArray:
        done = transform.apply(dead_letters, records_of_dead_letters(dead_letters), now)
        at = np.full(len(dead_letters), -1)
        at[done.index.to_numpy()] = np.arange(len(done.index))
        return done.rows.column(name).take(pa.array(at, mask=at < 0))

    return make


def records_of_dead_letters(dead_letters: pa.Table) -> pa.Table:
    """The Kafka records of dead letters; their timestamp type is not stored."""
    unknown = pa.nulls(len(dead_letters), RECORD_SCHEMA.field("timestamp_type").type)
    return pa.table(
        [unknown if n == "timestamp_type" else dead_letters.column(n) for n in RECORD_SCHEMA.names],
        schema=RECORD_SCHEMA,
    )


def _query(text: str) -> ColumnMaker:
    """JMESPath over the dead letter in the form of kafka-delta-ingest, with Headrace's names beside."""
    if text in dialect.KAFKA:
        return lambda dead_letters, now: _record_column(
            records_of_dead_letters(dead_letters).column(dialect.KAFKA[text])
        )
    tree = dialect.parse_jmespath(text)

    def make(dead_letters: pa.Table, now: datetime) -> pa.Array:
        interpreter = dialect.Interpreter(now)
        return pa.array(
            [_result(interpreter, tree, dead_letter) for dead_letter in _kdi_dead_letters(dead_letters, text)],
            pa.string(),
        )

    return make


def _record_column(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Columns of the record as text; times in microseconds."""
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _result(interpreter: dialect.Interpreter, tree: Any, dead_letter: dict[str, Any]) -> str | None:
    with suppress(dialect.Failed):
        value = interpreter.answer(tree, dead_letter)
        return value if value is None or isinstance(value, str) else dialect.dump_json(value)
    return None


def _kdi_dead_letters(dead_letters: pa.Table, text: str) -> Iterator[dict[str, Any]]:
    """Dead letters as objects; bytes, which may be large, only if the expression reads them."""
    plain = dead_letters.select([*_PLAIN, "rejected_at"]).to_pylist()
    values = dead_letters.column("value") if any(name in text for name in _BYTES) else None
    for nth, dead_letter in enumerate(plain):
        micros = (dead_letter.pop("rejected_at") - _EPOCH) // timedelta(microseconds=1)
        payload = dict.fromkeys(_BYTES) if values is None else _bytes(values[nth].as_py())
        yield {**dead_letter, **payload, "error": dead_letter["detail"], "timestamp": micros}


def _bytes(value: bytes | None) -> dict[str, str | None]:
    """The text of a value that is JSON, else its bytes."""
    if value is None:
        return dict.fromkeys(_BYTES)
    if _is_json(value):
        return {"base64_bytes": None, "json_string": value.decode()}
    return {"base64_bytes": base64.b64encode(value).decode(), "json_string": None}


def _is_json(value: bytes) -> bool:
    try:
        json.loads(value.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(name: str) -> Any:
    raise ValueError(name)
