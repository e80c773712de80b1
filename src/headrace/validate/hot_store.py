"""Rules for the hot store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.hot_store import MAX_NAME, OWN_TABLES, RESERVED_COLUMNS, PostgresSpec, fixed_table_name
from headrace.spec.model import Spec
from headrace.spec.yaml_reader import Path
from headrace.validate.certificates import check_tls

_POSTGRES: Path = ("hot_store", "postgres")


def check_hot_store(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check the connection, and that rows of all tables can be identified and have a table of their own."""
    if spec.hot_store is None:
        return
    postgres = spec.hot_store.postgres
    yield from _connection(postgres)
    if postgres.retention is None and "retention_column" in postgres.model_fields_set:
        yield UnlocatedDiagnostic((*_POSTGRES, "retention_column"), "no effect without retention", "retention")
    yield from _names(spec, postgres)
    for name, branch in spec.branch_specs().items():
        here = f" of branch {name}" if name else ""
        for rules in branch.all_rules():
            if rules.merges is not None:
                yield UnlocatedDiagnostic(
                    _POSTGRES,
                    f"table.mode: {rules.mode}{here}: a merge rewrites whole files, also rows that it does not change",
                    "mode: append, overwrite or overwrite_partitions; or no hot_store",
                )
            if not rules.source:
                message = f"table.source: false{here}: rows have no column _source, which identifies them"
                yield UnlocatedDiagnostic(_POSTGRES, message, "source: true; or no hot_store")
            for column in rules.columns:
                if len(column.name.encode()) > MAX_NAME or column.name in RESERVED_COLUMNS:
                    message = f"PostgreSQL cannot have the column '{column.name}'{here}"
                    expected = f"a name of at most {MAX_NAME} bytes, and none of {', '.join(sorted(RESERVED_COLUMNS))}"
                    yield UnlocatedDiagnostic(_POSTGRES, message, expected)


def _connection(postgres: PostgresSpec) -> Iterator[UnlocatedDiagnostic]:
    if postgres.tls is None and not postgres.plaintext and not postgres.stays_here:
        security = ((*_POSTGRES, "tls"), (*_POSTGRES, "plaintext"))
        message = "an unencrypted connection to a server on another host"
        yield UnlocatedDiagnostic((*_POSTGRES, "host"), message, "tls, or plaintext: true", depends_on=security)
    if postgres.tls is not None:
        if postgres.plaintext:
            yield UnlocatedDiagnostic((*_POSTGRES, "plaintext"), "conflicts with tls", "only one of them")
        yield from check_tls(postgres.tls, (*_POSTGRES, "tls"))


def _names(spec: Spec, postgres: PostgresSpec) -> Iterator[UnlocatedDiagnostic]:
    """One hot table for each Delta table."""
    branches = list(spec.branch_specs().values())
    several = len(branches) > 1 or spec.route.kind != "fixed"
    for key in ("table", "preset"):
        if several and getattr(postgres, key) is not None:
            message = "the same table for all tables of the pipeline"
            yield UnlocatedDiagnostic((*_POSTGRES, key), message, "only for a pipeline with one table")
    if postgres.table in OWN_TABLES:
        yield UnlocatedDiagnostic((*_POSTGRES, "table"), f"'{postgres.table}' is a table of Headrace", "another name")
    names = Counter(fixed_table_name(each.base_uri, each.table.path) for each in branches if each.route.kind == "fixed")
    for name, count in names.items():
        if count > 1 and postgres.table is None and postgres.preset is None:
            message = f"{count} tables of the pipeline would have the name '{name}' in PostgreSQL"
            yield UnlocatedDiagnostic(_POSTGRES, message, "paths with different last parts")
        if len(name.encode()) > MAX_NAME or name in OWN_TABLES:
            message = f"PostgreSQL cannot have a table '{name}' for {spec.table.path}"
            yield UnlocatedDiagnostic(_POSTGRES, message, "another path, or `table`")
