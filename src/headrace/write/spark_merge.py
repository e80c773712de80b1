"""The Spark merge: one MERGE statement, limited to the files that can contain a key of the batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.delta.partition_keys import partitions_in
from headrace.delta.staged_file import StagedFile
from headrace.stage.change_schema import TRUNCATE
from headrace.write.merge_sql import SPARK, KeyBounds, quote_identifier
from headrace.write.spark_append import SparkAppend, ddl
from headrace.write.staged_changes import MANY_ROWS, StagedChanges
from headrace.write.tombstones import may_contain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_APP_ID, _APP_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
# A batch is small compared with its table: hash the batch instead of sorting the table by its keys.
_HASH_JOIN = {"spark.sql.join.preferSortMergeJoin": "false", "spark.sql.autoBroadcastJoinThreshold": "32m"}
# Each batch has its own bounds, so Spark compiles its query again: for few rows that takes longer than it saves.
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_FEW_ROWS = 100_000
# Staged files never change, so Spark may read them twice. An SCD2 merge also reads its table, which may change.
_MATERIALIZE = "spark.databricks.delta.merge.materializeSource"
_MAX_LITERALS = 200  # values in one IN list
_SUFFIX = {pa.int8(): "Y", pa.int16(): "S", pa.int32(): "", pa.int64(): "L"}


class SparkMerge:
    """Merges staged changes into one table with Spark."""

    def __init__(self, spark: SparkAppend) -> None:
        self._spark = spark
        self._session: SparkSession | None = None

    def run(self, changes: StagedChanges, txn: tuple[str, int], account: Mapping[str, Any], last_rows: int) -> None:
        """Run the MERGE and commit it with a txn; `last_rows` is the number of rows that the last merge wrote."""
        session, tombstones = self._own_session(), changes.tombstones
        self._spark.read_staged(session, changes.table.files, changes.staged_schema).createOrReplaceTempView("changes")
        if changes.tombstone_files:
            tombstones.store.configure_spark(session)
            paths = [f"{tombstones.store.spark_uri}/{file.path}" for file in changes.tombstone_files]
            session.read.schema(ddl(tombstones.columns)).parquet(*paths).createOrReplaceTempView("tombstones")
        statement = changes.sql(SPARK, _batch_partitions(changes)).statement(
            f"delta.{quote_identifier(self._spark.store.spark_uri)}",
            "changes",
            "tombstones" if changes.tombstone_files else None,
            changes.now,
            key_bounds(changes.table.files, changes.schema, changes.rules.keys),
        )
        settings = {
            _APP_ID: txn[0],
            _APP_VERSION: str(txn[1]),
            _USER_METADATA: json.dumps({"headrace": account}),
            _MATERIALIZE: "auto" if changes.rules.scd2 else "none",
            **(_INTERPRETED if max(last_rows, changes.row_count) < _FEW_ROWS else _COMPILED),
        }
        for name, value in settings.items():
            session.conf.set(name, value)
        with self._spark.named_errors():
            session.sql(statement)

    def _own_session(self) -> SparkSession:
        """A session for this table only: the txn of a MERGE is a setting of the whole session."""
        if self._session is None:
            self._session = self._spark.session.newSession()
            for name, value in _HASH_JOIN.items():
                self._session.conf.set(name, value)
        return self._session


# ---- conditions that let Spark skip files ----
#
# Changes of the keys 7 and 42 in the partitions day = '2024-05-01' and '2024-05-02' add to the ON clause
#     t.`day` IN ('2024-05-01', '2024-05-02') AND t.`id` >= 7L AND t.`id` <= 42L
# The join would find the same rows without it, but only literals let Spark skip partitions and files by statistics.


def _batch_partitions(changes: StagedChanges) -> dict[str, list[str]]:
    """Literals of the partitions of a batch, for partition columns that are keys; none for a truncate, or many rows."""
    files = changes.table.files
    names = [name for name in changes.table.partition_by if name in changes.rules.keys]
    if not names or changes.row_count > MANY_ROWS or any(may_contain(file, TRUNCATE) for file in files):
        return {}
    return partition_literals(changes.key_rows(names).cast(pa.schema([changes.schema.field(name) for name in names])))


def partition_literals(keys: pa.Table) -> dict[str, list[str]]:
    """All values of each column as literals of Spark; columns with too many values are left out."""
    literals = {}
    for item in keys.schema:
        values = sorted(text for ((_, text),) in partitions_in(keys, [item.name]) if text is not None)
        if values and len(values) <= _MAX_LITERALS and (to_literal := _literal(item.type)):
            literals[item.name] = [to_literal(text) for text in values]
    return literals


def key_bounds(files: Sequence[StagedFile], schema: pa.Schema, keys: Sequence[str]) -> KeyBounds:
    """The lowest and highest value of each key as literals of Spark, for keys with statistics in all files."""
    stats = [json.loads(file.stats, parse_float=Decimal) for file in files]
    bounds = ((key, _lowest_highest(stats, key), _literal(schema.field(key).type)) for key in keys)
    return [(key, to_literal(pair[0]), to_literal(pair[1])) for key, pair, to_literal in bounds if pair and to_literal]


def _lowest_highest(stats: Sequence[Mapping[str, Any]], key: str) -> tuple[Any, Any] | None:
    """None if a file with values of the key has no bounds for it; a file that has only NULL does not matter."""
    relevant = [item for item in stats if item.get("nullCount", {}).get(key) != item.get("numRecords")]
    lows = [item.get("minValues", {}).get(key) for item in relevant]
    highs = [item.get("maxValues", {}).get(key) for item in relevant]
    if not relevant or any(value is None for value in (*lows, *highs)):
        return None
    return min(lows), max(highs)


def _literal(kind: pa.DataType) -> Callable[[Any], str] | None:
    """The function that formats values of a type as literals of Spark; None for types without bounds."""
    if kind in _SUFFIX:
        return lambda value: f"{value}{_SUFFIX[kind]}"
    if pa.types.is_boolean(kind):
        return lambda value: str(value).lower()
    if pa.types.is_string(kind):
        return _string_literal
    if pa.types.is_date32(kind):
        return lambda value: f"DATE '{value}'"
    if pa.types.is_timestamp(kind):
        return lambda value: f"{'TIMESTAMP_LTZ' if kind.tz else 'TIMESTAMP_NTZ'} '{value}'"
    if pa.types.is_decimal(kind):
        # Without an exponent: Spark reads 1E+2 as a double.
        return lambda value: f"CAST({Decimal(value):f} AS DECIMAL({kind.precision}, {kind.scale}))"
    return None


def _string_literal(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
