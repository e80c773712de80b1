"""Rules for write modes: merge keys, order of changes, SCD2, deduplication and overwrite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.merge import MergeSpec, Scd2Spec
from headrace.spec.table import TableOptions, TableSpec
from headrace.spec.yaml_reader import Path
from headrace.validate.columns import column_name_error, declared_columns_of, names_after

if TYPE_CHECKING:
    from headrace.spec.model import Spec
    from headrace.spec.steps import StepSpec

_MODE_KEYS = {"mode", "merge", "deduplicate", "source", "columns", "features", "cluster_by"}


def check_mode(
    table: TableSpec, own: TableOptions, here: Path, steps: Sequence[StepSpec]
) -> Iterator[UnlocatedDiagnostic]:
    """Check the write mode; `own` are the options written at this path."""
    if own is not table and not _MODE_KEYS & own.model_fields_set:
        return
    yield from _deduplicate(table, here, steps)
    merge, path = table.merge, (*here, "merge")
    merges = table.mode in ("upsert", "scd2")
    if merges == (merge is None):
        message = (
            f"mode: {table.mode} requires keys" if merge is None else f"merge is not supported with mode: {table.mode}"
        )
        expected = "merge: {keys: […]} with mode: upsert or scd2"
        yield UnlocatedDiagnostic((*here, "mode") if merge is None else path, message, expected)
    if table.overwrites:
        yield from _overwrite(table, here)
    if merge is None or not merges:
        return
    yield from _merge(table, merge, here)
    yield from _scd2(table, merge, path)
    if table.closed:
        yield from _names(merge, path, names_after(steps, declared_columns_of(table)))


def _has_one_topic(spec: Spec) -> bool:
    if spec.entry is not None and spec.entry.topic is not None:
        return len(spec.entry.topic) == 1
    broker, http = spec.source.kafka or spec.source.rivven, spec.source.http
    if broker is not None:
        return broker.pattern is None and len(broker.topics or ()) < 2
    return http is None or (http.pattern is None and len(http.all_topics) < 2)


def check_topics(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Warnings for merges of several topics into one table."""
    merge, alone = table.merges, _has_one_topic(spec) or spec.route.kind == "topic"
    if merge is None or alone or (own is not table and not _MODE_KEYS & own.model_fields_set):
        return
    path = (*here, "merge")
    if merge.sequence_by is None:
        message = "several topics in one table: offsets of different topics are not ordered"
        yield UnlocatedDiagnostic(
            path, message, "sequence_by, or all records of a key in the same topic", severity="warning"
        )
    if merge.truncates is not None and merge.scd2 is None:
        message = "several topics in one table: a truncate in one topic deletes the rows of all"
        yield UnlocatedDiagnostic(path, message, "one table per topic: route.by: topic", severity="warning")


def _merge(table: TableSpec, merge: MergeSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Keys and order of changes."""
    path = (*here, "merge")
    if len({key.lower() for key in merge.keys}) < len(merge.keys):
        yield UnlocatedDiagnostic((*path, "keys"), "duplicate column", "unique names", depends_on=())
    if merge.sequence_by is not None and merge.update is not None:
        yield UnlocatedDiagnostic(
            (*path, "update"),
            "not supported with sequence_by",
            "only one of them: partial updates are ordered by offset",
        )
    if merge.sequence_by in merge.keys:
        yield UnlocatedDiagnostic(
            (*path, "sequence_by"), "is a key column", "a column that increases with each change of a key"
        )
    if not table.source and (merge.sequence_by is None or merge.update is not None):
        yield UnlocatedDiagnostic(
            (*here, "source"), "must be true: changes are ordered by _source", "true, or merge.sequence_by"
        )


def _scd2(table: TableSpec, merge: MergeSpec, path: Path) -> Iterator[UnlocatedDiagnostic]:
    """What a history needs, and what would take away from it."""
    if table.mode != "scd2":
        if merge.scd2 is not None:
            yield UnlocatedDiagnostic((*path, "scd2"), f"not supported with mode: {table.mode}", "mode: scd2")
        return
    if merge.sequence_by is None:
        yield UnlocatedDiagnostic(
            path, "mode: scd2 requires sequence_by", "sequence_by: the column with the time of the change"
        )
    if merge.truncate_when is not None:
        yield UnlocatedDiagnostic(
            (*path, "truncate_when"),
            "not supported with mode: scd2",
            "delete_when, which ends the current row of a key",
        )
    if merge.update is not None:
        yield UnlocatedDiagnostic((*path, "update"), "not supported with mode: scd2", "scd2.track, or mode: upsert")
    scd2 = merge.scd2 or Scd2Spec()
    yield from _own_names(table, merge, scd2, (*path, "scd2"))
    if scd2.track and "typeWidening" in table.features:
        yield UnlocatedDiagnostic(
            (*path, "scd2", "track"),
            "not supported with features: [typeWidening]",
            "only one of them",
        )


def _own_names(table: TableSpec, merge: MergeSpec, scd2: Scd2Spec, path: Path) -> Iterator[UnlocatedDiagnostic]:
    """The history's columns are its own: no record brings them."""
    used_names = {
        name.lower() for name in (*merge.keys, merge.sequence_by or "", *(each.name for each in table.columns))
    }
    for key in ("valid_from", "valid_to", "current"):
        name = getattr(scd2, key)
        if error := column_name_error(name):
            yield UnlocatedDiagnostic((*path, key), error, "valid Delta column names")
        elif name.lower() in used_names:
            yield UnlocatedDiagnostic(
                (*path, key), f"'{name}' is a column of the rows or another SCD2 column", "another name"
            )
        used_names.add(name.lower())
    for index, name in enumerate(scd2.track):
        if name in (*merge.keys, merge.sequence_by, *scd2.columns):
            yield UnlocatedDiagnostic((*path, "track", index), f"'{name}'", "columns other than keys and sequence_by")


def _names(merge: MergeSpec, path: Path, names: Sequence[str]) -> Iterator[UnlocatedDiagnostic]:
    """Columns that are named and not there."""
    update = merge.update.columns if merge.update else ()
    track = merge.scd2.track if merge.scd2 else ()
    named_columns = [((*path, "keys", index), name) for index, name in enumerate(merge.keys)]
    named_columns += [((*path, "sequence_by"), merge.sequence_by)] if merge.sequence_by else []
    named_columns += [((*path, "update", "columns", index), name) for index, name in enumerate(update)]
    named_columns += [((*path, "scd2", "track", index), name) for index, name in enumerate(track)]
    for place, name in named_columns:
        if name not in names:
            yield UnlocatedDiagnostic(place, f"no column '{name}'", ", ".join(names), closest(name, names))
    for index, name in enumerate(update):
        if name in merge.keys:
            yield UnlocatedDiagnostic((*path, "update", "columns", index), "is a key column", "columns other than keys")


def _deduplicate(table: TableSpec, here: Path, steps: Sequence[StepSpec]) -> Iterator[UnlocatedDiagnostic]:
    """Requirements of deduplication."""
    if table.deduplicate is None:
        return
    path, keys = (*here, "deduplicate"), table.deduplicate.keys
    if table.mode != "append":
        yield UnlocatedDiagnostic(
            path, f"not supported with mode: {table.mode}", "mode: append (upserts by key are idempotent)"
        )
    if not table.source:
        yield UnlocatedDiagnostic(
            (*here, "source"), "must be true: deduplication uses the timestamp in _source", "true"
        )
    if len({key.lower() for key in keys}) < len(keys):
        yield UnlocatedDiagnostic((*path, "keys"), "duplicate column", "unique names", depends_on=())
    if table.closed:
        names = names_after(steps, declared_columns_of(table))
        for index, name in enumerate(keys):
            if name not in names:
                yield UnlocatedDiagnostic(
                    (*path, "keys", index), f"no column '{name}'", ", ".join(names), closest(name, names)
                )


def _overwrite(table: TableSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Requirements of the overwrite modes."""
    for key in ("features", "cluster_by"):
        if getattr(table, key):
            yield UnlocatedDiagnostic(
                (*here, key),
                f"not supported with mode: {table.mode}",
                "mode: append, upsert or scd2",
            )
    if table.mode == "overwrite_partitions" and not table.partition_by:
        yield UnlocatedDiagnostic(
            (*here, "mode"), "overwrite_partitions requires partition_by", "partition_by, or mode: overwrite"
        )
