"""Rules for the results of steps: declared types, and units of numeric timestamps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.errors import UsageError
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.explode import Explode
from headrace.spec.model import Spec
from headrace.spec.steps import Jmespath, StepSpec
from headrace.spec.yaml_reader import Path

if TYPE_CHECKING:
    import pyarrow as pa


def check_results(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Columns that steps set to another type than the declared one."""
    declared = {column.name for column in spec.table.columns}
    steps = [(index, step) for index, step in enumerate(spec.transform) if step.mask is None]
    sets_declared = any(name in declared for _, step in steps for name in (*(step.set or {}), *step.queries))
    if not sets_declared:
        return
    with suppress(UsageError):  # reported by other rules
        import pyarrow as pa

        from headrace.decode.payload_field import declared_field

        columns = pa.schema([declared_field(column) for column in spec.table.columns])
        if spec.explode is None:
            yield from _type_mismatches(steps, columns)
        payload = columns if spec.explode is None else _record(spec.explode, columns)
        for index, step in steps:
            yield from _bare_numbers(("transform", index, "jmespath"), step, columns, payload)


def _record(explode: Explode, columns: pa.Schema) -> pa.Schema:
    """Schema of a record with an exploded array, from the declared columns: the kept fields."""
    import pyarrow as pa

    from headrace.decode.payload_field import PayloadField

    fields = [(columns.field(name), path) for name, path in explode.keep.items() if name in columns.names]
    return pa.schema([PayloadField(item.name, item.type, item.nullable, path=path).to_arrow() for item, path in fields])


def _type_mismatches(steps: list[tuple[int, StepSpec]], columns: pa.Schema) -> Iterator[UnlocatedDiagnostic]:
    import pyarrow as pa

    from headrace.spec.types import same_columns, type_name
    from headrace.transform.from_spec import step_of
    from headrace.transform.steps import Transform

    output = Transform([step_of(step) for _, step in steps]).output(columns, columns)
    paths: dict[str, Path] = {
        name: ("transform", index, "set", name) for index, step in steps for name in step.set or ()
    }
    for name in paths.keys() & set(columns.names) & set(output.names):
        result_type, column_type = output.field(name).type, columns.field(name).type
        if not pa.types.is_null(result_type) and not same_columns(result_type, column_type):
            message = (
                f"the expression returns {type_name(result_type)}, but column '{name}' is {type_name(column_type)}"
            )
            yield UnlocatedDiagnostic(
                paths[name], message, f"an expression that returns {type_name(column_type)}; use a cast if necessary"
            )


def _bare_numbers(here: Path, step: StepSpec, columns: pa.Schema, payload: pa.Schema) -> Iterator[UnlocatedDiagnostic]:
    """Numbers in timestamp columns without a unit, which may be seconds or milliseconds."""
    import pyarrow as pa

    from headrace.spec.types import type_name
    from headrace.transform.jmespath.dialect import check_jmespath, in_micros
    from headrace.transform.jmespath.queries import Queries

    here = (*here, "set") if isinstance(step.jmespath, Jmespath) else here
    for name, text in step.queries.items():
        column = columns.field(name) if name in columns.names else None
        if column is None or not _needs_unit(column) or check_jmespath(text) or in_micros(text):
            continue
        result_type = Queries(payload).add(text, None).field.type
        if pa.types.is_integer(result_type) or pa.types.is_floating(result_type):
            message = f"a plain number, but column '{name}' is {type_name(column.type)} without a unit"
            expected = "RFC 3339 text (epoch_millis_to_iso8601), or a timestamp column with a unit: s, ms, us or ns"
            yield UnlocatedDiagnostic((*here, name), message, expected)


def _needs_unit(column: pa.Field) -> bool:
    """Whether a column is a date or timestamp without a unit for numbers."""
    import pyarrow as pa

    from headrace.decode.payload_field import payload_field

    texts = payload_field(column).unit in ("", "local-utc")
    return bool(texts and (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)))
