"""Pydantic model of the spec: all keys and their descriptions. Unknown keys are rejected."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from headrace.spec.base import Shorthand, SpecModel
from headrace.spec.decode import FORMATS, Decode, Tombstone, expand_format_name
from headrace.spec.explode import Explode, expand_array_name
from headrace.spec.maintenance import MaintenanceSpec
from headrace.spec.route_id import RouteId
from headrace.spec.routing import NAME, Routing
from headrace.spec.running import CircuitBreakerSpec, FlushSpec, LeaseSpec, LimitsSpec, RetrySpec, SparkSpec
from headrace.spec.source import GenerateSpec, KafkaSpec, SourceSpec
from headrace.spec.steps import StepSpec
from headrace.spec.table import DeadLettersSpec, Route, Storage, StorageProfile, TableMatch, TableSpec, route_names
from headrace.spec.uris import StoragePath, folder_of
from headrace.spec.yaml_reader import SpecSource

# Where a secret may stand: these texts stay references in the model; all others are followed when the spec is read.
# `*` is any item of a list, and any name of the user's.
SECRETS = frozenset(
    {
        ("transform", "*", "mask", "*", "sha256"),
        ("branches", "*", "transform", "*", "mask", "*", "sha256"),
        ("source", "kafka", "tls", "key"),
        ("source", "kafka", "tls", "key_password"),
        ("source", "kafka", "sasl", "password"),
        ("decode", "json", "registry", "password"),
        ("decode", "protobuf", "registry", "password"),
        ("decode", "avro", "registry", "password"),
        ("decode", "msgpack", "registry", "password"),
        ("storage", "s3", "secret_access_key"),
        ("storage", "s3", "session_token"),
    }
)


def is_secret(path: tuple[str | int, ...]) -> bool:
    """Whether the value at a path is a secret."""
    return any(
        len(path) == len(pattern) and all(expected in ("*", step) for expected, step in zip(pattern, path, strict=True))
        for pattern in SECRETS
    )


Exploded = Annotated[Explode, BeforeValidator(expand_array_name), Shorthand(type="string")]


class BranchSpec(SpecModel):
    """Branch: writes the same decoded records to other tables."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$", description="Unique name of the branch.")
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
    dead_letters: DeadLettersSpec = Field(
        default=DeadLettersSpec(path=None), description="Dead-letter table for records that cannot be written."
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
    maintenance: MaintenanceSpec | None = Field(
        default=None, description="Table maintenance while the pipeline runs; disabled by default."
    )
    lease: LeaseSpec = Field(default=LeaseSpec(), description="Single-instance lease.")
    spark: SparkSpec = Field(default=SparkSpec(), description="Spark settings.")

    _text: str = PrivateAttr("")
    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _written: SpecSource | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one_name_for_the_route(self) -> Spec:
        return unify_route_variable(self)

    @model_validator(mode="after")
    def _apply_event_operations(self) -> Spec:
        """Apply the operation of change events wherever rows are merged."""
        if self.decode.changes:
            own, branches = (self.table, *self.tables), ((each.table, *each.tables) for each in self.branches)
            for options in (*own, *(option for each in branches for option in each)):
                if options.merge is not None:
                    options.merge.apply_event_operations()
        return self

    def remember(self, text: str, base: Path, written: SpecSource | None = None) -> None:
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
    def source_kind(self) -> Literal["kafka", "generate"]:
        """Type of the source."""
        return "kafka" if self.source.kafka else "generate"

    @property
    def kafka(self) -> KafkaSpec:
        """Kafka source; LookupError if the source is another type."""
        if self.source.kafka is None:
            raise LookupError(f"{self.pipeline} does not read Kafka")
        return self.source.kafka

    @property
    def generate(self) -> GenerateSpec:
        """Generated source; LookupError if the source is another type."""
        if self.source.generate is None:
            raise LookupError(f"{self.pipeline} does not have a generate source")
        return self.source.generate

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

    def branch_specs(self) -> dict[str, Spec]:
        """Specs of all branches by name; the main branch, named "", comes first."""
        return {"": self} | {each.name: self.along(each) for each in self.branches}

    def along(self, branch: BranchSpec) -> Spec:
        """Spec in which the branch replaces the main branch; the state path is unchanged."""
        own = {key: getattr(branch, key) for key in type(branch).model_fields if key != "name"}
        copy = self.model_copy(update={**own, "branches": (), "state": self.state_uri})
        if self._written is not None:
            copy._written = replace(self._written, path=("branches", self.branches.index(branch)))
        return copy

    def _branch(self, route_id: RouteId) -> Spec:
        return self.branch_specs()[route_id.branch] if route_id.branch else self

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
        for name, branch in self.branch_specs().items():
            if match := template(branch.table.path).fullmatch(uri):
                parts = match.groupdict()
                return RouteId(name, ":".join(parts[key] for key in ("topic", "route") if key in parts))
        return None

    def routing(self) -> Routing:
        """Routing rules as data."""
        route = self.route
        topics = "{topic}" in self.table.path
        return Routing(route.kind, route.value, route.include, route.exclude, route.unrouted, topics)

    def storage_profile(self) -> StorageProfile:
        """Object store settings with secrets resolved."""
        s3 = self.storage.s3
        return StorageProfile(
            endpoint=s3.endpoint or "",
            region=s3.region or "",
            path_style=s3.path_style,
            allow_http=s3.allow_http,
            access_key_id=s3.access_key_id or "",
            secret_access_key=s3.secret_access_key.reveal() if s3.secret_access_key else "",
            session_token=s3.session_token.reveal() if s3.session_token else "",
            options=s3.options,
        )


Routed = TypeVar("Routed", Spec, BranchSpec)


def unify_route_variable(part: Routed) -> Routed:
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
