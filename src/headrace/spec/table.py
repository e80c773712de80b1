"""Routing, table options and dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headrace.spec.base import SpecModel, exactly_one, word_or_mapping
from headrace.spec.contract import ColumnContract, Contract, ContractKeys
from headrace.spec.merge import Deduplicate, MergeSpec
from headrace.spec.partition import PartitionBy, Partitioning, column_of
from headrace.spec.txn import Txn, TxnSpec
from headrace.spec.units import Duration, Flag, Integer, PlainText, Regex, Size
from headrace.spec.uris import StoragePath


class RouteBy(SpecModel):
    """Record-based route; exactly one key."""

    field: str | None = Field(
        default=None, min_length=1, description="Field of the value: `a.b`, or a JSON pointer such as `/a/b`."
    )
    header: str | None = Field(
        default=None, min_length=1, description="Record header; the last one with this name is used."
    )
    sql: str | None = Field(default=None, min_length=1, description="SQL expression over the transformed row.")

    @model_validator(mode="after")
    def _check_keys(self) -> RouteBy:
        exactly_one(self, "field", "header", "sql")
        return self


class Route(SpecModel):
    """Routing: selects the table of a record."""

    by: Annotated[
        Annotated[Literal["fixed", "topic", "type"], Tag("word")] | Annotated[RouteBy, Tag("mapping")],
        Discriminator(word_or_mapping),
    ] = Field(
        default="fixed",
        description="Source of the route: `fixed` (one table), `topic`, `type` (type name from the record's "
        "schema), `{field: …}`, `{header: …}` or `{sql: …}`.",
    )
    include: Regex | None = Field(
        default=None, description="Regular expression; records whose route does not match are unrouted."
    )
    exclude: Regex | None = Field(
        default=None, description="Regular expression; records whose route matches are unrouted."
    )
    unrouted: Literal["dead_letter", "skip"] = Field(
        default="dead_letter", description="Handling of unrouted records; `skip` only counts them."
    )

    @property
    def kind(self) -> Literal["fixed", "topic", "type", "field", "header", "sql"]:
        """Source of the route."""
        if isinstance(self.by, str):
            return self.by
        return "field" if self.by.field else "header" if self.by.header else "sql"

    @property
    def value(self) -> str | None:
        """Field, header name or expression."""
        return None if isinstance(self.by, str) else self.by.field or self.by.header or self.by.sql


def route_names(route: Route) -> tuple[str, ...]:
    """Names of the route in a path template: `route`, or its source."""
    also = {"topic": ("topic",), "type": ("type",), "field": (f"field:{route.value}",)}
    return () if route.kind == "fixed" else ("route", *also.get(route.kind, ()))


class ColumnSpec(SpecModel):
    """Declared column."""

    name: str = Field(min_length=1, max_length=255, description="Column name.")
    type: str = Field(description="SQL, Delta or Arrow type name, such as `bigint`, `decimal(10,2)` or `array<T>`.")
    nullable: Flag = Field(
        default=True, description="Whether the column may be NULL; `false` makes the field required."
    )
    path: str | None = Field(
        default=None, min_length=1, description="Path of the field in the record (`a.b`). Default: the column name."
    )
    unit: Literal["s", "ms", "us", "ns", "local-utc"] | None = Field(
        default=None,
        description="Time unit of integer timestamps, or `local-utc` to read text without a time zone as UTC. "
        "Default: RFC 3339 text with a time zone.",
    )
    default: Any = Field(default=None, description="Value for a missing field.")
    json_text: Flag = Field(
        default=False, alias="json", description="For `string` columns: store any value as its original JSON text."
    )
    contract: ColumnContract = Field(default=ColumnContract(), description="Column-level overrides of the contract.")


Mode = Literal["append", "upsert", "scd2", "overwrite", "overwrite_partitions"]
Feature = Literal["typeWidening", "deletionVectors"]

FEATURES: Mapping[Feature, str] = {  # the property that turns each on
    "typeWidening": "delta.enableTypeWidening",
    "deletionVectors": "delta.enableDeletionVectors",
}


class Expectation(SpecModel):
    """Data quality expectation."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$",
        description="Name of the expectation in metrics, dead letters and error messages.",
    )
    expect: str = Field(
        min_length=1, description="SQL predicate over the transformed row; NULL passes, as in a CHECK constraint."
    )
    on_violation: Literal["warn", "drop", "reject", "stop"] = Field(
        default="warn",
        description="Action for violating rows: `warn` (write the row), `drop` (filter it), `reject` "
        "(reason `expectation`) or `stop`. All violations are counted.",
    )


class Infer(SpecModel):
    """How long to wait for sample records before inferring the schema of a new table."""

    records: Integer = Field(default=1_000, ge=1, description="Number of sample records.")
    within: Duration = Field(
        default=timedelta(seconds=10), le=timedelta(hours=1), description="Maximum time to wait after the first record."
    )


class Coerce(SpecModel):
    """Values of other types that columns take. Without it, they are dead letters."""

    string: Flag = Field(
        default=False,
        description="Store text in `string` columns as it is, and any other value as its JSON text. Not for columns "
        "with `json`.",
    )
    timestamp: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None,
        description="Accept RFC 3339 text and whole numbers in `timestamp` columns; the unit of the numbers. Not for "
        "columns with `unit`.",
    )


class TableOptions(SpecModel):
    """Table options other than the path."""

    partition_by: tuple[Partitioning, ...] = Field(
        default=(),
        description="Partition columns: column names, or derived values (`{date: at}`, `{hour: at}`, "
        "`{hash: user, buckets: 16}`).",
    )
    columns: tuple[ColumnSpec, ...] = Field(
        default=(),
        description="Declared columns, in order. Other columns of an existing table are kept and filled from "
        "the records. Default: the columns of the existing table, otherwise inferred.",
    )
    only_declared: Flag = Field(
        default=False,
        description="Write only the declared columns; other columns of an existing table get their DEFAULT "
        "value or NULL. `check --online` lists those that get NULL.",
    )
    coerce: Coerce | None = Field(
        default=None,
        description="Values of other types that `string` and `timestamp` columns take, nested ones included. Default: "
        "none.",
    )
    contract_keys: ContractKeys = Field(
        default=ContractKeys(),
        alias="contract",
        description="Data contract: handling of records that do not match the schema.",
    )
    strict: Flag = Field(default=False, description="Sets all keys of the contract to `reject`.")
    mode: Mode = Field(
        default="append",
        description="Write mode: `append` adds rows, `upsert` keeps one row per key, `scd2` keeps the history "
        "of each key. `overwrite` and `overwrite_partitions` read all records again on each run "
        "and replace the table or the affected partitions.",
    )
    merge: MergeSpec | None = Field(
        default=None, description="Merge settings for `mode: upsert` and `mode: scd2`: keys, order and deletes."
    )
    deduplicate: Deduplicate | None = Field(
        default=None, description="For `mode: append`: skip duplicate rows; they are counted as filtered."
    )
    create: Literal["auto", "never"] = Field(
        default="auto",
        description="`auto` creates the table and adds missing declared columns; `never` stops the pipeline instead "
        "(`TableGone`).",
    )
    txn: Txn = Field(
        default=TxnSpec(),
        description="Txns of kafka-delta-ingest in the table: `kafka-delta-ingest` (for its default app id) or a "
        "mapping. Default: a table that has such txns stops a new pipeline (`TakeoverRequired`).",
    )
    source: Flag = Field(
        default=True,
        description="Add a last column `_source` (topic, partition, offset, timestamp) to new tables.",
    )
    metadata: Literal["none", "danube"] = Field(
        default="none",
        description="`danube`: add a last column `_danube_metadata` with topic, offset, timestamp (ms), "
        "timestamp_iso and partition as JSON text.",
    )
    expectations: tuple[Expectation, ...] = Field(
        default=(), description="Data quality expectations and their actions."
    )
    constraints: Mapping[str, str] = Field(
        default_factory=dict,
        description="SQL equivalents, by constraint name, of CHECK constraints that Headrace cannot evaluate. "
        "Rows for which the expression is not true become dead letters (`constraint`).",
    )
    catalog_table: str | None = Field(
        default=None,
        pattern=r"^(?:[A-Za-z0-9_{}]+\.){0,2}[A-Za-z0-9_{}]+$",
        description="Name under which the table is registered in the catalog of the Spark session (Hive metastore, "
        "Unity Catalog): `schema.table` or `catalog.schema.table`, with `{route}` and `{topic}` as in `path`. Only "
        "with a session that has a catalog: `headrace.run(spec, spark=session)`.",
    )
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = Field(
        default="snappy", description="Compression of data files."
    )
    target_file_size: Size = Field(
        default=128_000_000, ge=1_000_000, le=4_000_000_000, description="Approximate target size of data files."
    )
    min_file_size: Size | None = Field(
        default=None,
        ge=1,
        description="Files of at least this size are not compacted by `maintenance`. Default: three quarters "
        "of `target_file_size`.",
    )
    max_file_size: Size | None = Field(
        default=None,
        ge=1,
        description="Files larger than this are split by `maintenance`; at least twice `target_file_size`. "
        "Default: files are not split.",
    )
    z_order: tuple[str, ...] = Field(
        default=(),
        description="Z-order columns for `maintenance`; idle partitions are clustered first.",
    )
    cluster_by: tuple[str, ...] = Field(
        default=(),
        max_length=4,
        description="Liquid clustering columns of new tables, used by `maintenance` and by any other "
        "OPTIMIZE. Clustered tables are always written by Spark.",
    )
    properties: Mapping[str, PlainText] = Field(
        default_factory=dict, description="Delta table properties of new tables."
    )
    features: tuple[Feature, ...] = Field(
        default=(),
        description="Delta table features to enable on new tables. Clients without support for a feature "
        "cannot read the table, and the table is always written by Spark. `typeWidening` is "
        "required for `wrong_type: widen`. `deletionVectors` speeds up `mode: upsert` and `mode: "
        "scd2`: a merge marks rows as deleted instead of rewriting files.",
    )

    @property
    def partitions(self) -> tuple[str, ...]:
        """Partition columns, in order."""
        return tuple(map(column_of, self.partition_by))

    @property
    def derived(self) -> tuple[PartitionBy, ...]:
        """Derived partition columns."""
        return tuple(each for each in self.partition_by if isinstance(each, PartitionBy))

    @property
    def all_properties(self) -> dict[str, str]:
        """Properties of new tables, including those of their features."""
        return {**self.properties, **{FEATURES[each]: "true" for each in self.features}}

    @property
    def merges(self) -> MergeSpec | None:
        """Merge settings, with the SCD2 columns for `mode: scd2`; None for modes that do not merge."""
        if self.merge is None or self.mode not in ("upsert", "scd2"):
            return None
        return self.merge.with_scd2() if self.mode == "scd2" else self.merge

    @property
    def overwrites(self) -> bool:
        """Whether each run replaces the content of the table."""
        return self.mode in ("overwrite", "overwrite_partitions")

    @property
    def scd2_columns(self) -> tuple[str, ...]:
        """SCD2 validity columns; empty for other modes."""
        return self.merges.scd2.columns if self.merges and self.merges.scd2 else ()

    @property
    def by_spark(self) -> bool:
        """Whether only Spark may write the table, because of its mode or features."""
        return self.merges is not None or bool(self.features) or bool(self.cluster_by)

    @property
    def declared(self) -> bool:
        """Whether columns are declared."""
        return bool(self.columns)

    @property
    def closed(self) -> bool:
        """Whether the declared columns are the only ones, as far as the spec alone shows."""
        # An existing table may have more columns than the declared ones.
        open_table = self.create == "never" and not self.only_declared
        return self.declared and self.contract.new_field != "evolve" and not open_table

    @property
    def contract(self) -> Contract:
        """Contract with defaults resolved."""
        if self.strict:
            return Contract("reject", "reject", "reject")
        default: Literal["ignore", "evolve"] = "ignore" if self.declared else "evolve"
        keys = self.contract_keys
        own = {column.name: column.contract for column in self.columns if column.contract.model_fields_set}
        return Contract(keys.new_field or default, keys.wrong_type, keys.missing, own)


class TableSpec(TableOptions):
    """Target table, or path template for several tables."""

    path: StoragePath = Field(
        description="Path of the table: a directory, `s3://bucket/key`, `gs://bucket/key`, `az://container/key` or "
        "`abfss://container@account.dfs.core.windows.net/key`. `{route}` is "
        "replaced by the route of the record, `{topic}` by its topic. Relative paths start at the "
        "spec file."
    )
    infer: Infer = Field(
        default=Infer(), description="Sample records for schema inference. `run --until latest` does not wait for them."
    )


class TableMatch(TableOptions):
    """Overrides for the tables of some routes: any key of `table` except `path` and `infer`."""

    match: Regex = Field(
        description="Regular expression, matched anywhere in the route (`topic:route` if the path has both `{topic}` "
        "and `{route}`). The first matching entry applies."
    )

    def over(self, table: TableSpec) -> TableSpec:
        """Table with overridden keys; an overriding contract also disables `strict`."""
        overrides = {name: getattr(self, name) for name in self.model_fields_set - {"match"}}
        if "contract_keys" in overrides:
            overrides.setdefault("strict", False)
        return table.model_copy(update=overrides)


class DeadLetterStep(SpecModel):
    """Additional columns for dead letters; exactly one key."""

    set: Mapping[str, str] | None = Field(
        default=None,
        min_length=1,
        description="Columns to add: SQL expressions over the columns of the dead letter, by name. NULL if "
        "the expression fails.",
    )
    jmespath: Mapping[str, str] | None = Field(
        default=None,
        min_length=1,
        description="Text columns to add: JMESPath expressions over the dead letter in kafka-delta-ingest's "
        "format, by name.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> DeadLetterStep:
        exactly_one(self, "set", "jmespath")
        return self


class DeadLettersSpec(SpecModel):
    """Dead-letter table for records that cannot be written."""

    path: StoragePath | None = Field(
        default=None, description="Path of the dead-letter table. Default: `<state>/dead_letters`."
    )
    retention: Duration | None = Field(
        default=None,
        ge=timedelta(days=1),
        description="Retention in whole UTC days. Default: dead letters are kept until `headrace dead-letters purge`.",
    )
    transform: tuple[DeadLetterStep, ...] = Field(default=(), description="Additional columns, applied in order.")
    drop: Flag = Field(
        default=False,
        description="Count the records that cannot be written, by reason, and do not store them: their content is "
        "lost. `dead_letters: drop` is the short form.",
    )


def expand_drop(value: Any) -> Any:
    """Expand the short form `drop`."""
    return {"drop": True} if value == "drop" else value
