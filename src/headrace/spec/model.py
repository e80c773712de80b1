"""The spec as frozen models: every key a user may write, with its meaning; what is not here is refused."""

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
from headrace.spec.decode import FORMATS, Decode, Tombstone, named_format
from headrace.spec.explode import Explode, named_list
from headrace.spec.maintenance import MaintenanceSpec
from headrace.spec.routing import NAME, Routing
from headrace.spec.running import CircuitBreakerSpec, FlushSpec, LeaseSpec, LimitsSpec, RetrySpec, SparkSpec
from headrace.spec.source import GenerateSpec, KafkaSpec, SourceSpec
from headrace.spec.steps import StepSpec
from headrace.spec.table import DeadLettersSpec, Route, Storage, StorageProfile, TableMatch, TableSpec, route_names
from headrace.spec.uris import Place, folder_of
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
    """Whether a secret may stand at a path of a spec."""
    return any(
        len(path) == len(place) and all(want in ("*", step) for want, step in zip(place, path, strict=True))
        for place in SECRETS
    )


Exploded = Annotated[Explode, BeforeValidator(named_list), Shorthand(type="string")]


class BranchSpec(SpecModel):
    """The same records once more, as they were decoded, into tables of their own."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,62}$", description="What the branch is called; no other has this name."
    )
    explode: Exploded | None = Field(default=None, description="As the pipeline's own.")
    transform: tuple[StepSpec, ...] = Field(
        default=(), description="As the pipeline's own, which has no part in this one."
    )
    route: Route = Field(default=Route(), description="As the pipeline's own.")
    table: TableSpec = Field(description="As the pipeline's own; no other branch writes there.")
    tables: tuple[TableMatch, ...] = Field(default=(), description="As the pipeline's own.")

    @model_validator(mode="after")
    def _one_name_for_the_route(self) -> BranchSpec:
        return one_name_for_the_route(self)


class Spec(SpecModel):
    """One pipeline, as its user describes it."""

    pipeline: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="The pipeline's name: the identity of its marks, for good."
    )
    source: SourceSpec = Field(description="Where records come from.")
    decode: Annotated[
        Decode,
        BeforeValidator(named_format),
        Shorthand(enum=list(FORMATS)),
    ] = Field(default=Decode(), description="How a record's bytes are read: a format's name, or `{json: {…}}`.")
    explode: Exploded | None = Field(
        default=None,
        description="A list of the record whose elements become rows, before the transform: its name, or a mapping.",
    )
    transform: tuple[StepSpec, ...] = Field(default=(), description="Steps over the decoded rows, in order.")
    allow_missing: tuple[str, ...] = Field(
        default=(),
        description="Fields that expressions and steps may name although neither the table nor any record has them "
        "yet; they are NULL. Any other unknown name stops the first batch of a run (`UnknownColumn`).",
    )
    route: Route = Field(default=Route(), description="Which table a record belongs to.")
    table: TableSpec = Field(description="The table, or the pattern of the tables.")
    tables: tuple[TableMatch, ...] = Field(default=(), description="Other options for the tables of some routes.")
    branches: tuple[BranchSpec, ...] = Field(
        default=(), description="Branches: the same records once more, into other tables, each with steps of its own."
    )
    dead_letters: DeadLettersSpec = Field(default=DeadLettersSpec(path=None), description="Where unusable records go.")
    state: Place | None = Field(
        default=None,
        description="Where ledger, lease and dead letters are; `_headrace/<pipeline>` beside the tables without it.",
    )
    storage: Storage = Field(default=Storage(), description="How stores are reached.")
    flush: FlushSpec = Field(default=FlushSpec(), description="What starts a batch.")
    limits: LimitsSpec = Field(default=LimitsSpec(), description="What a batch and a record may cost.")
    retry: RetrySpec = Field(default=RetrySpec(), description="How often trouble is met again.")
    circuit_breaker: CircuitBreakerSpec | None = Field(
        default=None, description="Stops the pipeline at a ratio of rejected records; off without it."
    )
    maintenance: MaintenanceSpec | None = Field(
        default=None, description="Maintenance of the tables while the pipeline runs. Disabled without this key."
    )
    lease: LeaseSpec = Field(default=LeaseSpec(), description="The sign that one instance runs the pipeline.")
    spark: SparkSpec = Field(default=SparkSpec(), description="The Spark that runs the batches.")

    _text: str = PrivateAttr("")
    _base: Path = PrivateAttr(default_factory=Path.cwd)
    _written: SpecSource | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one_name_for_the_route(self) -> Spec:
        return one_name_for_the_route(self)

    @model_validator(mode="after")
    def _changes_speak(self) -> Spec:
        """Change events say what is to happen to their row, wherever rows are merged."""
        if self.decode.changes:
            own, branches = (self.table, *self.tables), ((each.table, *each.tables) for each in self.branches)
            for options in (*own, *(option for each in branches for option in each)):
                if options.merge is not None:
                    options.merge.told_by_events()
        return self

    def remember(self, text: str, base: Path, written: SpecSource | None = None) -> None:
        """Keep how the spec was written, and where."""
        self._text, self._base, self._written = text, base, written

    @property
    def written(self) -> SpecSource | None:
        """Where the spec stands in its file; None for one that was made without a file."""
        return self._written

    @property
    def text(self) -> str:
        """The spec as one line of JSON (which is YAML), its references not followed."""
        return self._text or canonical_json(self.model_dump(mode="json", by_alias=True, exclude_unset=True))

    @property
    def digest(self) -> str:
        """SHA-256 of the text: equal for equal content, whatever its layout."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def base(self) -> Path:
        """The folder that relative paths start from."""
        return self._base

    @property
    def source_kind(self) -> Literal["kafka", "generate"]:
        """Which source it is."""
        return "kafka" if self.source.kafka else "generate"

    @property
    def kafka(self) -> KafkaSpec:
        """The Kafka source; LookupError when it is another."""
        if self.source.kafka is None:
            raise LookupError(f"{self.pipeline} does not read Kafka")
        return self.source.kafka

    @property
    def generate(self) -> GenerateSpec:
        """The made-up source; LookupError when it is another."""
        if self.source.generate is None:
            raise LookupError(f"{self.pipeline} does not generate its records")
        return self.source.generate

    @property
    def format(self) -> str:
        """The format of the records' values."""
        return self.decode.format

    @property
    def tombstone(self) -> Tombstone:
        """What becomes of a record whose value is null, unless its table merges."""
        return self.decode.tombstone or "dead_letter"

    @property
    def base_uri(self) -> str:
        """The folder that holds the tables: before the first `{` of the path, else the table's parent."""
        return folder_of(self.table.path)

    @property
    def state_uri(self) -> str:
        """Where ledger and lease are."""
        return self.state or f"{self.base_uri}/_headrace/{self.pipeline}"

    @property
    def dead_letters_uri(self) -> str:
        """The dead-letter table."""
        return self.dead_letters.path or f"{self.state_uri}/dead_letters"

    def branch_specs(self) -> dict[str, Spec]:
        """A spec for every branch, by what its names begin with: the pipeline's own, which is nothing, comes first."""
        return {"": self} | {f"{each.name}/": self.along(each) for each in self.branches}

    def along(self, branch: BranchSpec) -> Spec:
        """The pipeline as if a branch were all of it; its state stays where it is."""
        own = {key: getattr(branch, key) for key in type(branch).model_fields if key != "name"}
        copy = self.model_copy(update={**own, "branches": (), "state": self.state_uri})
        if self._written is not None:
            copy._written = replace(self._written, path=("branches", self.branches.index(branch)))
        return copy

    def branch_of(self, name: str) -> tuple[Spec, str]:
        """The branch of a name and the route it has there: `items/eu` is the route `eu` of the branch `items`."""
        branch, slash, route = name.rpartition("/")
        return (self.branch_specs()[f"{branch}/"] if slash else self), route

    def all_rules(self) -> tuple[TableSpec, ...]:
        """The table options that hold for some route of the branch."""
        return (self.table, *(item.over(self.table) for item in self.tables))

    def table_for(self, name: str) -> TableSpec:
        """The table options that hold for a route: the first match's keys over the table's own."""
        branch, route = self.branch_of(name)
        for item in branch.tables:
            if re.search(item.match, route):
                return item.over(branch.table)
        return branch.table

    def uri_of(self, name: str) -> str:
        """The table of a route (a name that routing has found fit for a path)."""
        branch, whole = self.branch_of(name)
        topic, _, route = whole.rpartition(":")
        return branch.table.path.replace("{topic}", topic).replace("{route}", route)

    def name_of(self, uri: str) -> str | None:
        """The route that a table is of, whether or not it exists; None when the pipeline has none for it."""
        for prefix, branch in self.branch_specs().items():
            if found := template(branch.table.path).fullmatch(uri):
                parts = found.groupdict()
                return prefix + ":".join(parts[key] for key in ("topic", "route") if key in parts)
        return None

    def routing(self) -> Routing:
        """The route, as it runs."""
        route = self.route
        topics = "{topic}" in self.table.path
        return Routing(route.kind, route.value, route.include, route.exclude, route.unrouted, topics)

    def storage_profile(self) -> StorageProfile:
        """The store's plain fields, secrets revealed now."""
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


def one_name_for_the_route(part: Routed) -> Routed:
    """`{topic}` and `{field:…}` are other names of `{route}` where it is taken from there; inside there is one."""
    path = part.table.path
    for name in route_names(part.route):
        path = path.replace(f"{{{name}}}", "{route}")
    if path != part.table.path:
        object.__setattr__(part, "table", part.table.model_copy(update={"path": path}))
    return part


@lru_cache(maxsize=256)
def template(path: str) -> re.Pattern[str]:
    """The paths that a pattern of tables makes; a variable that stands there twice has the same value."""
    text = re.escape(path)
    for key in ("topic", "route"):
        text = text.replace(rf"\{{{key}\}}", f"(?P<{key}>{NAME.pattern})", 1).replace(rf"\{{{key}\}}", f"(?P={key})")
    return re.compile(text)


def canonical_json(content: Any) -> str:
    """Plain data as JSON with sorted keys and no spaces."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
