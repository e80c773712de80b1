"""How a pipeline runs: what starts a batch, what it may cost, how trouble is met."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from headrace.spec.base import SpecModel
from headrace.spec.units import Duration, Ratio, Size, Whole


class FlushSpec(SpecModel):
    """What starts a batch, when records wait: the first of these."""

    every: Duration = Field(
        default=timedelta(seconds=5), ge=timedelta(milliseconds=100), description="Time since the last batch began."
    )
    rows: Whole = Field(default=100_000, ge=1, description="Records that wait.")
    bytes: Size = Field(default=128_000_000, ge=1, description="About how many bytes wait, from the running mean.")


class LimitsSpec(SpecModel):
    """What a batch and a record may cost."""

    batch_rows: Whole = Field(default=1_000_000, ge=1, description="Records of one batch at most.")
    record_bytes: Size = Field(
        default=16_000_000, ge=1, description="Larger values are dead letters (`too_big`), unparsed."
    )
    depth: Whole = Field(default=64, ge=1, le=512, description="Deeper values are dead letters (`too_deep`).")
    keys: Whole = Field(
        default=10_000, ge=1, description="Objects and maps with more keys are dead letters (`too_wide`)."
    )
    rows: Whole = Field(
        default=100_000, ge=1, description="Rows of one record; records with more are dead letters (`too_wide`)."
    )
    values: Whole = Field(
        default=1_000_000,
        ge=1,
        description="Values of one JSON record, arrays and objects among them; records with more are dead letters "
        "(`too_wide`).",
    )
    repeated_bytes: Size = Field(
        default=256_000_000,
        ge=1,
        le=2_000_000_000,
        description="Bytes that all rows of one record have in common (fields in `explode.keep`, and the key and the "
        "headers where `set` reads them), times the number of its rows; records with more are dead letters "
        "(`too_big`). Where it is the result of a `jmespath` expression: `transform`.",
    )
    tables: Whole = Field(
        default=1_000, ge=1, description="Tables of the pipeline; beyond it, letters (`too_many_tables`)."
    )
    new_tables: Whole = Field(
        default=500,
        ge=1,
        description="Tables that one batch may be the first to write; beyond it, letters (`too_many_tables`).",
    )
    columns: Whole = Field(
        default=2_000,
        ge=1,
        description="Columns of a table, nested fields included, up to which records may add new ones; beyond it, "
        "records with new fields are dead letters (`too_wide`).",
    )
    new_columns: Whole = Field(
        default=500,
        ge=1,
        description="Columns, nested fields included, that one batch may add to a table; records with more of them "
        "are dead letters (`too_wide`).",
    )
    partition_values: Whole = Field(
        default=1_000, ge=1, description="Partition values of one batch and table; beyond it the pipeline stops."
    )
    open_writers: Whole = Field(
        default=256, ge=1, description="Files a task writes at once; then the largest is closed."
    )
    merge_bytes: Size = Field(
        default=1_000_000_000,
        ge=0,
        description="Bytes of the files that a merge may have to write anew; beyond it, Spark merges. 0: always Spark.",
    )


class BackOff(SpecModel):
    """Waiting times between tries: doubling, with jitter."""

    initial_interval: Duration = Field(
        default=timedelta(seconds=1), ge=timedelta(milliseconds=10), description="After the first failure."
    )
    max_interval: Duration = Field(
        default=timedelta(seconds=60), ge=timedelta(milliseconds=10), description="Never more than this."
    )


class RetrySpec(SpecModel):
    """How often trouble is met again before the pipeline stops."""

    unreachable: BackOff = Field(default=BackOff(), description="Broker or store do not answer: tried for ever.")
    refused: Whole = Field(default=3, ge=1, le=100, description="Tries when permission or credentials are refused.")
    conflict: Whole = Field(
        default=5, ge=1, le=1000, description="Tries when others commit to the table at the same time."
    )


class CircuitBreakerSpec(SpecModel):
    """When so many records are rejected that it is better to stop and look."""

    max_reject_ratio: Ratio = Field(
        gt=0, description="Stop above this ratio of rejected to read records: `5%` or `0.05`."
    )
    window: Duration = Field(
        default=timedelta(minutes=10), ge=timedelta(seconds=1), description="Over the batches of this much time."
    )
    min_records: Whole = Field(default=1_000, ge=1, description="Records of the window before its ratio counts.")


class LeaseSpec(SpecModel):
    """The sign that one instance runs the pipeline."""

    ttl: Duration = Field(
        default=timedelta(seconds=20), ge=timedelta(seconds=1), description="How long it holds unrenewed."
    )
    renew: Duration = Field(
        default=timedelta(seconds=5), ge=timedelta(milliseconds=100), description="How often it renews."
    )


class SparkSpec(SpecModel):
    """The Spark that runs the batches."""

    cores: Whole | None = Field(default=None, ge=1, le=1024, description="Cores to use; all without it.")
    memory: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,5}[mg]$")] = Field(
        default="1g", description="The JVM's heap, as `800m` or `2g`."
    )
