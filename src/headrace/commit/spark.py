"""Append by Spark's own Delta writer: for tables that a blind append must not touch, under the pipeline's lease."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.batch import Intent, Receipt, TableIntent
from headrace.commit.marks import batch_mark
from headrace.commit.stops import stop
from headrace.errors import Conflict, Fenced, Stop, TableChanged, TableGone, TableReplaced
from headrace.storage import Store
from headrace.tables.evolve import check_fits
from headrace.tables.log import TableState, load
from headrace.tables.schema import from_delta, type_name

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSALS = ("CONSTRAINT", "DELTA_NOT_NULL", "INVARIANT")
_MISREAD = ("DATA_TYPE_MISMATCH", "SchemaColumnConvertNotSupported")
_FILLED_BY_SPARK = (b"delta.generationExpression", b"delta.identity.start")


class SparkTable:
    """One Delta table that only this JVM writes while the lease is held."""

    adopts = False

    def __init__(self, spark: SparkSession, store: Store, pipeline: str) -> None:
        self._spark = spark
        self._store = store
        self._mark = batch_mark(pipeline)
        self.state: TableState | None = load(store, [self._mark])

    def writable(self) -> pa.Schema:
        """The columns rows may fill; what Spark computes itself is left to it."""
        assert self.state is not None  # noqa: S101
        own = [item for item in self.state.schema if not any(key in (item.metadata or {}) for key in _FILLED_BY_SPARK)]
        return pa.schema(own)

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns the table lacks; TableChanged when others took some away meanwhile."""
        self._follow()
        assert self.state is not None  # noqa: S101
        have = set(self.state.schema.names)
        added = [f"{_quoted(item.name)} {type_name(item.type)}" for item in schema if item.name not in have]
        if not added:
            raise TableChanged(
                f"{self._store.uri}: new fields inside a struct cannot be added to a table that Spark writes.",
                next="Add them with ALTER TABLE, then run again.",
            )
        self._spark.sql(f"ALTER TABLE delta.{_quoted(self._store.spark_uri)} ADD COLUMNS ({', '.join(added)})")
        self._reload()

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """Append the staged files; Delta itself skips a batch number it has seen."""
        self._reload()
        self._check(table, intent)
        rows, size = sum(item.rows for item in table.files), sum(item.size for item in table.files)
        assert self.state is not None  # noqa: S101
        if self.state.marks.get(self._mark) == intent.batch:
            return Receipt(table.path, self.state.version, rows, len(table.files), size, skipped=True)
        paths = [f"{Store(item.table, self._store.profile).spark_uri}/{item.path}" for item in table.files]
        frame = self._spark.read.schema(_ddl(from_delta(table.schema))).parquet(*paths)
        writer = frame.write.format("delta").mode("append").option("userMetadata", _account(intent))
        writer = writer.option("txnAppId", self._mark).option("txnVersion", intent.batch)
        try:
            writer.save(self._store.spark_uri)
        except Exception as error:
            raise _named(error, self._store.uri) from None
        self._reload()
        return Receipt(table.path, self.state.version, rows, len(table.files), size)

    def _follow(self) -> None:
        """Go along with what others did, as long as what we knew of the table still holds."""
        found = load(self._store, [self._mark])
        if self.state is not None and found is not None:
            try:
                check_fits(self.state.schema_json, found)
            except TableChanged as problem:
                raise stop(TableChanged, f"{self._store.uri}: {problem.seen}") from None
        self.state = found

    def _reload(self) -> None:
        self.state = load(self._store, [self._mark])

    def _check(self, table: TableIntent, intent: Intent) -> None:
        if self.state is None:
            raise TableGone(f"The table {table.path} is gone.", next="Bring it back, then run again.")
        if self.state.table_id != table.table_id:
            raise TableReplaced(
                f"The table {table.path} was made anew underneath the pipeline.",
                next="Run `headrace resume SPEC --accept-new-table` to go on with the new one.",
            )
        if self.state.marks.get(self._mark, 0) > intent.batch:
            raise Fenced(
                f"The table {table.path} is already past batch {intent.batch}.",
                next="Another instance of the pipeline has gone on; this one must not write.",
            )


def _account(intent: Intent) -> str:
    return json.dumps({"headrace": {"batch": intent.batch, "marks": intent.marks(), "spec": intent.digest}})


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"{_quoted(item.name)} {type_name(item.type)}" for item in schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _named(error: Exception, uri: str) -> Stop:
    """A constraint that rows break is the table's word against the spec's: somebody must decide."""
    text, said = str(error), _gist(str(error))
    condition: Any = getattr(error, "getCondition", lambda: None)()
    if any(word in text for word in _REFUSALS):
        return TableChanged(
            f"{uri} refuses rows of this batch: {said}",
            next="Loosen the constraint and run again; transform.where keeps such rows out of later batches.",
        )
    if "DELTA_CONCURRENT" in text or "Concurrent" in str(condition):
        return Conflict(
            f"{uri}: others commit to the table at the same time: {said}", next="Run again once they are done."
        )
    if condition or any(word in text for word in _MISREAD):
        return TableChanged(f"{uri}: Spark cannot append: {said}", next="Mend the table, then run again.")
    return Stop(f"{uri}: Spark could not append: {said}", next="Run again; nothing half-done is visible.")


def _gist(text: str) -> str:
    """The line that names the cause; what fails in a task begins with where it was called from."""
    lines = [line.strip().removeprefix("Caused by: ") for line in text.splitlines() if line.strip()] or [""]
    telling = (line for line in lines if any(word in line for word in (*_REFUSALS, *_MISREAD)))
    called = next((line for line in lines if "Exception" in line), lines[0])
    return next(telling, called)[:400]
