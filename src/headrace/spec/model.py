"""Pydantic model of the spec: all keys and their descriptions. Unknown keys are rejected."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from headrace.spec.base import Shorthand, SpecModel, exactly_one
from headrace.spec.danube_source import source_topic
from headrace.spec.decode import FORMATS, Decode, Tombstone, expand_format_name
from headrace.spec.explode import Explode, expand_array_name
from headrace.spec.files_source import FilesSpec
from headrace.spec.hot_store import HotStoreSpec
from headrace.spec.maintenance import MaintenanceSpec
from headrace.spec.rivven_source import RivvenSpec
from headrace.spec.route_id import RouteId
from headrace.spec.routing import NAME, Routing
from headrace.spec.running import (
    CircuitBreakerSpec,
    FlushSpec,
    FreshnessSpec,
    LeaseSpec,
    LimitsSpec,
    RetrySpec,
    SparkSpec,
)
from headrace.spec.source import GenerateSpec, KafkaSpec, SourceSpec
from headrace.spec.steps import StepSpec
from headrace.spec.storage import Storage
from headrace.spec.table import DeadLettersSpec, Route, TableMatch, TableSpec, expand_drop, route_names
from headrace.spec.units import Regex
from headrace.spec.uris import StoragePath, contains_uri, folder_of
from headrace.spec.yaml_reader import SpecSource

# Where a secret may stand: these texts stay references in the model; all others are followed when the spec is read.
# `*` is any item of a list, and any name of the user's.
SECRETS = frozenset(
    {
        ("transform", "*", "mask", "*", "sha256"),
        ("branches", "*", "transform", "*", "mask", "*", "sha256"),
        ("topics", "*", "transform", "*", "mask", "*", "sha256"),
        ("source", "kafka", "tls", "key"),
        ("source", "kafka", "tls", "key_password"),
        ("source", "kafka", "sasl", "password"),
        ("source", "kafka", "sasl", "client_secret"),
        ("source", "rivven", "tls", "key"),
        ("source", "rivven", "tls", "key_password"),
        ("source", "rivven", "sasl", "password"),
        ("source", "http", "tokens", "*"),
        ("source", "http", "tls", "key"),
        ("source", "http", "kafka", "tls", "key"),
        ("source", "http", "kafka", "tls", "key_password"),
        ("source", "http", "kafka", "sasl", "password"),
        ("source", "http", "kafka", "sasl", "client_secret"),
        ("source", "otlp", "tokens", "*"),
        ("source", "otlp", "tls", "key"),
        ("source", "danube", "token"),
        ("source", "danube", "tls", "key"),
        ("decode", "json", "registry", "password"),
        ("decode", "protobuf", "registry", "password"),
        ("decode", "avro", "registry", "password"),
        ("decode", "msgpack", "registry", "password"),
        ("topics", "*", "decode", "json", "registry", "password"),
        ("topics", "*", "decode", "protobuf", "registry", "password"),
        ("topics", "*", "decode", "avro", "registry", "password"),
        ("topics", "*", "decode", "msgpack", "registry", "password"),
        ("hot_store", "postgres", "password"),
        ("hot_store", "postgres", "tls", "key"),
        ("hot_store", "postgres", "tls", "key_password"),
        ("storage", "s3", "secret_access_key"),
        ("storage", "s3", "session_token"),
        ("storage", "azure", "account_key"),
        ("storage", "azure", "sas_token"),
        ("storage", "azure", "connection_string"),
        ("storage", "azure", "client_secret"),
        ("storage", "gcs", "service_account_key"),
    }
)


def is_secret(path: tuple[str | int, ...]) -> bool:
    """Whether the value at a path is a secret."""
    return any(
        len(path) == len(pattern) and all(expected in ("*", step) for expected, step in zip(pattern, path, strict=True))
        for pattern in SECRETS
    )


NAME_OF_BRANCH = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$"


def list_of_names(value: Any) -> Any:
    """A list of names from a single one."""
    return [value] if isinstance(value, str) else value


Exploded = Annotated[Explode, BeforeValidator(expand_array_name), Shorthand(type="string")]


class BranchSpec(SpecModel):
    """Branch: writes the same decoded records to other tables."""

    name: str = Field(pattern=NAME_OF_BRANCH, description="Unique name of the branch.")
    explode: Exploded | None = Field(default=None, description="Same as the pipeline's `explode`.")
    transform: tuple[StepSpec, ...] = Field(
        default=(),
        description="Same as the pipeline's `transform`; the pipeline's own steps are not applied to the branch.",
    )
    route: Route = Field(default=Route(), description="Same as the pipeline's `route`.")
    table: TableSpec = Field(description="Same as the pipeline's `table`; each branch needs its own path.")
    tables: tuple[TableMatch, ...] = Field(default=(), description="Same as the pipeline's `tables`.")

    @model_validator(mode="after")
    def _one_name_for_the_route(self) -> BranchSpec:
        return unify_route_variable(self)


class TopicSpec(BranchSpec):
    """Settings of some topics: how their records are decoded, transformed and written."""

    name: str = Field(pattern=NAME_OF_BRANCH, description="Unique name of the entry, also among `branches`.")
    topic: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=249)], ...] | None,
        BeforeValidator(list_of_names),
        Shorthand(type="string"),
    ] = Field(
        default=None,
        min_length=1,
        description="Topic, or list of topics, by the names in the source; alternative to `match`.",
    )
    match: Regex | None = Field(
        default=None,
        description="Regular expression, matched anywhere in the name of a topic; alternative to `topic`.",
    )
    decode: Annotated[Decode, BeforeValidator(expand_format_name), Shorthand(enum=list(FORMATS))] | None = Field(
        default=None, description="Same as the pipeline's `decode`. Default: the pipeline's."
    )
    transform: tuple[StepSpec, ...] = Field(
        default=(),
        description="Same as the pipeline's `transform`; the pipeline's own steps are not applied to these topics.",
    )
    table: TableSpec = Field(description="Same as the pipeline's `table`; each entry needs its own path.")
    flush: FlushSpec | None = Field(
        default=None,
        description="Same as the pipeline's `flush`, for these topics. Default of each key: the pipeline's.",
    )

    @model_validator(mode="after")
    def _check_selector(self) -> TopicSpec:
        exactly_one(self, "topic", "match")
        return self

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of the topics in records; those of Danube as in `{topic}`."""
        return tuple(source_topic(name) for name in self.topic or ())

    def selects(self, topic: str) -> bool:
        """Whether a topic, by its name in records, is one of the entry's, unless an earlier entry has it."""
        return topic in self.topics if self.match is None else re.search(self.match, topic) is not None


class Spec(SpecModel):
    """Spec of one pipeline."""

    pipeline: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$",
        description="Unique, permanent name of the pipeline; used as the Delta transaction app id.",
    )
    source: SourceSpec = Field(description="Source of the records.")
    decode: Annotated[
        Decode,
        BeforeValidator(expand_format_name),
        Shorthand(enum=list(FORMATS)),
    ] = Field(
        default=Decode(),
        description="Format of the record values: a format name, or a mapping with options (`{json: {…}}`).",
    )
    explode: Exploded | None = Field(
        default=None,
        description="Array field whose elements become rows, before the transform: a field name, or a mapping.",
    )
    transform: tuple[StepSpec, ...] = Field(
        default=(), description="Transform steps, applied to the decoded rows in order."
    )
    allow_missing: tuple[str, ...] = Field(
        default=(),
        description="Fields that expressions and steps may use although neither the table nor any record has "
        "them yet; they are NULL. Any other unknown field stops the first batch of a run "
        "(`UnknownColumn`).",
    )
    route: Route = Field(default=Route(), description="Routing: selects the table of a record.")
    table: TableSpec = Field(description="Target table, or path template for several tables.")
    tables: tuple[TableMatch, ...] = Field(default=(), description="Overrides of the table options for some routes.")
    branches: tuple[BranchSpec, ...] = Field(
        default=(),
        description="Additional outputs: each branch writes the same records to other tables, with its own transform.",
    )
    topics: tuple[TopicSpec, ...] = Field(
        default=(),
        description="Settings of some topics. The first matching entry applies to a topic; records of other topics get "
        "the pipeline's settings and `branches`.",
    )
    dead_letters: Annotated[DeadLettersSpec, BeforeValidator(expand_drop), Shorthand(enum=["drop"])] = Field(
        default=DeadLettersSpec(path=None),
        description="Dead-letter table for records that cannot be written; `drop` only counts them.",
    )
    state: StoragePath | None = Field(
        default=None,
        description="Path of the ledger, the lease and the dead letters. Default: `_headrace/<pipeline>` next "
        "to the tables.",
    )
    storage: Storage = Field(default=Storage(), description="Object store settings.")
    flush: FlushSpec = Field(default=FlushSpec(), description="Batch triggers.")
    limits: LimitsSpec = Field(default=LimitsSpec(), description="Limits on batch and record size.")
    retry: RetrySpec = Field(default=RetrySpec(), description="Retry policy for transient errors.")
    circuit_breaker: CircuitBreakerSpec | None = Field(
        default=None, description="Stops the pipeline when too many records are rejected; disabled by default."
    )
    freshness: FreshnessSpec | None = Field(
        default=None, description="Freshness target, which health and metrics report; none by default."
    )
    maintenance: MaintenanceSpec | None = Field(
        default=None, description="Table maintenance while the pipeline runs; disabled by default."
    )
    hot_store: HotStoreSpec | None = Field(
        default=None, description="Database to which rows are also written; disabled by default."
    )
    lease: LeaseSpec = Field(default=LeaseSpec(), description="Single-instance lease.")
    spark: SparkSpec = Field(default=SparkSpec(), description="Spark settings.")

    _text: str = PrivateAttr("")
    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _written: SpecSource | None = PrivateAttr(None)
    _entry: TopicSpec | None = PrivateAttr(None)
    _place: tuple[str | int, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _one_name_for_the_route(self) -> Spec:
        return unify_route_variable(self)

    @model_validator(mode="after")
    def _apply_event_operations(self) -> Spec:
        """Apply the operation of change events wherever rows are merged."""
        outputs: list[tuple[Decode, Spec | BranchSpec]] = [(self.decode, self)]
        outputs += [(self.decode, branch) for branch in self.branches]
        outputs += [(entry.decode or self.decode, entry) for entry in self.topics]
        for decode, output in outputs:
            for options in (output.table, *output.tables) if decode.changes else ():
                if options.merge is not None:
                    options.merge.apply_event_operations()
        return self

    def set_source_text(self, text: str, base: Path, written: SpecSource | None = None) -> None:
        """Record the text, base directory and source location of the spec."""
        self._text, self._base, self._written = text, base, written

    @property
    def written(self) -> SpecSource | None:
        """Location of the spec in its file; None if it was not read from a file."""
        return self._written

    @property
    def text(self) -> str:
        """Spec as one line of JSON (which is also YAML), with unresolved references."""
        return self._text or canonical_json(self.model_dump(mode="json", by_alias=True, exclude_unset=True))

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical text; independent of formatting."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def base(self) -> Path:
        """Directory that relative paths are resolved against."""
        return self._base

    @property
    def source_kind(self) -> str:
        """Type of the source: its key in the spec."""
        return self.source.kind

    @property
    def kafka(self) -> KafkaSpec:
        """Kafka topics that are read; LookupError if the source is another type."""
        kafka = self.source.read_from_kafka
        if kafka is None:
            raise LookupError(f"{self.pipeline} does not read Kafka")
        return kafka

    @property
    def rivven(self) -> RivvenSpec:
        """Rivven source; LookupError if the source is another type."""
        if self.source.rivven is None:
            raise LookupError(f"{self.pipeline} does not read Rivven")
        return self.source.rivven

    @property
    def generate(self) -> GenerateSpec:
        """Generated source; LookupError if the source is another type."""
        if self.source.generate is None:
            raise LookupError(f"{self.pipeline} does not have a generate source")
        return self.source.generate

    @property
    def files(self) -> FilesSpec:
        """Files source; LookupError if the source is another type."""
        if self.source.files is None:
            raise LookupError(f"{self.pipeline} does not read files")
        return self.source.files

    @property
    def format(self) -> str:
        """Format of the record values."""
        return self.decode.format

    @property
    def tombstone(self) -> Tombstone:
        """Handling of null values, unless the table is merged."""
        return self.decode.tombstone or "dead_letter"

    @property
    def base_uri(self) -> str:
        """Directory of the tables: the path up to the first `{`, or the table's parent."""
        return folder_of(self.table.path)

    @property
    def state_uri(self) -> str:
        """Path of the ledger and the lease."""
        return self.state or f"{self.base_uri}/_headrace/{self.pipeline}"

    @property
    def dead_letters_uri(self) -> str:
        """Path of the dead-letter table."""
        return self.dead_letters.path or f"{self.state_uri}/dead_letters"

    def unshared_paths(self) -> list[tuple[tuple[str, ...], str]]:
        """Keys and local paths of the pipeline that only this machine can reach."""
        paths: dict[tuple[str, ...], str] = {("table", "path"): self.table.path}
        paths |= {("state",): self.state} if self.state else {}  # by default next to the tables
        paths |= {("dead_letters", "path"): self.dead_letters.path} if self.dead_letters.path else {}
        paths |= {("source", "files", "path"): self.source.files.path} if self.source.files else {}
        paths |= {("branches", str(nth), "table", "path"): each.table.path for nth, each in enumerate(self.branches)}
        paths |= {("topics", str(nth), "table", "path"): each.table.path for nth, each in enumerate(self.topics)}
        mounts = self.spark.shared_mounts
        return [
            (key, path)
            for key, path in paths.items()
            if path.startswith("/") and not any(contains_uri(mount, path) for mount in mounts)
        ]

    def branch_specs(self) -> dict[str, Spec]:
        """Specs of all branches by name: the main branch, named "", `branches`, and the entries of `topics`."""
        return {"": self} | {each.name: self.along(each) for each in (*self.branches, *self.topics)}

    def along(self, branch: BranchSpec) -> Spec:
        """Spec in which a branch, or the settings of some topics, replace the main branch; the state is the same."""
        own: dict[str, Any] = {key: getattr(branch, key) for key in BranchSpec.model_fields if key != "name"}
        if isinstance(branch, TopicSpec):
            own |= {"decode": branch.decode or self.decode, "flush": self.flush_of(branch)}
        copy = self.model_copy(update={**own, "branches": (), "topics": (), "state": self.state_uri})
        if isinstance(branch, TopicSpec):
            copy._entry, copy._place = branch, ("topics", self.topics.index(branch))
        else:
            copy._place = ("branches", self.branches.index(branch))
        if self._written is not None:
            copy._written = replace(self._written, path=copy._place)
        return copy

    @property
    def place(self) -> tuple[str | int, ...]:
        """Path of the branch or entry of `topics` that this spec is of; empty for a pipeline."""
        return self._place

    @property
    def entry(self) -> TopicSpec | None:
        """Entry of `topics` that this spec is of; None for a pipeline and its branches."""
        return self._entry

    def entry_of(self, topic: str) -> TopicSpec | None:
        """Entry of `topics` that applies to a topic, by its name in records; None: the pipeline's settings do."""
        return next((each for each in self.topics if each.selects(topic)), None)

    def flush_of(self, entry: TopicSpec | None) -> FlushSpec:
        """Batch triggers of the topics of an entry; of all others for None."""
        if entry is None or entry.flush is None:
            return self.flush
        return self.flush.model_copy(update={key: getattr(entry.flush, key) for key in entry.flush.model_fields_set})

    def _branch(self, route_id: RouteId) -> Spec:
        named = (each for each in (*self.branches, *self.topics) if each.name == route_id.branch)
        return self.along(next(named)) if route_id.branch else self

    def all_rules(self) -> tuple[TableSpec, ...]:
        """Table options of all routes of the branch."""
        return (self.table, *(item.over(self.table) for item in self.tables))

    def table_for(self, route_id: RouteId) -> TableSpec:
        """Table options of a route: the keys of the first match override the table's."""
        branch = self._branch(route_id)
        for item in branch.tables:
            if re.search(item.match, route_id.route):
                return item.over(branch.table)
        return branch.table

    def uri_of(self, route_id: RouteId) -> str:
        """Table path of a route."""
        topic, _, route = route_id.route.rpartition(":")
        return self._branch(route_id).table.path.replace("{topic}", topic).replace("{route}", route)

    def route_of(self, uri: str) -> RouteId | None:
        """Route of a table path, whether or not the table exists; None if the path is not one of the pipeline's."""
        named = [("", self.table.path), *((each.name, each.table.path) for each in (*self.branches, *self.topics))]
        for name, path in reversed(named):  # the path of an entry may fit the template of the main branch
            if match := template(path).fullmatch(uri):
                parts = match.groupdict()
                return RouteId(name, ":".join(parts[key] for key in ("topic", "route") if key in parts))
        return None

    def routing(self) -> Routing:
        """Routing rules as data."""
        route = self.route
        topics = "{topic}" in self.table.path
        return Routing(route.kind, route.value, route.include, route.exclude, route.unrouted, topics)

    def storage_profile(self) -> dict[str, dict[str, Any]]:
        """Settings of each kind of object store with secrets resolved; never stored or printed."""
        return self.storage.revealed()


_Routed = TypeVar("_Routed", Spec, BranchSpec)


def unify_route_variable(part: _Routed) -> _Routed:
    """Replace `{topic}` and `{field:…}` by `{route}` in the path where the route is taken from them."""
    path = part.table.path
    for name in route_names(part.route):
        path = path.replace(f"{{{name}}}", "{route}")
    if path != part.table.path:
        object.__setattr__(part, "table", part.table.model_copy(update={"path": path}))
    return part


@lru_cache(maxsize=256)
def template(path: str) -> re.Pattern[str]:
    """Regular expression for the paths of a path template; repeated variables must have the same value."""
    text = re.escape(path)
    for key in ("topic", "route"):
        text = text.replace(rf"\{{{key}\}}", f"(?P<{key}>{NAME.pattern})", 1).replace(rf"\{{{key}\}}", f"(?P={key})")
    return re.compile(text)


def canonical_json(content: Any) -> str:
    """Canonical JSON: sorted keys, no whitespace."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
