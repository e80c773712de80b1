"""DEFAULT of a Delta table's column, for records without its field."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.decode.json.exact import inner_default
from headrace.decode.payload import node_of
from headrace.decode.payload_field import PayloadField, payload_field
from headrace.engine import duck
from headrace.errors import UsageError
from headrace.transform.sql.parser import ExpressionNotAllowed
from headrace.transform.sql.spark_sql import translated

CURRENT_DEFAULT = b"CURRENT_DEFAULT"
_SHOWN = 80


def default_text(column: pa.Field) -> str | None:
    """The default in JSON, as a record would have it; None if there is none.

    UsageError if it is not a constant.
    """
    text = (column.metadata or {}).get(CURRENT_DEFAULT, b"NULL").decode()
    if text.strip().upper() == "NULL":
        return None
    try:
        return _evaluated(text, column.type)
    except (ExpressionNotAllowed, UsageError) as refused:
        raise UsageError(
            f"column '{column.name}' has the DEFAULT {text[:_SHOWN]}, which cannot be evaluated: {refused.message}.",
            hint="Set the column in the transform (set), or declare it with a default.",
        ) from None


def with_default(item: pa.Field, column: pa.Field) -> pa.Field:
    """The payload field with the default of its column, unless the spec gives one."""
    spec = payload_field(item)
    default = default_text(column) if spec.default is None else None
    if default is not None and spec.unit:
        raise UsageError(
            f"column '{column.name}' has a DEFAULT in the table and a unit in the spec.",
            hint="Declare the same default beside the unit.",
        )
    other = {key: value for key, value in spec.other.items() if key != CURRENT_DEFAULT}
    return replace(spec, default=default or spec.default, other=other).to_arrow()


def default_value(column: pa.Field) -> pa.Scalar | None:
    """The default as a value of the column; None if it has none."""
    text = default_text(column)
    return None if text is None else pa.array([_value(text, column.type)], column.type)[0]


@lru_cache(maxsize=256)
def _evaluated(text: str, kind: pa.DataType) -> str:
    translation = translated(text, pa.schema([]))
    text_value = _json(duck.query(f"SELECT {translation.sql} AS v")["v"][0].as_py(), kind)
    _value(text_value, kind)
    return text_value


def _value(text: str, kind: pa.DataType) -> Any:
    return inner_default(node_of(PayloadField("default", kind, default=text).to_arrow()), "default")


def _json(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, Decimal) and pa.types.is_floating(kind):
        return repr(float(value))
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return json.dumps(value.isoformat())
    return json.dumps(value.isoformat() if isinstance(value, date) else value)
