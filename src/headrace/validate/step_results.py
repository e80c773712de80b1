"""Rules about what the steps make: of the declared type, and no time out of a bare number."""

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
from headrace.transform.from_spec import step_of

if TYPE_CHECKING:
    import pyarrow as pa


def check_results(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Columns that the steps make of another type than the declared one, as far as declared columns tell."""
    from headrace.plan.route_schema import declared_field

    declared = {column.name for column in spec.table.columns}
    steps = [(index, step) for index, step in enumerate(spec.transform) if step.mask is None]
    made = any(name in declared for _, step in steps for name in (*(step.set or {}), *step.queries))
    if not made:
        return
    with suppress(UsageError):  # told elsewhere
        import pyarrow as pa

        columns = pa.schema([declared_field(column) for column in spec.table.columns])
        if spec.explode is None:
            yield from _other_types(steps, columns)
        payload = columns if spec.explode is None else _record(spec.explode, columns)
        for index, step in steps:
            yield from _bare_numbers(("transform", index, "jmespath"), step, columns, payload)


def _record(explode: Explode, columns: pa.Schema) -> pa.Schema:
    """What declared columns tell of a record whose list is exploded: the types of the fields that are kept."""
    import pyarrow as pa

    from headrace.decode.payload_field import PayloadField

    kept = [(columns.field(name), path) for name, path in explode.keep.items() if name in columns.names]
    return pa.schema([PayloadField(item.name, item.type, item.nullable, path=path).to_arrow() for item, path in kept])


def _other_types(steps: list[tuple[int, StepSpec]], columns: pa.Schema) -> Iterator[UnlocatedDiagnostic]:
    import pyarrow as pa

    from headrace.plan.route_schema import same_columns
    from headrace.spec.types import type_name
    from headrace.transform.steps import Transform

    output = Transform([step_of(step) for _, step in steps]).output(columns, columns)
    places: dict[str, Path] = {
        name: ("transform", index, "set", name) for index, step in steps for name in step.set or ()
    }
    for name in places.keys() & set(columns.names) & set(output.names):
        made, wanted = output.field(name).type, columns.field(name).type
        if not pa.types.is_null(made) and not same_columns(made, wanted):
            seen = f"the expression returns {type_name(made)}, but column '{name}' is {type_name(wanted)}"
            yield UnlocatedDiagnostic(
                places[name], seen, f"an expression that returns {type_name(wanted)}; use a cast if necessary"
            )


def _bare_numbers(here: Path, step: StepSpec, columns: pa.Schema, payload: pa.Schema) -> Iterator[UnlocatedDiagnostic]:
    """Numbers in columns of times without a unit: they may be seconds or milliseconds."""
    import pyarrow as pa

    from headrace.spec.types import type_name
    from headrace.transform.jmespath.dialect import check_jmespath, in_micros
    from headrace.transform.jmespath.queries import Queries

    here = (*here, "set") if isinstance(step.jmespath, Jmespath) else here
    for name, text in step.queries.items():
        column = columns.field(name) if name in columns.names else None
        if column is None or not _needs_unit(column) or check_jmespath(text) or in_micros(text):
            continue
        made = Queries(payload).add(text, None).field.type
        if pa.types.is_integer(made) or pa.types.is_floating(made):
            seen = f"a plain number, but column '{name}' is {type_name(column.type)} without a unit"
            allowed = "RFC 3339 text (epoch_millis_to_iso8601), or a timestamp column with a unit: s, ms, us or ns"
            yield UnlocatedDiagnostic((*here, name), seen, allowed)


def _needs_unit(column: pa.Field) -> bool:
    """Whether a column is one of times that numbers do not tell."""
    import pyarrow as pa

    from headrace.decode.payload_field import payload_field

    texts = payload_field(column).unit in ("", "local-utc")
    return bool(texts and (pa.types.is_timestamp(column.type) or pa.types.is_date(column.type)))
