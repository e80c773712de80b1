"""Rules for maintenance: z-order, liquid clustering and file sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import Spec
from headrace.spec.table import TableMatch, TableOptions, TableSpec
from headrace.spec.yaml_reader import Path
from headrace.validate.columns import declared_columns_of, names_after


def check_maintenance(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check z-order, clustering and file sizes of all tables."""
    written: list[tuple[Path, TableOptions]] = [(("table",), spec.table)]
    written += [(("tables", index), options) for index, options in enumerate(spec.tables)]
    for here, own in written:
        table = own.over(spec.table) if isinstance(own, TableMatch) else spec.table
        if own.z_order and spec.maintenance is None:
            yield UnlocatedDiagnostic(
                (*here, "z_order"), "z_order has no effect without maintenance", "maintenance: {}"
            )
        yield from _columns(table, own.z_order, (*here, "z_order"), spec)
        yield from _columns(table, own.cluster_by, (*here, "cluster_by"), spec)
        yield from _clustered(table, own, here)
        yield from _sizes(table, own, here)


def _clustered(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Liquid clustering excludes partitions and z-order, and requires Spark."""
    if not own.cluster_by:
        return
    for key in ("partition_by", "z_order"):
        if getattr(table, key):
            yield UnlocatedDiagnostic((*here, "cluster_by"), f"conflicts with {key}", "only one of them")
    if not table.merges:
        message = (
            "liquid clustering: all clients can read the table, but all appends use Spark; z_order appends without it"
        )
        yield UnlocatedDiagnostic((*here, "cluster_by"), message, severity="warning")


def _sizes(table: TableSpec, own: TableOptions, here: Path) -> Iterator[UnlocatedDiagnostic]:
    target = (("table", "target_file_size"), (*here, "target_file_size"))
    if own.min_file_size is not None and own.min_file_size > table.target_file_size:
        yield UnlocatedDiagnostic(
            (*here, "min_file_size"), "more than target_file_size", "at most target_file_size", depends_on=target
        )
    if own.max_file_size is None:
        return
    if own.max_file_size < 2 * table.target_file_size:
        message, expected = "less than twice target_file_size", "twice target_file_size or more"
        yield UnlocatedDiagnostic((*here, "max_file_size"), message, expected, depends_on=target)
    if table.by_spark:
        message = "splitting files is not supported for tables written by Spark"
        yield UnlocatedDiagnostic((*here, "max_file_size"), message, "no max_file_size")


def _columns(table: TableSpec, z_order: Sequence[str], here: Path, spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    closed = table.closed
    names = names_after(spec.transform, declared_columns_of(table))
    for index, name in enumerate(z_order):
        if name in z_order[:index]:
            yield UnlocatedDiagnostic((*here, index), f"duplicate column '{name}'", "unique names", depends_on=())
        elif name in table.partitions:
            yield UnlocatedDiagnostic((*here, index), f"'{name}' is a partition column", "other columns")
        elif closed and name not in names:
            yield UnlocatedDiagnostic((*here, index), f"no column '{name}'", ", ".join(names), closest(name, names))
