"""Which table a record belongs to, what is known of that table, and where stores are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import InvalidValue, SpecModel, exactly_one, word_or_mapping
from headrace.spec.contract import ColumnContract, Contract, ContractKeys
from headrace.spec.merge import Deduplicate, MergeSpec
from headrace.spec.partition import PartitionBy, Partitioning, column_of
from headrace.spec.secrets import Secret
from headrace.spec.units import Duration, Flag, PlainText, Regex, Size, Whole
from headrace.spec.uris import Place, server


class RouteBy(SpecModel):
    """A route taken from the record; exactly one of its keys."""

    field: str | None = Field(
        default=None, min_length=1, description="A field of the value: `a.b` or the JSON pointer `/a/b`."
    )
    header: str | None = Field(default=None, min_length=1, description="The last header of this name.")
    sql: str | None = Field(default=None, min_length=1, description="An SQL expression over the decoded row.")

    @model_validator(mode="after")
    def _one(self) -> RouteBy:
        exactly_one(self, "field", "header", "sql")
        return self


class Route(SpecModel):
    """Which table a record belongs to."""

    by: Annotated[
        Annotated[Literal["fixed", "topic", "type"], Tag("word")] | Annotated[RouteBy, Tag("mapping")],
        Discriminator(word_or_mapping),
    ] = Field(
        default="fixed",
        description="`fixed` (one table), `topic`, `type` (as its schema names a record), `{field: …}`, `{header: …}` "
        "or `{sql: …}`.",
    )
    include: Regex | None = Field(
        default=None, description="A regular expression; routes in which it is not found are unrouted."
    )
    exclude: Regex | None = Field(
        default=None, description="A regular expression; routes in which it is found are unrouted."
    )
    unrouted: Literal["dead_letter", "skip"] = Field(
        default="dead_letter", description="What becomes of a record without a route; `skip` only counts it."
    )

    @property
    def kind(self) -> Literal["fixed", "topic", "type", "field", "header", "sql"]:
        """What the route is taken from."""
        if isinstance(self.by, str):
            return self.by
        return "field" if self.by.field else "header" if self.by.header else "sql"

    @property
    def value(self) -> str | None:
        """The field, the header's name or the expression."""
        return None if isinstance(self.by, str) else self.by.field or self.by.header or self.by.sql


def route_names(route: Route) -> tuple[str, ...]:
    """What a path may call the route: `route`, or what it is taken from."""
    also = {"topic": ("topic",), "type": ("type",), "field": (f"field:{route.value}",)}
    return () if route.kind == "fixed" else ("route", *also.get(route.kind, ()))


class ColumnSpec(SpecModel):
    """A declared column."""

    name: str = Field(min_length=1, max_length=255, description="The column's name in the table.")
    type: str = Field(description="Its type in SQL's, Delta's or Arrow's words: `bigint`, `decimal(10,2)`, `array<T>`.")
    nullable: Flag = Field(default=True, description="Whether it may be NULL; `false` makes the field required.")
    path: str | None = Field(
        default=None, min_length=1, description="Where its value is, as `a.b`; the name without it."
    )
    unit: Literal["s", "ms", "us", "ns", "local-utc"] | None = Field(
        default=None,
        description="For `timestamp`: the unit of integers, or `local-utc` for texts without a zone. Without it, "
        "RFC 3339 text with a zone.",
    )
    default: Any = Field(default=None, description="The value when the field is absent.")
    json_text: Flag = Field(
        default=False, alias="json", description="For `string`: keep the value's JSON text as it came, whatever it is."
    )
    contract: ColumnContract = Field(
        default=ColumnContract(), description="Other answers than the table's to what does not fit this column."
    )


Mode = Literal["append", "upsert", "scd2", "overwrite", "overwrite_partitions"]
Feature = Literal["typeWidening", "deletionVectors"]

FEATURES: Mapping[Feature, str] = {  # the property that turns each on
    "typeWidening": "delta.enableTypeWidening",
    "deletionVectors": "delta.enableDeletionVectors",
}


class Expectation(SpecModel):
    """What rows are expected to be, by a name."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$", description="What it is called in counts, letters and stops."
    )
    expect: str = Field(
        min_length=1, description="An SQL predicate over the transformed row; NULL counts as fulfilled, as in a CHECK."
    )
    on_violation: Literal["warn", "drop", "reject", "stop"] = Field(
        default="warn",
        description="What becomes of a row that does not fulfil it: it is stored, filtered, a letter (`expectation`), "
        "or the pipeline stops. Each is counted.",
    )


class Infer(SpecModel):
    """How long a pipeline whose columns nobody has said waits for its first records."""

    records: Whole = Field(default=1_000, ge=1, description="Records to wait for.")
    within: Duration = Field(
        default=timedelta(seconds=10), le=timedelta(hours=1), description="How long, from the first record that waits."
    )


class TableOptions(SpecModel):
    """All that can be said of a table but its path."""

    partition_by: tuple[Partitioning, ...] = Field(
        default=(),
        description="Columns whose values become folders: by name, or made from another (`{date: at}`, `{hour: at}`, "
        "`{hash: user, buckets: 16}`).",
    )
    columns: tuple[ColumnSpec, ...] = Field(
        default=(),
        description="Declared columns, in order. An existing table keeps its other columns, and records fill them. "
        "Without declared columns: the existing table's, else inferred.",
    )
    only_declared: Flag = Field(
        default=False,
        description="Whether records fill the declared columns alone: the other columns of an existing table get "
        "their DEFAULT, or NULL. `check --online` lists the latter.",
    )
    contract_keys: ContractKeys = Field(
        default=ContractKeys(), alias="contract", description="What happens to a record that does not fit."
    )
    strict: Flag = Field(default=False, description="`reject` for every key of the contract.")
    mode: Mode = Field(
        default="append",
        description="How rows are written: each record adds one; changes the one of its key (`upsert`); or "
        "ends it and begins the next (`scd2`). Or every run reads all records anew, and what they make is "
        "in the place of the table (`overwrite`), or of the partitions that they are of (`overwrite_partitions`).",
    )
    merge: MergeSpec | None = Field(
        default=None, description="For `mode: upsert` and `scd2`: keys, order, and what deletes."
    )
    deduplicate: Deduplicate | None = Field(
        default=None, description="For `mode: append`: doubles of records that are left out, and counted as filtered."
    )
    create: Literal["auto", "never"] = Field(
        default="auto", description="Whether the table, and declared columns it lacks, are made when absent."
    )
    source: Flag = Field(
        default=True,
        description="Whether tables made here get `_source` (topic, partition, offset, timestamp) as last column.",
    )
    metadata: Literal["none", "danube"] = Field(
        default="none",
        description="`danube`: a last column `_danube_metadata`, JSON text with topic, offset, timestamp (ms), "
        "timestamp_iso and partition of the record.",
    )
    expectations: tuple[Expectation, ...] = Field(
        default=(), description="What rows are expected to be, and what happens to those that are not."
    )
    constraints: Mapping[str, str] = Field(
        default_factory=dict,
        description="For CHECK constraints of an existing table that Headrace cannot evaluate: by name, the same "
        "condition as an SQL expression over the table's columns. A row for which it is not true is a dead letter "
        "(`constraint`).",
    )
    compression: Literal["snappy", "zstd", "gzip", "lz4", "none"] = Field(
        default="snappy", description="How Parquet pages are compressed."
    )
    target_file_size: Size = Field(
        default=128_000_000, ge=1_000_000, le=4_000_000_000, description="About how large a data file may get."
    )
    min_file_size: Size | None = Field(
        default=None,
        ge=1,
        description="Files of this size or more are left as they are by `maintenance`; without it, of three quarters "
        "of `target_file_size`.",
    )
    max_file_size: Size | None = Field(
        default=None,
        ge=1,
        description="Larger files are divided by `maintenance`; without it none is. At least twice `target_file_size`.",
    )
    z_order: tuple[str, ...] = Field(
        default=(),
        description="Columns by which `maintenance` orders rows: near in them, near in the files. Idle partitions are "
        "ordered first.",
    )
    cluster_by: tuple[str, ...] = Field(
        default=(),
        max_length=4,
        description="Columns by which tables made here are clustered (Delta's liquid clustering): the table itself "
        "says so, `maintenance` and every OPTIMIZE heed it. Spark writes such tables, for good.",
    )
    properties: Mapping[str, PlainText] = Field(
        default_factory=dict, description="Delta table properties for tables made here."
    )
    features: tuple[Feature, ...] = Field(
        default=(),
        description="Delta features that have a price: readers without them refuse the table, and Spark writes it, "
        "from its first version on and for good. `typeWidening` is for `wrong_type: widen`. `deletionVectors` is for "
        "`mode: upsert` and `scd2`: a merge notes which rows of a file are no more, and writes only the new ones.",
    )

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition columns, in order."""
        return tuple(map(column_of, self.partition_by))

    @property
    def derived(self) -> tuple[PartitionBy, ...]:
        """Those of them that are made from other columns."""
        return tuple(each for each in self.partition_by if isinstance(each, PartitionBy))

    @property
    def all_properties(self) -> dict[str, str]:
        """The properties of tables made here, those of their features among them."""
        return {**self.properties, **{FEATURES[each]: "true" for each in self.features}}

    @property
    def merges(self) -> MergeSpec | None:
        """How records change rows; None where they only add some. It has a history where the table keeps one."""
        if self.merge is None or self.mode not in ("upsert", "scd2"):
            return None
        return self.merge.with_scd2() if self.mode == "scd2" else self.merge

    @property
    def overwrites(self) -> bool:
        """Whether a run begins anew what the table holds."""
        return self.mode in ("overwrite", "overwrite_partitions")

    @property
    def scd2_columns(self) -> tuple[str, ...]:
        """The columns that say when a row was so, where the table keeps what was."""
        return self.merges.scd2.columns if self.merges and self.merges.scd2 else ()

    @property
    def by_spark(self) -> bool:
        """Whether Spark alone may write the table, because it merges rows or by the features it shall have."""
        return self.merges is not None or bool(self.features) or bool(self.cluster_by)

    @property
    def declared(self) -> bool:
        """Whether the spec gives the columns."""
        return bool(self.columns)

    @property
    def closed(self) -> bool:
        """Whether rows have no other columns than the declared ones, as far as the spec alone can tell."""
        more = self.create == "never" and not self.only_declared  # then there is a table, and it may have others
        return self.declared and self.contract.new_field != "evolve" and not more

    @property
    def contract(self) -> Contract:
        """The contract with its defaults filled in."""
        if self.strict:
            return Contract("reject", "reject", "reject")
        usual: Literal["ignore", "evolve"] = "ignore" if self.declared else "evolve"
        keys = self.contract_keys
        own = {column.name: column.contract for column in self.columns if column.contract.model_fields_set}
        return Contract(keys.new_field or usual, keys.wrong_type, keys.missing, own)


class TableSpec(TableOptions):
    """The table, or the pattern of the tables, that rows are written to."""

    path: Place = Field(
        description="A folder, `s3://bucket/key` or `s3a://…`; `{route}` in it stands for the record's route, "
        "`{topic}` for its topic; both may be there. "
        "Relative to the spec file."
    )
    infer: Infer = Field(
        default=Infer(), description="How many records a pipeline without known columns waits for. A drain never waits."
    )


class TableMatch(TableOptions):
    """Other options for the tables of some routes: any key of `table` but `path` and `infer`, instead of its own."""

    match: Regex = Field(
        description="A regular expression found in the route (`topic:route` where the path has `{topic}` beside it); "
        "the first match of the list counts."
    )

    def over(self, table: TableSpec) -> TableSpec:
        """The table with the keys given here instead of its own; a contract of its own also ends `strict`."""
        given = {name: getattr(self, name) for name in self.model_fields_set - {"match"}}
        if "contract_keys" in given:
            given.setdefault("strict", False)
        return table.model_copy(update=given)


class DeadLetterStep(SpecModel):
    """More columns for dead letters; exactly one of its keys."""

    set: Mapping[str, str] | None = Field(
        default=None,
        min_length=1,
        description="Columns to add: name and SQL expression over the letter's columns; NULL where it fails.",
    )
    jmespath: Mapping[str, str] | None = Field(
        default=None,
        min_length=1,
        description="Text columns to add: name and JMESPath over the letter as kafka-delta-ingest writes it.",
    )

    @model_validator(mode="after")
    def _one(self) -> DeadLetterStep:
        exactly_one(self, "set", "jmespath")
        return self


class DeadLettersSpec(SpecModel):
    """Where records go that could not become rows."""

    path: Place | None = Field(default=None, description="The dead-letter table; `<state>/dead_letters` without it.")
    retention: Duration | None = Field(
        default=None,
        ge=timedelta(days=1),
        description="How long letters are kept, in whole days of UTC; without it until `headrace dead-letters purge`.",
    )
    transform: tuple[DeadLetterStep, ...] = Field(
        default=(), description="Columns that letters get beside their own, in order."
    )


_SAID = re.compile(
    r"(aws_|s3_)?(.*secret.*|.*token.*|.*password.*|.*access_key.*|.*endpoint.*|.*region|allow_http|bucket.*)"
)


def _option(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", name) or _SAID.fullmatch(name.lower()):
        allowed = "options that no other key says: addresses, regions and credentials have keys of their own"
        raise InvalidValue(allowed, message=f"the option '{name[:80]}'")
    return name


class S3(SpecModel):
    """An S3 store; what is not said comes from the environment (`AWS_…`, instance profile)."""

    endpoint: Annotated[str, AfterValidator(server)] | None = Field(
        default=None, description="The store's address, `https://host:port`; Amazon's without it."
    )
    region: str | None = Field(default=None, min_length=1, description="The region's name.")
    path_style: Flag | None = Field(
        default=None, description="Bucket in the path instead of the host name; true where `endpoint` is given."
    )
    allow_http: Flag = Field(default=False, description="Says that an unencrypted `endpoint` is intended.")
    access_key_id: str | None = Field(default=None, min_length=1, repr=False, description="The key's name.")
    secret_access_key: Secret | None = Field(default=None, description="The key itself, by reference.")
    session_token: Secret | None = Field(default=None, description="The token of temporary credentials, by reference.")
    options: Mapping[Annotated[str, AfterValidator(_option)], PlainText] = Field(
        default_factory=dict, description="Passed on to the object store as they are."
    )


class Storage(SpecModel):
    """How stores are reached."""

    s3: S3 = Field(default=S3(), description="For `s3://` and `s3a://`.")


class StorageProfile(TypedDict):
    """A store's plain fields (empty where unsaid), secrets revealed: to be handed on at once, never kept or shown."""

    endpoint: str
    region: str
    path_style: bool | None
    allow_http: bool
    access_key_id: str
    secret_access_key: str
    session_token: str
    options: Mapping[str, str]
