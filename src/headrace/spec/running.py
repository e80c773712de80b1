"""Runtime settings: batch triggers, limits, retries, circuit breaker, lease and Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo

from headrace.spec.base import SpecModel
from headrace.spec.spark_settings import spark_setting
from headrace.spec.units import Duration, Integer, PlainText, Ratio, Size
from headrace.spec.uris import StoragePath, local_file


class FlushSpec(SpecModel):
    """Batch triggers; the first one reached starts a batch."""

    every: Duration = Field(
        default=timedelta(seconds=5),
        ge=timedelta(milliseconds=100),
        description="Maximum time between the starts of two batches.",
    )
    rows: Integer = Field(default=100_000, ge=1, description="Start a batch when this many records are unread.")
    bytes: Size = Field(
        default=128_000_000, ge=1, description="Start a batch when this many bytes are unread (estimated)."
    )


class LimitsSpec(SpecModel):
    """Limits on batch and record size."""

    batch_rows: Integer = Field(default=1_000_000, ge=1, description="Maximum records per batch.")
    record_bytes: Size = Field(
        default=16_000_000,
        ge=1,
        description="Maximum value size; larger values become dead letters (`too_big`) without being parsed.",
    )
    depth: Integer = Field(
        default=64, ge=1, le=512, description="Maximum nesting depth; deeper values become dead letters (`too_deep`)."
    )
    keys: Integer = Field(
        default=10_000,
        ge=1,
        description="Maximum keys per object or map; records with more become dead letters (`too_wide`).",
    )
    rows: Integer = Field(
        default=100_000,
        ge=1,
        description="Maximum rows per record; records with more become dead letters (`too_wide`).",
    )
    values: Integer = Field(
        default=1_000_000,
        ge=1,
        description="Maximum values per JSON record, including arrays and objects; records with more become "
        "dead letters (`too_wide`).",
    )
    repeated_bytes: Size = Field(
        default=256_000_000,
        ge=1,
        le=2_000_000_000,
        description="Maximum size of the data repeated in each row of a record (`explode.keep` fields, and "
        "the key and headers where `set` reads them), multiplied by its rows; larger records "
        "become dead letters (`too_big`, or `transform` for the result of a `jmespath` "
        "expression).",
    )
    tables: Integer = Field(
        default=1_000,
        ge=1,
        description="Maximum tables of the pipeline; records for more become dead letters (`too_many_tables`).",
    )
    new_tables: Integer = Field(
        default=500,
        ge=1,
        description="Maximum tables created per batch; records for more become dead letters (`too_many_tables`).",
    )
    columns: Integer = Field(
        default=2_000,
        ge=1,
        description="Maximum columns of a table, including nested fields, for schema evolution; records that "
        "would add more become dead letters (`too_wide`).",
    )
    new_columns: Integer = Field(
        default=500,
        ge=1,
        description="Maximum columns added to a table per batch, including nested fields; records that would "
        "add more become dead letters (`too_wide`).",
    )
    partition_values: Integer = Field(
        default=1_000,
        ge=1,
        description="Maximum partitions per batch and table; the pipeline stops if a batch has more.",
    )
    open_writers: Integer = Field(
        default=256, ge=1, description="Maximum open files per task; the largest is closed when the limit is reached."
    )
    merge_bytes: Size = Field(
        default=1_000_000_000,
        ge=0,
        description="Maximum bytes of files rewritten by an in-process merge; Spark runs larger merges. 0: "
        "always use Spark.",
    )


class BackOff(SpecModel):
    """Exponential backoff with jitter."""

    initial_interval: Duration = Field(
        default=timedelta(seconds=1), ge=timedelta(milliseconds=10), description="Delay after the first failure."
    )
    max_interval: Duration = Field(
        default=timedelta(seconds=60), ge=timedelta(milliseconds=10), description="Maximum delay."
    )


class RetrySpec(SpecModel):
    """Retry policy for transient errors."""

    unreachable: BackOff = Field(
        default=BackOff(),
        description="Backoff while the broker or the object store is unreachable; retried indefinitely.",
    )
    access_denied: Integer = Field(
        default=3, ge=1, le=100, description="Attempts after an authentication or authorization error."
    )
    conflict: Integer = Field(
        default=5, ge=1, le=1000, description="Attempts after a concurrent commit by another writer."
    )


class CircuitBreakerSpec(SpecModel):
    """Stops the pipeline when too many records are rejected."""

    max_reject_ratio: Ratio = Field(
        gt=0, description="Maximum ratio of rejected records to read records: `5%` or `0.05`."
    )
    window: Duration = Field(
        default=timedelta(minutes=10), ge=timedelta(seconds=1), description="Time window of the ratio."
    )
    min_records: Integer = Field(
        default=1_000, ge=1, description="Minimum records in the window before the ratio is evaluated."
    )


class FreshnessSpec(SpecModel):
    """Freshness target: how long a record may wait until it is in its table."""

    target: Duration = Field(
        ge=timedelta(seconds=5),
        description="Maximum age of the oldest unread record. `/health` and `/metrics` report a pipeline that exceeds "
        "it, or whose lag is unknown for this time.",
    )


class LeaseSpec(SpecModel):
    """Single-instance lease."""

    ttl: Duration = Field(
        default=timedelta(seconds=20),
        ge=timedelta(seconds=1),
        description="Time after which an unrenewed lease expires.",
    )
    renew: Duration = Field(
        default=timedelta(seconds=5), ge=timedelta(milliseconds=100), description="Interval between renewals."
    )


_HEAP = r"^[1-9][0-9]{0,5}[mg]$"
_MASTER = r"^(local\[(\*|[1-9][0-9]{0,3})\]|spark://[^\s,/]+:[0-9]+(,[^\s,/]+:[0-9]+)*|yarn|k8s://\S+)$"


def _environment(text: str, info: ValidationInfo) -> str:
    """Keep words and URIs; make the path of an archive absolute."""
    return text if text in ("archive", "installed") or "://" in text else f"file://{local_file(text, info)}"


class ExecutorsSpec(SpecModel):
    """Executors on a cluster; not used with a local master."""

    count: Integer | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="Number of executors. Default: as many as the cluster has room for (standalone), otherwise 2.",
    )
    cores: Integer = Field(default=1, ge=1, le=1024, description="Cores, and so concurrent tasks, of an executor.")
    memory: Annotated[str, Field(pattern=_HEAP)] = Field(
        default="1g", description="JVM heap size of an executor; its Python processes need memory in addition."
    )


class SparkSpec(SpecModel):
    """Where Spark runs, and its settings."""

    master: Annotated[str, Field(pattern=_MASTER)] = Field(
        default="local[*]",
        description="`local[*]` (all cores of this machine), `local[4]`, or a cluster: `spark://host:port` "
        "(standalone), `yarn`, `k8s://https://host:port`.",
    )
    cores: Integer | None = Field(
        default=None, ge=1, le=1024, description="Number of cores with `local[*]`. Default: all."
    )
    memory: Annotated[str, Field(pattern=_HEAP)] = Field(
        default="1g", description="JVM heap size of the driver, such as `800m` or `2g`."
    )
    executors: ExecutorsSpec = Field(default=ExecutorsSpec(), description="Executors on a cluster.")
    environment: Annotated[str, AfterValidator(_environment)] = Field(
        default="archive",
        min_length=1,
        description="Python environment of executors: `archive` (built by `headrace setup --pack`), the path or URI "
        "of such an archive (`.tar.gz`), or `installed` (Headrace is installed on all nodes).",
    )
    conf: Mapping[Annotated[str, AfterValidator(spark_setting)], PlainText] = Field(
        default_factory=dict, description="Additional Spark settings, from a list of allowed ones."
    )
    shared_mounts: tuple[StoragePath, ...] = Field(
        default=(),
        description="Directories that all nodes mount at the same path, such as NFS. Other local paths are rejected "
        "with a cluster.",
    )

    @property
    def is_cluster(self) -> bool:
        """Whether executors run outside the process of the driver."""
        return not self.master.startswith("local[")
