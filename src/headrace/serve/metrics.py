"""The metrics of Headrace: name, meaning, labels and value of each. `docs/reference/metrics.md` is their contract."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from headrace.serve.health import problems_of
from headrace.serve.pipeline_view import Distribution, PartitionLag, PipelineState, PipelineView, TableActivity

MAX_SERIES = 1_000  # of a metric, for each pipeline

Values = Iterable[tuple[tuple[str, ...], float | None]]  # values of the labels after `pipeline`; None is unknown


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its values for a pipeline. An unknown value is absent, and never 0."""

    name: str  # without `_total` of a counter
    meaning: str
    values: Callable[[PipelineView], Values]
    labels: tuple[str, ...] = ()
    kind: Literal["counter", "gauge"] = "gauge"

    @property
    def exposed(self) -> str:
        """The name in `/metrics`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def bounded(self, view: PipelineView) -> Iterator[tuple[tuple[str, ...], float]]:
        """Known values, at most 1,000."""
        known = ((labels, float(value)) for labels, value in self.values(view) if value is not None)
        return islice(known, MAX_SERIES)


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram for each pipeline."""

    name: str
    meaning: str
    distribution: Callable[[PipelineView], Distribution]


def _one(value: Callable[[PipelineView], float | None]) -> Callable[[PipelineView], Values]:
    """A metric without further labels."""
    return lambda view: [((), value(view))]


def _keyed(values: Callable[[PipelineView], Mapping[str, float]]) -> Callable[[PipelineView], Values]:
    """A metric with one further label."""
    return lambda view: [((key,), value) for key, value in sorted(values(view).items())]


def _partitions(value: Callable[[PartitionLag], float | None]) -> Callable[[PipelineView], Values]:
    return lambda view: [
        ((topic, str(partition)), value(each)) for (topic, partition), each in sorted(view.lag.partitions.items())
    ]


def _tables(value: Callable[[TableActivity], float]) -> Callable[[PipelineView], Values]:
    return lambda view: [((path,), value(each)) for path, each in sorted(view.tables.items())]


def _files(field: str) -> Callable[[PipelineView], Values]:
    return lambda view: [((path,), getattr(each, field)) for path, each in sorted(view.table_files.items())]


def _hot_tables(field: str) -> Callable[[PipelineView], Values]:
    return lambda view: [((path,), getattr(each, field)) for path, each in sorted(view.hot_tables.items())]


def _hot_store_healthy(view: PipelineView) -> float | None:
    return None if view.spec.hot_store is None else float(view.hot_store_error is None)


def _maintenance(field: str) -> Callable[[PipelineView], Values]:
    return lambda view: [(key, getattr(each, field)) for key, each in sorted(view.maintenance.items())]


def _received(name: str) -> Callable[[PipelineView], Values]:
    return _one(lambda view: view.received.get(name))


def _freshness_target(view: PipelineView) -> float | None:
    return None if view.spec.freshness is None else view.spec.freshness.target.total_seconds()


def _committed(view: PipelineView) -> float | None:
    return None if view.committed is None else view.committed.timestamp()


def _states(view: PipelineView) -> Values:
    return [((state.value,), float(view.state is state)) for state in PipelineState]


def _outcomes(view: PipelineView) -> Values:
    return [((name,), getattr(view.counts, name)) for name in ("routed", "dead", "filtered", "skipped")]


def topic_lag(view: PipelineView) -> dict[str, tuple[int, float | None]]:
    """Unread records of each topic, and the age of the oldest one (None if unknown)."""
    topics: dict[str, tuple[int, float | None]] = {}
    for (topic, _), each in view.lag.partitions.items():
        records, seconds = topics.get(topic, (0, 0.0))
        oldest = None if seconds is None or each.seconds is None else max(seconds, each.seconds)
        topics[topic] = (records + each.records, oldest)
    return topics


def _table_lag(view: PipelineView) -> dict[str, tuple[int | None, float | None]]:
    """Lag of each table: that of its topic if the path of the table has `{topic}`, else that of the pipeline."""
    whole, topics = (view.lag.records, view.lag.seconds), topic_lag(view)
    if not view.lag.partitions:
        return dict.fromkeys(view.tables, whole)
    return {path: topics.get(_topic_of(view, path), whole) for path in view.tables}


def _topic_of(view: PipelineView, path: str) -> str:
    if view.spec.route.kind != "topic" and "{topic}" not in view.spec.table.path:
        return ""
    route_id = view.spec.route_of(path)
    return "" if route_id is None else route_id.route.partition(":")[0]


def _table_lags(position: int) -> Callable[[PipelineView], Values]:
    return lambda view: [((path,), lag[position]) for path, lag in sorted(_table_lag(view).items())]


def _topic_lags(position: int) -> Callable[[PipelineView], Values]:
    return lambda view: [((topic,), lag[position]) for topic, lag in sorted(topic_lag(view).items())]


def _by_table(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by "table-uri: name", added up by table."""
    tables: dict[str, int] = {}
    for key, count in counts.items():
        table = key.partition(": ")[0]
        tables[table] = tables.get(table, 0) + count
    return tables


def _violations(view: PipelineView) -> Values:
    for key, count in sorted(view.counts.violations.items()):
        table, _, expectation = key.partition(": ")
        yield (table, expectation), count


def _dropped(view: PipelineView) -> Values:
    """How many series of each metric are left out."""
    for family in FAMILIES:
        if family.name != DROPPED and (count := sum(1 for _ in family.values(view))) > MAX_SERIES:
            yield (family.exposed,), count - MAX_SERIES


DROPPED = "headrace_series_dropped"

FAMILIES: tuple[Family, ...] = (
    # ---- state ----
    Family("headrace_pipeline_state", "1 for the state of the pipeline, 0 for the others.", _states, ("state",)),
    Family(
        "headrace_pipeline_state_since_timestamp_seconds",
        "When the pipeline entered its state.",
        _one(lambda view: view.since.timestamp()),
    ),
    Family(
        "headrace_pipeline_healthy",
        "1 if the pipeline is healthy, 0 if `/health` names a problem.",
        _one(lambda view: not problems_of(view)),
    ),
    Family(
        "headrace_pipeline_starts",
        "Starts of the pipeline in this process.",
        _one(lambda view: view.starts),
        (),
        "counter",
    ),
    Family(
        "headrace_pipeline_errors",
        "Errors that stopped the pipeline, by name.",
        _keyed(lambda view: view.errors),
        ("error",),
        "counter",
    ),
    Family(
        "headrace_retries",
        "Retries of transient errors and commit conflicts, by name of the error.",
        _keyed(lambda view: view.retries),
        ("error",),
        "counter",
    ),
    # ---- lag ----
    Family("headrace_lag_known", "1 if the lag is known, 0 if not.", _one(lambda view: view.lag.is_known)),
    Family("headrace_lag_records", "Unread records. Absent if unknown.", _one(lambda view: view.lag.records)),
    Family(
        "headrace_lag_seconds",
        "Age of the oldest unread record; 0 if there is none. Absent if unknown.",
        _one(lambda view: view.lag.seconds),
    ),
    Family(
        "headrace_lag_open_transaction",
        "1 if records wait for the end of a Kafka transaction.",
        _one(lambda view: view.lag.reason == "open_transaction" if view.lag.is_known else None),
    ),
    Family("headrace_topic_lag_records", "Unread records of a topic.", _topic_lags(0), ("topic",)),
    Family("headrace_topic_lag_seconds", "Age of the oldest unread record of a topic.", _topic_lags(1), ("topic",)),
    Family(
        "headrace_partition_lag_records",
        "Unread records of a partition.",
        _partitions(lambda each: each.records),
        ("topic", "partition"),
    ),
    Family(
        "headrace_partition_lag_seconds",
        "Age of the oldest unread record of a partition.",
        _partitions(lambda each: each.seconds),
        ("topic", "partition"),
    ),
    Family(
        "headrace_partition_position",
        "Next offset to read: the end of the last batch in the ledger.",
        _partitions(lambda each: each.position),
        ("topic", "partition"),
    ),
    Family(
        "headrace_partition_end_offset",
        "Latest offset of a partition.",
        _partitions(lambda each: each.end),
        ("topic", "partition"),
    ),
    Family(
        "headrace_table_lag_records",
        "Unread records of the topics of a table: of its topic if its path has the topic, else of all.",
        _table_lags(0),
        ("table",),
    ),
    Family("headrace_table_lag_seconds", "Age of the oldest of these records.", _table_lags(1), ("table",)),
    Family(
        "headrace_freshness_target_seconds",
        "`freshness.target` of the spec.",
        _one(_freshness_target),
    ),
    Family("headrace_freshness_met", "1 if the freshness target is met, 0 if not.", _one(lambda view: view.is_fresh)),
    # ---- records ----
    Family("headrace_records_read", "Records read.", _one(lambda view: view.counts.read), (), "counter"),
    Family(
        "headrace_records",
        "Records by outcome: routed, dead, filtered or skipped (already written).",
        _outcomes,
        ("outcome",),
        "counter",
    ),
    Family(
        "headrace_record_bytes",
        "Size of the values of records read.",
        _one(lambda view: view.counts.value_bytes),
        (),
        "counter",
    ),
    Family(
        "headrace_records_per_second",
        "Records read per second, in the last 30 seconds.",
        _one(lambda view: view.records_per_second),
    ),
    Family(
        "headrace_dead_letters",
        "Dead letters by reason.",
        _keyed(lambda view: view.counts.reasons),
        ("reason",),
        "counter",
    ),
    Family(
        "headrace_expectation_violations",
        "Rows that violate an expectation.",
        _violations,
        ("table", "expectation"),
        "counter",
    ),
    Family(
        "headrace_ignored_fields",
        "Values of new fields that the table does not have and the contract ignores.",
        _keyed(lambda view: _by_table(view.counts.ignored)),
        ("table",),
        "counter",
    ),
    Family(
        "headrace_rescued_rows",
        "Rows with a value in `_rescued`.",
        _one(lambda view: view.counts.rescued),
        (),
        "counter",
    ),
    Family(
        "headrace_duplicates",
        "Rows removed by deduplication.",
        _keyed(lambda view: view.counts.duplicates),
        ("table",),
        "counter",
    ),
    # ---- batches ----
    Family("headrace_batches", "Batches recorded in the ledger.", _one(lambda view: view.batches), (), "counter"),
    Family(
        "headrace_batches_recovered",
        "Unfinished batches that a start has completed.",
        _one(lambda view: view.recovered),
        (),
        "counter",
    ),
    Family("headrace_last_batch", "Number of the last batch. Absent before the first.", _one(lambda view: view.batch)),
    Family(
        "headrace_last_commit_timestamp_seconds",
        "When the last batch was recorded. Absent before the first.",
        _one(_committed),
    ),
    Family(
        "headrace_batch_phase_seconds",
        "Time of all batches in a phase: stage (read, decode, transform, write files), check, intent, commit, ledger.",
        _keyed(lambda view: view.phases),
        ("phase",),
        "counter",
    ),
    Family(
        "headrace_schema_changes",
        "How often columns were inferred from records or added to a table.",
        _one(lambda view: view.schema_changes),
        (),
        "counter",
    ),
    # ---- tables ----
    Family("headrace_table_version", "Version of the last commit.", _tables(lambda each: each.version), ("table",)),
    Family(
        "headrace_table_last_commit_timestamp_seconds",
        "When this process last committed to the table.",
        _tables(lambda each: each.committed.timestamp()),
        ("table",),
    ),
    Family("headrace_table_commits", "Commits.", _tables(lambda each: each.commits), ("table",), "counter"),
    Family(
        "headrace_table_conflicts",
        "Commit attempts that failed because another writer committed first; each was repeated.",
        _tables(lambda each: each.conflicts),
        ("table",),
        "counter",
    ),
    Family(
        "headrace_table_rows", "Rows in the committed files.", _tables(lambda each: each.rows), ("table",), "counter"
    ),
    Family("headrace_table_files", "Committed files.", _tables(lambda each: each.files), ("table",), "counter"),
    Family("headrace_table_bytes", "Size of these files.", _tables(lambda each: each.bytes), ("table",), "counter"),
    # ---- maintenance ----
    Family(
        "headrace_table_small_files",
        "Files that compaction will rewrite. Only with `maintenance`.",
        _files("small_files"),
        ("table",),
    ),
    Family("headrace_table_small_files_bytes", "Size of these files.", _files("small_bytes"), ("table",)),
    Family(
        "headrace_table_unused_files",
        "Files that no retained version needs, at the last vacuum.",
        _files("unused_files"),
        ("table",),
    ),
    Family("headrace_table_unused_bytes", "Size of these files.", _files("unused_bytes"), ("table",)),
    Family(
        "headrace_maintenance_operations",
        "Maintenance operations, by result: done or failed.",
        _maintenance("count"),
        ("operation", "result"),
        "counter",
    ),
    Family(
        "headrace_maintenance_seconds",
        "Duration of these operations.",
        _maintenance("seconds"),
        ("operation", "result"),
        "counter",
    ),
    Family(
        "headrace_maintenance_files",
        "Files that these operations have rewritten or deleted.",
        _maintenance("files"),
        ("operation", "result"),
        "counter",
    ),
    Family(
        "headrace_maintenance_bytes", "Size of these files.", _maintenance("bytes"), ("operation", "result"), "counter"
    ),
    # ---- hot store ----
    Family(
        "headrace_hot_store_healthy",
        "1 if the last attempt to write to the hot store has succeeded, 0 if not. Only with `hot_store`.",
        _one(_hot_store_healthy),
    ),
    Family(
        "headrace_hot_store_version",
        "Version of a table that this process has written to the hot store.",
        _hot_tables("version"),
        ("table",),
    ),
    Family(
        "headrace_hot_store_lag_commits",
        "Commits that the hot store does not have. Absent if unknown.",
        _hot_tables("lag_commits"),
        ("table",),
    ),
    Family(
        "headrace_hot_store_lag_seconds",
        "Age of the oldest of these commits.",
        _hot_tables("lag_seconds"),
        ("table",),
    ),
    Family("headrace_hot_store_rows", "Rows written.", _hot_tables("rows"), ("table",), "counter"),
    Family("headrace_hot_store_removed_rows", "Rows deleted.", _hot_tables("removed"), ("table",), "counter"),
    Family(
        "headrace_hot_store_rejected_rows",
        "Rows that PostgreSQL cannot store.",
        _hot_tables("rejected"),
        ("table",),
        "counter",
    ),
    # ---- receivers ----
    Family("headrace_received_records", "Records received.", _received("records"), (), "counter"),
    Family("headrace_received_bytes", "Size of these records.", _received("bytes"), (), "counter"),
    Family("headrace_received_requests", "Requests with records.", _received("requests"), (), "counter"),
    Family("headrace_received_duplicates", "Repeated requests.", _received("duplicates"), (), "counter"),
    Family(
        "headrace_received_refused",
        "Requests refused because the spool, or the queue for Kafka, is full.",
        _received("full"),
        (),
        "counter",
    ),
    Family("headrace_spool_records", "Records in the spool, or waiting for Kafka.", _received("spool_records")),
    Family("headrace_spool_bytes", "Size of the spool, or of what waits for Kafka.", _received("spool_bytes")),
    # ---- series ----
    Family(
        DROPPED,
        "Series of a metric that are left out because the pipeline has more than 1,000.",
        _dropped,
        ("metric",),
    ),
)

HISTOGRAMS = (
    HistogramFamily(
        "headrace_batch_duration_seconds",
        "Duration of batches, from the start until recorded in the ledger.",
        lambda view: view.batch_seconds,
    ),
    HistogramFamily("headrace_batch_records", "Records of batches.", lambda view: view.batch_records),
)
