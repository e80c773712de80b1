"""Enable column mapping or type widening on a table, which makes it a table that only Spark writes.

The last direct commit of a table enables the feature and names Spark as its writer, in one version: every direct commit
that comes later reads this version first, and is refused. So at no time can two kinds of writers overwrite each other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from headrace.delta.actions import MetadataAction
from headrace.delta.column_mapping import map_columns
from headrace.delta.features import (
    FEATURE_PROPERTIES,
    WRITER,
    WriterKind,
    append_blocker,
    is_enabled,
    rewrite_blocker,
    with_feature,
)
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import DEAD_LETTERS
from headrace.delta.snapshot import TableState
from headrace.errors import DirectCommitBlocked, OperationDisabled, TableReplaced, UsageError
from headrace.ledger.known_tables import KnownTables
from headrace.ledger.replays import OUTCOMES
from headrace.ledger.row import SCHEMA as LEDGER
from headrace.storage.store import Store
from headrace.table.ownership import TableOwners, pipeline_is_running, table_replaced

OPERATION = "enable_feature"


@dataclass(frozen=True, slots=True)
class ClientAccess:
    """Whether a client can read and write a table, and how."""

    client: str
    read: str
    write: str


@dataclass(frozen=True, slots=True)
class EnabledFeature:
    """Result of enabling a table feature, or of a dry run."""

    feature: str
    version: int  # the version that enabled it; the present one if nothing was committed
    enabled: bool  # whether this call has enabled it
    pipelines: tuple[str, ...]  # that write the table
    before: tuple[ClientAccess, ...]
    after: tuple[ClientAccess, ...]


def check_feature(feature: str) -> None:
    """UsageError for a feature that cannot be enabled on an existing table."""
    if feature not in FEATURE_PROPERTIES:
        raise UsageError(f"Invalid feature: '{feature}'.", hint=f"Specify {' or '.join(FEATURE_PROPERTIES)}.")


def planned(store: Store, owners: TableOwners, feature: str) -> EnabledFeature:
    """What enabling a feature would change; nothing is committed. Raises the errors of enabling it."""
    state, before, names = owners.state, owners.writer, tuple(pipeline.name for pipeline in owners.pipelines)
    features = {name for name in FEATURE_PROPERTIES if is_enabled(name, state.properties)}
    if feature not in features:
        check_enabling(store, owners, feature)
    after, upgraded = before, state
    if owners.is_direct:
        after, upgraded = WriterKind.SPARK, replace(state, protocol=with_feature(state.protocol, feature))
    return EnabledFeature(
        feature,
        state.version,
        False,
        names,
        _clients(state, before, features),
        _clients(upgraded, after, {*features, feature}),
    )


def check_enabling(store: Store, owners: TableOwners, feature: str) -> None:
    """Raise an error if a pipeline is running or could not continue with the table."""
    for pipeline in owners.pipelines:
        if holder := pipeline.holder():
            raise pipeline_is_running(store.uri, pipeline.name, OPERATION, holder)
    if _is_state(store, owners):
        raise OperationDisabled(
            f"{store.uri} belongs to the state of a pipeline, which stays readable by every client.",
            hint="Enable the feature on a table of the pipeline.",
        )
    if owners.is_direct:
        _check_direct(store, owners.state)
    check_staged(store, owners)
    for pipeline in owners.pipelines:
        if pipeline.state is not None and (reason := _direct_only(store, KnownTables.load(pipeline.state))):
            raise OperationDisabled(
                f"{store.uri}: with {feature}, Spark must write the table, but {reason}, which needs direct commits.",
                hint=f"Change the spec of '{pipeline.name}', or write to a new table.",
            )


def _is_state(store: Store, owners: TableOwners) -> bool:
    """Whether a table is the state of a pipeline, or has its dead letters or its ledger, wherever they are."""
    states = (pipeline.state.uri for pipeline in owners.pipelines if pipeline.state is not None)
    names = set(owners.state.schema.names)
    return (
        any(f"{store.uri}/".startswith(f"{state}/") for state in states)
        or "/_headrace/" in f"{store.uri}/"
        or any(names.issuperset(columns.names) for columns in (DEAD_LETTERS, LEDGER, OUTCOMES))
    )


def check_staged(store: Store, owners: TableOwners) -> None:
    """OperationDisabled while a batch is open whose files are staged for direct commits."""
    if staged := owners.staged_files():
        name = min(staged.values())
        raise OperationDisabled(
            f"{store.uri}: a batch of the pipeline '{name}' is not finished; its files are staged for direct commits.",
            hint=f"Run `headrace resume SPEC` with the spec of '{name}' to finish the batch, then run this again.",
        )


def _check_direct(store: Store, state: TableState) -> None:
    """OperationDisabled if a table with direct commits has got a feature that only Spark may write."""
    if reason := append_blocker(state):
        raise OperationDisabled(
            f"{store.uri} was written by direct commits, which are no longer possible: {reason}.",
            hint="Run `headrace resume SPEC --accept-new-table` with the spec of each pipeline of the table, then run "
            "this again.",
        )


def _direct_only(store: Store, known: KnownTables) -> str | None:
    """What a pipeline does to the table that Spark cannot do."""
    table, taken_over = known.tables.get(store.uri), known.taken_over.get(store.uri)
    if table is not None and (table.full_refresh or table.overwritten):
        return "a pipeline overwrites it"
    if taken_over is not None and taken_over.app_id:
        return f"a pipeline keeps the txns of '{taken_over.app_id}' current in it"
    return None


def enable_directly(store: Store, state: TableState, feature: str) -> int:
    """Enable a feature by the last direct commit of a table; returns the new version."""

    def blocker(current: TableState) -> str | None:
        return None if is_enabled(feature, current.properties) else append_blocker(current)

    def change(metadata: MetadataAction) -> MetadataAction:
        if is_enabled(feature, metadata.properties):
            return metadata
        schema, properties = metadata.schema_json, {FEATURE_PROPERTIES[feature]: "true"}
        if feature == "columnMapping":
            schema, properties = map_columns(schema)
        properties[WRITER] = WriterKind.SPARK.value
        return replace(metadata, schema_json=schema, properties={**metadata.properties, **properties})

    log_writer = LogWriter.open(store, blocker=blocker)
    if log_writer.current_state().table_id != state.table_id:
        raise table_replaced(store)
    if not is_enabled(feature, log_writer.current_state().properties):
        _check_direct(store, log_writer.current_state())
    parameters = {"feature": feature}
    try:
        after = log_writer.alter(change, lambda _: ("ENABLE FEATURE", parameters), {}, feature=feature)
    except DirectCommitBlocked as blocked:  # by another writer, since the table was read
        raise OperationDisabled(blocked.message, hint="Run the command again.") from None
    except TableReplaced as replaced:
        raise table_replaced(store) from replaced
    return after.version


def spark_properties(feature: str) -> dict[str, str]:
    """The properties that let Spark enable a feature."""
    return {FEATURE_PROPERTIES[feature]: "name" if feature == "columnMapping" else "true"}


# ---- clients ----


def _clients(state: TableState, writer: WriterKind, features: set[str]) -> tuple[ClientAccess, ...]:
    """Who can read and write a table with these of the two features."""
    mapped, direct = "columnMapping" in features, writer == WriterKind.DIRECT
    return (
        ClientAccess("Headrace pipelines", "–", _pipeline_writes(state, writer, features)),
        ClientAccess("headrace table", "yes", "yes" if direct else "with Spark"),
        ClientAccess("PostgreSQL hot store", "no" if mapped else "yes", "–"),
        ClientAccess("Spark", "yes", "local disk only" if direct else "while no pipeline is running"),
        ClientAccess("delta-rs", _delta_rs_reads(state, features), "yes" if direct else "no"),
        ClientAccess("Polars", "no" if features else "yes", "yes" if direct else "no"),
        ClientAccess("DuckDB", "yes; after a rename, partition columns may be NULL" if mapped else "yes", "–"),
    )


def _pipeline_writes(state: TableState, writer: WriterKind, features: set[str]) -> str:
    if writer == WriterKind.DIRECT:
        return "direct commits"
    if writer == WriterKind.SPARK:
        return "appends by Spark, about a second per batch"
    return "merges by Spark" if features or rewrite_blocker(state) else "merges in-process"


def _delta_rs_reads(state: TableState, features: set[str]) -> str:
    if "typeWidening" in features:
        return "no"
    if "columnMapping" not in features:
        return "yes"
    return (
        "QueryBuilder only" if state.protocol.min_reader >= 3 else "QueryBuilder; others read renamed columns as NULL"
    )
