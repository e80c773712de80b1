"""Put results of JMESPath in a column or in a nested field of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.engine.duck import literal
from headrace.errors import UsageError
from headrace.transform.sql import result_types


@dataclass(frozen=True, slots=True)
class PlacedResult:
    """SQL for a value, and its type."""

    sql: str
    type: pa.DataType


def place_results(
    have: PlacedResult, path: Sequence[str], result: PlacedResult, on_null: str, target: str
) -> PlacedResult:
    """A value with the result at a path; missing parents are created if there is a result."""
    if not path:
        return _with_result(have, result, on_null, target)
    if not (pa.types.is_struct(have.type) or pa.types.is_null(have.type)):
        raise UsageError(f"jmespath {target}: the message has {have.type} where '{path[0]}' would be a field.")
    fields = {item.name: item.type for item in have.type} if pa.types.is_struct(have.type) else {}
    inner = (
        PlacedResult(f"struct_extract({have.sql}, {literal(path[0])})", fields[path[0]])
        if path[0] in fields
        else NOTHING
    )
    put = place_results(inner, path[1:], result, on_null, target)
    parts = {name: PlacedResult(f"struct_extract({have.sql}, {literal(name)})", kind) for name, kind in fields.items()}
    parts[path[0]] = put
    typed = {name: part for name, part in parts.items() if not pa.types.is_null(part.type)}
    if not typed:
        return have
    packed = "{" + ", ".join(f"{literal(name)}: {part.sql}" for name, part in typed.items()) + "}"
    kind = pa.struct([pa.field(name, part.type) for name, part in typed.items()])
    if on_null == "null":
        return PlacedResult(packed, kind)
    return PlacedResult(f"CASE WHEN {have.sql} IS NOT NULL OR {result.sql} IS NOT NULL THEN {packed} END", kind)


NOTHING = PlacedResult("NULL", pa.null())


def _with_result(have: PlacedResult, result: PlacedResult, on_null: str, target: str) -> PlacedResult:
    if pa.types.is_null(result.type):
        return (
            PlacedResult(f"CAST(NULL AS {result_types.sql_type(have.type)})", have.type)
            if have is not NOTHING
            else NOTHING
        )
    if on_null != "keep" or pa.types.is_null(have.type):
        return result
    if have.type != result.type:
        raise UsageError(
            f"jmespath {target}: the result is {result.type}, the existing value is {have.type}.",
            hint="Set `on_null` to drop or null, or declare the column.",
        )
    return PlacedResult(f"coalesce({result.sql}, {have.sql})", have.type)
