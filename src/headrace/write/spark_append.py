"""Append by Spark's own Delta writer: for tables that a blind append must not touch, under the pipeline's lease."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace import faults
from headrace.delta.evolution import check_fits, merge_schemas
from headrace.delta.features import lacks_ntz
from headrace.delta.log_errors import check_txns_last, set_back, table_stop, unreached
from headrace.delta.receipt import Receipt
from headrace.delta.restores import restored_between
from headrace.delta.schema import from_delta, to_delta
from headrace.delta.snapshot import TableState, load_state
from headrace.delta.txn import batch_txn
from headrace.delta.type_widening import widens
from headrace.errors import Conflict, Fenced, PipelineStopped, TableChanged, TableGone, TableReplaced, TableRestored
from headrace.spec.table import FEATURES
from headrace.spec.types import type_name
from headrace.storage.store import Store
from headrace.write.append import account
from headrace.write.intent import Intent, TableIntent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_REFUSALS = ("CONSTRAINT", "DELTA_NOT_NULL", "INVARIANT", "EXCEED_CHAR_VARCHAR")
_MISREAD = ("DATA_TYPE_MISMATCH", "SchemaColumnConvertNotSupported")
_FILLED_BY_SPARK = {b"delta.generationExpression", b"delta.identity.start"}


class SparkAppendWriter:
    """One Delta table that only this JVM writes while the lease is held."""

    adopts = False

    def __init__(self, spark: Callable[[], SparkSession], store: Store, pipeline: str) -> None:
        self._get_spark = spark  # asked for where it is needed: not every merge is Spark's
        self._store = store
        self._mark = batch_txn(pipeline)
        self.state: TableState | None = load_state(store, [self._mark])

    @property
    def _spark(self) -> SparkSession:
        return self._get_spark()

    def writable(self) -> pa.Schema:
        """The columns rows may fill; what Spark computes itself is left to it."""
        return fillable(self._known().schema)

    def evolve(self, schema: pa.Schema) -> None:
        """Widen types and add columns, at any depth, until the table can hold rows of this schema.

        Each change is a commit of its own: after a crash between two of them, the rest is what is found to be lacking.
        """
        self.follow()
        grows = widen_schema(self._known().schema, schema)
        self._allow(schema, bool(grows))
        for path, kind in grows:
            self._alter(f"ALTER COLUMN {path} TYPE {type_name(kind)}")
        if merge_schemas(self._known().schema_json, to_delta(schema)) != self._known().schema_json:
            self._add(schema)

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of a batch; Delta itself skips a batch number it has seen."""
        self._reload()
        if self.state is None and table.create:
            self._create(table)
            faults.reach(faults.Point.AFTER_TABLE_CREATION, batch=intent.batch)
        check_txns_last(self._store.uri, self._known())
        self._check(table, intent)
        rows, size = sum(item.rows for item in table.files), sum(item.size for item in table.files)
        if self._known().txns.get(self._mark) == intent.batch:
            return Receipt(table.path, self._known().version, rows, len(table.files), size, skipped=True)
        self._turn_on_vectors(table)
        self._write(table, intent)
        self._reload()
        return Receipt(table.path, self._known().version, rows, len(table.files), size)

    def _turn_on_vectors(self, table: TableIntent) -> None:
        """Deletion vectors, where the spec asks for them and the table, made before, lacks them."""
        name = FEATURES["deletionVectors"]
        asked, there = (each.get(name, "").lower() == "true" for each in (table.properties, self._known().properties))
        if asked and not there:
            self._alter(f"SET TBLPROPERTIES ('{name}' = 'true')")

    def _write(self, table: TableIntent, intent: Intent) -> None:
        """Append the staged files."""
        frame = self._staged(self._spark, table, from_delta(table.schema))
        said = value_as_text(told(intent, table, read_version=self._known().version))
        writer = frame.write.format("delta").mode("append").option("userMetadata", said)
        writer = writer.option("txnAppId", self._mark).option("txnVersion", intent.batch)
        with self._named():
            writer.save(self._store.spark_uri)

    def _staged(self, spark: SparkSession, table: TableIntent, schema: pa.Schema) -> DataFrame:
        """The rows of the staged files."""
        paths = [f"{Store(item.table, self._store.profile).spark_uri}/{item.path}" for item in table.files]
        return spark.read.schema(ddl(schema)).parquet(*paths)

    def _create(self, table: TableIntent) -> None:
        """The table without rows; made twice, it is made once."""
        jvm = self._spark._jvm
        builder = jvm.io.delta.tables.DeltaTable.createIfNotExists(self._spark._jsparkSession)
        builder = builder.location(self._store.spark_uri)
        builder = builder.addColumns(jvm.org.apache.spark.sql.types.DataType.fromJson(table.schema))
        if table.partition_by:
            builder = builder.partitionedBy(self._texts(table.partition_by))
        if table.cluster_by:
            builder = builder.clusterBy(self._texts(table.cluster_by))
        for name, value in table.properties.items():
            builder = builder.property(name, value)
        with self._named():
            builder.execute()
        self._reload()

    def _texts(self, values: Sequence[str]) -> Any:
        """Texts as an array of the JVM."""
        made = self._spark.sparkContext._gateway.new_array(self._spark._jvm.java.lang.String, len(values))
        for at, value in enumerate(values):
            made[at] = value
        return made

    def _allow(self, schema: pa.Schema, widens: bool) -> None:
        """The features that such a change needs, where the table lacks them."""
        known, widening = self._known(), FEATURES["typeWidening"]
        asked = []
        if widens and known.properties.get(widening, "").lower() != "true":
            asked.append(f"'{widening}' = 'true'")
        if lacks_ntz(to_delta(schema), known.protocol):
            asked.append("'delta.feature.timestampNtz' = 'supported'")
        if asked:
            self._alter(f"SET TBLPROPERTIES ({', '.join(asked)})")

    def _alter(self, change: str) -> None:
        with self._named():
            self._spark.sql(f"ALTER TABLE delta.{quote_identifier(self._store.spark_uri)} {change}")
        self._reload()

    def _add(self, schema: pa.Schema) -> None:
        """The columns that the table lacks, by an append of no rows: it brings their notes along, and nested ones."""
        from pyspark.sql.types import StructType

        frame = self._spark.createDataFrame([], StructType.fromJson(_without_notes(json.loads(to_delta(schema)))))
        with self._named():
            frame.write.format("delta").mode("append").option("mergeSchema", "true").save(self._store.spark_uri)
        self._reload()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Spark's failures under our names."""
        try:
            yield
        except Exception as error:
            raise _named(error, self._store.uri) from None

    def _known(self) -> TableState:
        if self.state is None:
            raise table_stop(TableGone, f"The table {self._store.uri} is gone.")
        return self.state

    def follow(self) -> None:
        """Go along with what others did, as long as what we knew of the table still holds."""
        known = self.state
        self._reload()
        found, self.state = self.state, known  # a stop stays a stop
        if known is not None and found is not None:
            self._fits(known.schema_json, found)
        self.state = found

    def _fits(self, schema_json: str, state: TableState) -> None:
        try:
            check_fits(schema_json, state)
        except TableChanged as problem:
            raise table_stop(TableChanged, f"{self._store.uri}: {problem.message}") from None

    def _reload(self) -> None:
        """Look at the table again; it must be the one we knew, and go on from where it was."""
        found = load_state(self._store, [self._mark])
        if self.state is not None and found is not None:
            self._goes_on(self.state, found)
        self.state = found

    def _goes_on(self, known: TableState, found: TableState) -> None:
        """Marks survive a RESTORE: to go on would leave the undone rows undone without a word."""
        uri = self._store.uri
        if found.table_id != known.table_id:
            raise table_stop(TableReplaced, f"The table {uri} was made anew underneath the pipeline.")
        if found.version < known.version:
            raise set_back(uri, found.version, known.version)
        restores = restored_between(self._store, known.version, found.version + 1)
        if restores.newest is not None:
            raise table_stop(TableRestored, f"Version {restores.newest} of {uri} restored the table to an older one.")
        if not restores.reached:
            raise unreached(uri, known.version)

    def _check(self, table: TableIntent, intent: Intent) -> None:
        known, mark = self._known(), self._known().txns.get(self._mark, 0)
        if table.create and mark < intent.batch:
            self._fits(table.schema, known)  # it may be somebody else's, who was first
        elif not table.create and known.table_id != table.table_id:
            raise table_stop(TableReplaced, f"The table {table.path} was made anew underneath the pipeline.")
        if mark < intent.batch and (lost := list(_lost(known.schema, from_delta(table.schema), ""))):
            raise table_stop(TableChanged, f"{table.path} was altered underneath the pipeline: {'; '.join(lost)}.")
        if mark > intent.batch:
            raise Fenced(
                f"The table {table.path} is already past batch {intent.batch}.",
                hint="Another instance of the pipeline has gone on; this one must not write.",
            )


def widen_schema(have: pa.Schema, want: pa.Schema) -> list[tuple[str, pa.DataType]]:
    """The places whose type must grow until rows of a schema fit, as Spark spells them, and what to."""
    return list(_wider(pa.struct(list(have)), pa.struct(list(want)), ""))


def _wider(have: pa.DataType, want: pa.DataType, path: str) -> Iterator[tuple[str, pa.DataType]]:
    if pa.types.is_struct(have) and pa.types.is_struct(want):
        wanted = {item.name: item.type for item in want}
        for item in have:
            below = f"{path}.{quote_identifier(item.name)}" if path else quote_identifier(item.name)
            yield from _wider(item.type, wanted.get(item.name, item.type), below)
    elif pa.types.is_map(have) and pa.types.is_map(want):
        yield from _wider(have.item_type, want.item_type, f"{path}.value")
    elif pa.types.is_list(have) and pa.types.is_list(want):
        yield from _wider(have.value_type, want.value_type, f"{path}.element")
    elif widens(have, want):
        yield path, want


def _lost(have: Any, want: Any, path: str) -> Iterator[str]:
    """What a table has no place for any more, of the columns of a batch; a type that grew still holds its values."""
    if isinstance(want, pa.Schema) or (pa.types.is_struct(have) and pa.types.is_struct(want)):
        there = {item.name: item.type for item in have}
        for item in want:
            below = f"{path}.{item.name}" if path else item.name
            if item.name in there:
                yield from _lost(there[item.name], item.type, below)
            else:
                yield f"column {below} is gone"
    elif pa.types.is_map(have) and pa.types.is_map(want):
        yield from _lost(have.item_type, want.item_type, path)
    elif pa.types.is_list(have) and pa.types.is_list(want):
        yield from _lost(have.value_type, want.value_type, path)
    elif have != want and not widens(want, have):
        yield f"column {path} is {type_name(have)}, and {type_name(want)} in the batch"


def _without_notes(kind: Any) -> Any:
    """A schema without what Delta itself notes at its fields: those are the table's, and no frame's."""
    if isinstance(kind, list):
        return [_without_notes(each) for each in kind]
    if not isinstance(kind, dict):
        return kind
    return {key: _without_notes(each) for key, each in kind.items() if not key.startswith("delta.")}


def fillable(columns: pa.Schema) -> pa.Schema:
    """The columns that rows may fill; what Spark computes itself is left to it."""
    return pa.schema([item for item in columns if not _FILLED_BY_SPARK & (item.metadata or {}).keys()])


def told(intent: Intent, table: TableIntent, **more: object) -> dict[str, Any]:
    """What a commit to such a table says of its batch; the places of partitions are told here, not as marks."""
    rows = sum(item.rows for item in table.files)
    return {**account(intent, table.plan), "txns": intent.txns(), "rows": rows, **more}


def value_as_text(account: Mapping[str, Any]) -> str:
    """The same where Spark makes the commit."""
    return json.dumps({"headrace": account})


def ddl(schema: pa.Schema) -> str:
    """Columns as Spark is told of them."""
    return ", ".join(f"{quote_identifier(item.name)} {type_name(item.type)}" for item in schema)


def quote_identifier(name: str) -> str:
    """A name as Spark takes any."""
    return "`" + name.replace("`", "``") + "`"


def _named(error: Exception, uri: str) -> PipelineStopped:
    """A constraint that rows break is the table's word against the spec's: somebody must decide."""
    text, said = str(error), gist(str(error))
    condition: Any = getattr(error, "getCondition", lambda: None)()
    if any(word in text for word in _REFUSALS):
        return TableChanged(
            f"{uri} refuses rows of this batch: {said}",
            hint="Loosen the constraint and run again; transform.where keeps such rows out of later batches.",
        )
    if "DELTA_CONCURRENT" in text or "Concurrent" in str(condition):
        return Conflict(
            f"{uri}: others commit to the table at the same time: {said}", hint="Run again once they are done."
        )
    if condition or any(word in text for word in _MISREAD):
        return TableChanged(f"{uri}: Spark cannot write: {said}", hint="Mend the table, then run again.")
    return PipelineStopped(f"{uri}: Spark could not write: {said}", hint="Run again; nothing half-done is visible.")


def gist(text: str) -> str:
    """The line that names the cause; what fails in a task begins with where it was called from."""
    lines = [line.strip().removeprefix("Caused by: ") for line in text.splitlines() if line.strip()] or [""]
    telling = (line for line in lines if any(word in line for word in (*_REFUSALS, *_MISREAD)))
    called = next((line for line in lines if "Exception" in line), lines[0])
    return next(telling, called)[:400]
