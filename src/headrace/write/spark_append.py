"""CREATE, ALTER and append by Spark's own Delta writer, for one table and only under the pipeline's lease."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.delta.schema import to_delta
from headrace.delta.staged_file import StagedFile
from headrace.delta.type_widening import widens
from headrace.errors import CommitConflict, PipelineStopped, TableChanged
from headrace.spec.types import type_name
from headrace.storage.store import Store
from headrace.write.intent import TableIntent
from headrace.write.merge_sql import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REFUSALS = ("CONSTRAINT", "DELTA_NOT_NULL", "INVARIANT", "EXCEED_CHAR_VARCHAR")
_MISREAD = ("DATA_TYPE_MISMATCH", "SchemaColumnConvertNotSupported")
_COMPUTED = {b"delta.generationExpression", b"delta.identity.start"}  # field metadata of columns that Spark fills


class SparkAppend:
    """Creates, alters and appends to one table with Spark; starts Spark at the first statement."""

    def __init__(self, spark: Callable[[], SparkSession], store: Store) -> None:
        self._get_spark, self.store = spark, store

    @property
    def session(self) -> SparkSession:
        """The pipeline's Spark session, with access to the table's storage."""
        spark = self._get_spark()
        self.store.configure_spark(spark)
        return spark

    def append(self, table: TableIntent, schema: pa.Schema, txn: tuple[str, int], user_metadata: str) -> None:
        """Append the staged files; Delta skips the write if the table already has the txn."""
        writer = self.read_staged(self.session, table.files, schema).write.format("delta").mode("append")
        writer = writer.option("userMetadata", user_metadata).option("txnAppId", txn[0]).option("txnVersion", txn[1])
        with self.named_errors():
            writer.save(self.store.spark_uri)

    def read_staged(self, session: SparkSession, files: Sequence[StagedFile], schema: pa.Schema) -> DataFrame:
        """Read the rows of staged files."""
        paths = [f"{Store(file.table, self.store.profile).spark_uri}/{file.path}" for file in files]
        return session.read.schema(ddl(schema)).parquet(*paths)

    def create(self, table: TableIntent) -> None:
        """Create the table without rows, if it does not exist."""
        jvm = self.session._jvm
        builder = jvm.io.delta.tables.DeltaTable.createIfNotExists(self.session._jsparkSession)
        builder = builder.location(self.store.spark_uri)
        builder = builder.addColumns(jvm.org.apache.spark.sql.types.DataType.fromJson(table.schema))
        if table.partition_by:
            builder = builder.partitionedBy(self._java_strings(table.partition_by))
        if table.cluster_by:
            builder = builder.clusterBy(self._java_strings(table.cluster_by))
        for name, value in table.properties.items():
            builder = builder.property(name, value)
        with self.named_errors():
            builder.execute()

    def _java_strings(self, values: Sequence[str]) -> Any:
        array = self.session.sparkContext._gateway.new_array(self.session._jvm.java.lang.String, len(values))
        for index, value in enumerate(values):
            array[index] = value
        return array

    def alter(self, change: str) -> None:
        """Run ALTER TABLE."""
        with self.named_errors():
            self.session.sql(f"ALTER TABLE delta.{quote_identifier(self.store.spark_uri)} {change}")

    def add_columns(self, schema: pa.Schema) -> None:
        """Add the columns that the table does not have: an append of no rows also adds nested ones and comments."""
        from pyspark.sql.types import StructType

        fields = StructType.fromJson(_without_delta_metadata(json.loads(to_delta(schema))))
        writer = self.session.createDataFrame([], fields).write.format("delta").mode("append")
        with self.named_errors():
            writer.option("mergeSchema", "true").save(self.store.spark_uri)

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise Spark's errors as errors of Headrace."""
        try:
            yield
        except Exception as error:
            raise _named(error, self.store.uri) from None


def widen_schema(have: pa.Schema, want: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """The column paths, in Spark's notation, whose type must be widened for rows of a schema, and the new types."""
    return list(_wider(pa.struct(list(have)), pa.struct(list(want)), ""))


def _wider(have: pa.DataType, want: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        types = {item.name: item.type for item in want}
        for item in have:
            below = f"{path}.{quote_identifier(item.name)}" if path else quote_identifier(item.name)
            yield from _wider(item.type, types.get(item.name, item.type), below)
    elif pa.types.is_map(have) and pa.types.is_map(want):
        yield from _wider(have.item_type, want.item_type, f"{path}.value")
    elif pa.types.is_list(have) and pa.types.is_list(want):
        yield from _wider(have.value_type, want.value_type, f"{path}.element")
    elif widens(have, want):
        yield path, want


def _without_delta_metadata(kind: Any) -> Any:
    """A schema without the field metadata of Delta itself, which a data frame must not have."""
    if isinstance(kind, list):
        return [_without_delta_metadata(item) for item in kind]
    if not isinstance(kind, dict):
        return kind
    return {key: _without_delta_metadata(item) for key, item in kind.items() if not key.startswith("delta.")}


def fillable(columns: pa.Schema) -> pa.Schema:
    """The columns that rows may fill: all except generated and identity columns, which Spark computes."""
    return pa.schema([item for item in columns if not _COMPUTED & (item.metadata or {}).keys()])


def ddl(schema: pa.Schema) -> str:
    """A schema as DDL: `id` long, `name` string."""
    return ", ".join(f"{quote_identifier(item.name)} {type_name(item.type)}" for item in schema)


def _named(error: Exception, uri: str) -> PipelineStopped:
    """The error of Headrace for an error of Spark. A violated constraint needs a decision, so it is not retried."""
    text, cause = str(error), spark_cause(str(error))
    condition: Any = getattr(error, "getCondition", lambda: None)()
    if any(word in text for word in _REFUSALS):
        return TableChanged(
            f"{uri} rejects rows of this batch: {cause}",
            hint="Relax the constraint and run again; transform.where filters such rows from later batches.",
        )
    if "DELTA_CONCURRENT" in text or "Concurrent" in str(condition):
        return CommitConflict(
            f"{uri}: another writer committed at the same time: {cause}", hint="Run again when the writer has finished."
        )
    if condition or any(word in text for word in _MISREAD):
        return TableChanged(f"{uri}: Spark cannot write the table: {cause}", hint="Repair the table, then run again.")
    return PipelineStopped(f"{uri}: Spark failed to write: {cause}", hint="Run again; nothing was committed partially.")


def spark_cause(text: str) -> str:
    """The line of an error of Spark that names its cause; the first lines of a failed task name only its caller."""
    lines = [line.strip().removeprefix("Caused by: ") for line in text.splitlines() if line.strip()] or [""]
    causes = (line for line in lines if any(word in line for word in (*_REFUSALS, *_MISREAD)))
    fallback = next((line for line in lines if "Exception" in line), lines[0])
    return next(causes, fallback)[:400]
