"""Additional columns of dead letters, by SQL or JMESPath. A failing expression never loses a dead letter."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.delta.schema import DEAD_LETTERS, RECORD_SCHEMA
from headrace.transform.jmespath import dialect
from headrace.transform.steps import SetStep, Transform

Made = Callable[[pa.Table, datetime], pa.ChunkedArray | pa.Array]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PLAIN = ("topic", "partition", "offset", "table", "step", "reason", "detail", "schema_id", "pipeline", "spec")
_BYTES = ("base64_bytes", "json_string")


class DeadLetterColumns:
    """Columns in spec order; NULL if an expression fails. SQL can read the columns before it."""

    def __init__(self, steps: Iterable[tuple[Mapping[str, str], Mapping[str, str]]]) -> None:
        self._made: list[tuple[pa.Field, Made]] = []
        self.schema = DEAD_LETTERS
        for sql, queries in steps:
            for name, text in sql.items():
                self._add_sql(name, text)
            for name, text in queries.items():
                self._add(pa.field(name, pa.string()), _query(text))

    def add(self, letters: pa.Table, now: datetime) -> pa.Table:
        """The dead letters with these columns after their own."""
        for column, make in self._made:
            letters = letters.append_column(column, make(letters, now).cast(column.type))
        return letters

    def _add(self, column: pa.Field, make: Made) -> None:
        self._made.append((column, make))
        self.schema = self.schema.append(column)

    def _add_sql(self, name: str, text: str) -> None:
        transform = Transform([SetStep({name: text})])
        kind = transform.output(self.schema).field(name).type
        self._add(pa.field(name, pa.string() if pa.types.is_null(kind) else kind), _expression(name, transform))


def _expression(name: str, transform: Transform) -> Made:
    def make(letters: pa.Table, now: datetime) -> pa.ChunkedArray:
        done = transform.apply(letters, records_of_dead_letters(letters), now)
        at = np.full(len(letters), -1)
        at[done.index.to_numpy()] = np.arange(len(done.index))
        return done.rows.column(name).take(pa.array(at, mask=at < 0))

    return make


def records_of_dead_letters(letters: pa.Table) -> pa.Table:
    """The Kafka records of dead letters; their timestamp type is not stored."""
    unknown = pa.nulls(len(letters), RECORD_SCHEMA.field("timestamp_type").type)
    return pa.table(
        [unknown if n == "timestamp_type" else letters.column(n) for n in RECORD_SCHEMA.names], schema=RECORD_SCHEMA
    )


def _query(text: str) -> Made:
    """JMESPath over the dead letter in the form of kafka-delta-ingest, with Headrace's names beside."""
    if text in dialect.KAFKA:
        return lambda letters, now: _envelope(records_of_dead_letters(letters).column(dialect.KAFKA[text]))
    tree = dialect.parse_jmespath(text)

    def make(letters: pa.Table, now: datetime) -> pa.Array:
        interpreter = dialect.Interpreter(now)
        return pa.array([_answer(interpreter, tree, letter) for letter in _letters(letters, text)], pa.string())

    return make


def _envelope(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Columns of the record as text; times in microseconds."""
    return values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values


def _answer(interpreter: dialect.Interpreter, tree: Any, letter: dict[str, Any]) -> str | None:
    with suppress(dialect.Failed):
        value = interpreter.answer(tree, letter)
        return value if value is None or isinstance(value, str) else dialect.dump_json(value)
    return None


def _letters(letters: pa.Table, text: str) -> Iterator[dict[str, Any]]:
    """Dead letters as objects; bytes, which may be large, only if the expression reads them."""
    plain = letters.select([*_PLAIN, "rejected_at"]).to_pylist()
    values = letters.column("value") if any(name in text for name in _BYTES) else None
    for nth, letter in enumerate(plain):
        micros = (letter.pop("rejected_at") - _EPOCH) // timedelta(microseconds=1)
        payload = dict.fromkeys(_BYTES) if values is None else _bytes(values[nth].as_py(), letter["step"])
        yield {**letter, **payload, "error": letter["detail"], "timestamp": micros}


def _bytes(value: bytes | None, step: str) -> dict[str, str | None]:
    """Raw bytes if the value could not be decoded, else its text."""
    if value is None:
        return dict.fromkeys(_BYTES)
    if step == "decode":
        return {"base64_bytes": base64.b64encode(value).decode(), "json_string": None}
    return {"base64_bytes": None, "json_string": value.decode(errors="replace")}
