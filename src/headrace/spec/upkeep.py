"""Whether the upkeep that a spec asks for can be done to its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.spec.columns import columns_of, names_after
from headrace.spec.findings import Complaint, closest
from headrace.spec.model import Spec
from headrace.spec.table import TableMatch, TableOptions, TableSpec
from headrace.spec.tree import Path


def check_upkeep(spec: Spec) -> Iterator[Complaint]:
    """Order that nobody would make, columns that have none, and tables that are left out."""
    written: list[tuple[Path, TableOptions]] = [(("table",), spec.table)]
    written += [(("tables", index), each) for index, each in enumerate(spec.tables)]
    for here, own in written:
        table = own.over(spec.table) if isinstance(own, TableMatch) else spec.table
        if own.z_order and spec.maintain is None:
            yield Complaint((*here, "z_order"), "an order, but no upkeep that makes it", "maintain: {} beside it")
        yield from _columns(table, own.z_order, (*here, "z_order"), spec)
        if own.min_file_size is not None and own.min_file_size > table.target_file_size:
            yield Complaint((*here, "min_file_size"), "more than target_file_size", "at most target_file_size")
        if spec.maintain is not None:
            yield from _left_out(own, here)


def _columns(table: TableSpec, z_order: Sequence[str], here: Path, spec: Spec) -> Iterator[Complaint]:
    closed = table.declared and table.contract.new_field != "evolve"
    names = names_after(spec.transform, columns_of(table))
    for index, name in enumerate(z_order):
        if name in z_order[:index]:
            yield Complaint((*here, index), f"'{name}' a second time", "each once")
        elif name in table.partitions:
            yield Complaint((*here, index), f"'{name}', by which the table is partitioned", "columns of the files")
        elif closed and name not in names:
            yield Complaint((*here, index), f"no column '{name}'", ", ".join(names), closest(name, names))


def _left_out(own: TableOptions, here: Path) -> Iterator[Complaint]:
    """Spark's tables are Spark's; to compact them it must be asked."""
    key = "mode" if own.merges else "features" if own.features else None
    if key is not None:
        seen = "a table that Spark writes: maintain leaves it out"
        allowed = "OPTIMIZE and VACUUM by Spark, while the pipeline is stopped"
        yield Complaint((*here, key), seen, allowed, severity="warning")
