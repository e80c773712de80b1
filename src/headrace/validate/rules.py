"""Rules between keys, for a spec whose values are all valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import SECRETS, Spec
from headrace.spec.secrets import BadReference, Secret
from headrace.spec.storage import Azure, Gcs
from headrace.spec.table import TableMatch, TableSpec, route_names
from headrace.spec.units import spell_duration
from headrace.spec.uris import contains_uri, host_of, is_local, is_loopback, may_overlap
from headrace.spec.yaml_reader import Path
from headrace.validate.branches import check_branches, check_explode, written_options
from headrace.validate.columns import check_table_columns
from headrace.validate.expressions import check_dead_letters, check_expectations, check_predicates, check_transform
from headrace.validate.hot_store import check_hot_store
from headrace.validate.maintenance import check_maintenance
from headrace.validate.masks import check_masks
from headrace.validate.modes import check_mode, check_topics
from headrace.validate.source import DECODE_RULES, check_source
from headrace.validate.step_results import check_results
from headrace.validate.topics import check_topics_of_entries
from headrace.validate.txn import check_txn

_S3: Path = ("storage", "s3")


def check_spec(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Errors and warnings of all rules."""
    for rule in RULES:
        yield from rule(spec)
    branches: list[tuple[Path, Spec]] = [((), spec)]
    branches += [(("branches", index), spec.along(branch)) for index, branch in enumerate(spec.branches)]
    entries: list[tuple[Path, Spec]] = [
        (("topics", index), spec.along(entry)) for index, entry in enumerate(spec.topics)
    ]
    for (here, entry), own in zip(entries, spec.topics, strict=True):
        for rule in DECODE_RULES if own.decode is not None else ():
            yield from (_below(here, diagnostic) for diagnostic in rule(entry))
    for here, branch in (*branches, *entries):
        for rule in BRANCH_RULES:
            yield from (_below(here, diagnostic) for diagnostic in rule(branch))
    yield from check_branches(spec)


def _below(here: Path, diagnostic: UnlocatedDiagnostic) -> UnlocatedDiagnostic:
    depends_on = diagnostic.depends_on and tuple((*here, *path) for path in diagnostic.depends_on)
    return replace(diagnostic, path=(*here, *diagnostic.path), depends_on=depends_on)


def _template(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """The path must contain `{route}` if, and only if, there is more than one route."""
    here: Path = ("table", "path")
    path = spec.table.path
    variables = re.findall(r"\{([^{}]*)\}", path)
    names = route_names(spec.route)
    names = (*names, "topic") if names else names
    for name in variables:
        if name != "route" and name not in names[-1:]:
            expected = ", ".join(f"{{{variable}}}" for variable in dict.fromkeys(names))
            expected = expected or "no variables while route.by is fixed"
            yield UnlocatedDiagnostic(here, f"unknown variable {{{name}}}", expected, closest(name, names))
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", path)):
        yield UnlocatedDiagnostic(here, "an unmatched brace", "{route}", depends_on=())
    if "route" in variables and spec.route.kind == "fixed":
        yield UnlocatedDiagnostic(here, "{route} requires a route", "route.by, or a path without {route}")
    if "route" not in variables and spec.route.kind != "fixed":
        yield UnlocatedDiagnostic(
            here, f"the same path for all routes (route.by: {spec.route.kind})", "a path with {route}"
        )


def _catalog_table(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """A name in the catalog needs the variables of the path: two tables cannot have one name."""
    name, here = spec.table.catalog_table, ("table", "catalog_table")
    if name is None:
        return
    used, needed = (set(re.findall(r"\{(route|topic)\}", text)) for text in (name, spec.table.path))
    if re.search(r"[{}]", re.sub(r"\{(route|topic)\}", "", name)):
        yield UnlocatedDiagnostic(here, "an unknown variable", "{route} and {topic}")
    elif needed and not used:
        yield UnlocatedDiagnostic(here, "the same name for all routes", "a name with {route}")
    elif used and not needed:
        yield UnlocatedDiagnostic(here, "{route} requires a route", "route.by, or a name without variables")


def _route(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    route = spec.route
    if route.kind == "fixed":
        for key in ("include", "exclude"):
            if getattr(route, key) is not None:
                yield UnlocatedDiagnostic(("route", key), "requires a route", "route.by other than fixed")
        if spec.tables:
            yield UnlocatedDiagnostic(("tables",), "requires a route", "route.by other than fixed")
    if route.kind == "type" and not spec.decode.options.typed:
        message = f"{spec.format} records do not carry a type name with these options"
        yield UnlocatedDiagnostic(("route", "by"), message, "topic, {field: …} or {header: …}; or a registry in decode")
    if route.kind == "type" and spec.decode.options.many:
        yield UnlocatedDiagnostic(("route", "by"), "type is not supported for values with several rows", "{sql: …}")
    if route.kind == "field" and spec.decode.options.many:
        message = "field is not supported for values with several rows"
        yield UnlocatedDiagnostic(("route", "by", "field"), message, "{sql: …}, which is evaluated for each row")
    if route.kind == "field" and not _is_field(route.value or ""):
        expected = "a.b or /a/b, without empty segments"
        yield UnlocatedDiagnostic(("route", "by", "field"), f"'{route.value}'", expected, depends_on=())


def _widening(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Tables of an SQL route share one decoder schema, so a single table cannot widen its columns."""
    if spec.route.kind != "sql":
        return
    for here, own in written_options(spec):
        actions: list[tuple[Path, str | None]] = [(("contract",), own.contract_keys.wrong_type)]
        actions += [
            (("columns", nth, "contract"), column.contract.wrong_type) for nth, column in enumerate(own.columns)
        ]
        for path, action in actions:
            if action == "widen":
                yield UnlocatedDiagnostic(
                    (*here, *path, "wrong_type"), "widen is not supported with route.by.sql", "another kind of route"
                )


def _is_field(text: str) -> bool:
    parts = text[1:].split("/") if text.startswith("/") else text.split(".")
    return all(parts) and "\0" not in text


def _table_path(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Tables must not overlap with the state or the dead letters."""
    for name, uri in (("the state", spec.state_uri), ("the dead letters", spec.dead_letters_uri)):
        if may_overlap(spec.table.path, uri):
            yield UnlocatedDiagnostic(("table", "path"), f"overlaps with {name} ({uri})", "a separate directory")
            return


def _state(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """State and dead letters have fixed paths that do not overlap, except for the default `<state>/dead_letters`."""
    state, dead_letters = spec.state_uri, spec.dead_letters_uri
    for key in ("state", "dead_letters"):
        value = spec.state if key == "state" else spec.dead_letters.path
        if value and re.search(r"[{}]", value):
            path = (key,) if key == "state" else (key, "path")
            yield UnlocatedDiagnostic(path, "a brace", "a fixed path", depends_on=())
    overlaps_table = any(
        may_overlap(spec.table.path, uri) for uri in (state, dead_letters)
    )  # reported by `_table_path`
    if (
        not overlaps_table
        and dead_letters != f"{state}/dead_letters"
        and (contains_uri(dead_letters, state) or contains_uri(state, dead_letters))
    ):
        yield UnlocatedDiagnostic(
            ("dead_letters", "path"), f"overlaps with the state ({state})", "a separate directory"
        )


def _tables(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    for here, own in written_options(spec):
        table = own.over(spec.table) if isinstance(own, TableMatch) else own
        yield from check_table_columns(table, own, here, spec.transform)
        yield from check_mode(table, own, here, spec.transform)
        yield from check_topics(spec, table, own, here)
        yield from check_expectations(spec, table, own, here)
        yield from check_predicates(spec, table, own, here)


def _deduplicate(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Deduplication requires one row per record: a record is either written or filtered."""
    if not (spec.branches or spec.explode or spec.decode.options.many):
        return
    branches = [
        (("branches", index, *here), own)
        for index, branch in enumerate(spec.branches)
        for here, own in written_options(branch)
    ]
    for here, own in (*written_options(spec), *branches):
        if own.deduplicate is not None:
            message = "not supported for records with several rows"
            yield UnlocatedDiagnostic(
                (*here, "deduplicate"), message, "one row per record: no branches, no explode, one object per value"
            )


def _overwrite_modes(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """A full refresh applies to all tables of a pipeline, which reads each record once for all of them."""
    branches = [
        ((key, index, *here), own)
        for key, outputs in (("branches", spec.branches), ("topics", spec.topics))
        for index, branch in enumerate(outputs)
        for here, own in written_options(branch)
    ]
    for here, own in (*written_options(spec), *branches):
        if own.overwrites != spec.table.overwrites and ("mode" in own.model_fields_set or isinstance(own, TableSpec)):
            message = f"{own.mode} together with {spec.table.mode}"
            yield UnlocatedDiagnostic(
                (*here, "mode"), message, "overwrite modes for all tables of the pipeline, or for none"
            )


def _keys(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """A record's key that is one value can be only one column's."""
    how = spec.decode.options.keyed_by
    for options in (spec.table, *spec.tables):
        if how in ("text", "int64") and options.merge is not None and len(options.merge.keys) > 1:
            yield UnlocatedDiagnostic(
                ("decode", spec.format, "key"),
                f"{how} is not supported for {len(options.merge.keys)} keys",
                "json or avro",
            )


def _storage(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    s3 = spec.storage.s3
    if (s3.access_key_id is None) != (s3.secret_access_key is None):
        yield UnlocatedDiagnostic(_S3, "only one of access_key_id and secret_access_key", "both or neither")
    if s3.session_token is not None and s3.secret_access_key is None:
        yield UnlocatedDiagnostic(
            (*_S3, "session_token"), "session_token without access keys", "access_key_id and secret_access_key"
        )
    if s3.endpoint and s3.endpoint.startswith("http://") and not s3.allow_http:
        yield UnlocatedDiagnostic((*_S3, "endpoint"), "an unencrypted endpoint", "https://, or allow_http: true")
    if s3.profile is not None and s3.access_key_id is not None:
        yield UnlocatedDiagnostic((*_S3, "profile"), "both profile and access_key_id", "one of them")
    yield from _azure(spec.storage.azure)
    yield from _gcs(spec.storage.gcs)
    tables = [branch.table.path for branch in spec.branch_specs().values()]
    uses = (*tables, spec.state_uri, spec.dead_letters_uri)
    schemes = {path.partition("://")[0] for path in uses if not is_local(path)}
    for section, names in {"s3": {"s3"}, "azure": {"az", "abfss"}, "gcs": {"gs"}}.items():
        if section in spec.storage.model_fields_set and not schemes & names:
            path = ("storage", section)
            yield UnlocatedDiagnostic(path, "not used by any path of the spec", "", severity="warning")


def _azure(azure: Azure) -> Iterator[UnlocatedDiagnostic]:
    path = ("storage", "azure")
    if azure.endpoint and azure.endpoint.startswith("http://") and not azure.allow_http:
        yield UnlocatedDiagnostic((*path, "endpoint"), "an unencrypted endpoint", "https://, or allow_http: true")
    names = ("account_key", "sas_token", "connection_string", "client_secret", "managed_identity")
    given = [name for name in names if getattr(azure, name)]
    if len(given) > 1:
        yield UnlocatedDiagnostic((*path, given[1]), f"both {given[0]} and {given[1]}", "one kind of credentials")
    if azure.client_secret is not None and (azure.client_id is None or azure.tenant_id is None):
        yield UnlocatedDiagnostic(
            (*path, "client_secret"), "a service principal without client_id or tenant_id", "client_id and tenant_id"
        )


def _gcs(gcs: Gcs) -> Iterator[UnlocatedDiagnostic]:
    path = ("storage", "gcs")
    if gcs.endpoint and gcs.endpoint.startswith("http://") and not gcs.allow_http:
        yield UnlocatedDiagnostic((*path, "endpoint"), "an unencrypted endpoint", "https://, or allow_http: true")
    if gcs.service_account is not None and gcs.service_account_key is not None:
        yield UnlocatedDiagnostic(path, "both service_account and service_account_key", "one of them")


def _run(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    if spec.lease.renew * 2 > spec.lease.ttl:
        yield UnlocatedDiagnostic(("lease", "renew"), "more than half of ttl", "at most half of ttl")
    if spec.retry.unreachable.initial_interval > spec.retry.unreachable.max_interval:
        yield UnlocatedDiagnostic(
            ("retry", "unreachable", "initial_interval"),
            "more than max_interval",
            "initial_interval up to max_interval",
        )
    if "rows" in spec.flush.model_fields_set and spec.flush.rows > spec.limits.batch_rows:
        message = f"more than limits.batch_rows ({spec.limits.batch_rows})"
        yield UnlocatedDiagnostic(
            ("flush", "rows"), message, "at most limits.batch_rows", depends_on=(("limits", "batch_rows"),)
        )
    if spec.flush.every > timedelta(days=1):
        yield UnlocatedDiagnostic(("flush", "every"), "more than one day", "at most 1d", depends_on=())
    if spec.freshness is not None and spec.freshness.target <= spec.flush.every:
        every = spell_duration(spec.flush.every)
        message = f"records wait for up to {every} (flush.every) before a batch starts"
        depends_on = (("flush", "every"), ("freshness", "target"))
        yield UnlocatedDiagnostic(("freshness", "target"), message, f"more than {every}", depends_on=depends_on)
    number, unit = int(spec.spark.memory[:-1]), spec.spark.memory[-1]
    if unit == "m" and number < 512:
        yield UnlocatedDiagnostic(("spark", "memory"), f"'{spec.spark.memory}'", "at least 512m", depends_on=())


def _spark(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Executors of a cluster need paths that they can reach; keys of the other kind of master have no effect."""
    spark = spec.spark
    if not spark.is_cluster:
        for key in ("executors", "environment", "shared_mounts"):
            if key in spark.model_fields_set:
                yield UnlocatedDiagnostic(("spark", key), f"not used with {spark.master}", "", severity="warning")
        if spark.cores is not None and spark.master != "local[*]":
            yield UnlocatedDiagnostic(("spark", "cores"), f"cores with {spark.master}", "only one of them")
        return
    if spark.cores is not None:
        yield UnlocatedDiagnostic(("spark", "cores"), "cores with a cluster", "executors: {count: …, cores: …}")
    for place, path in spec.unshared_paths():
        here: Path = tuple(int(step) if step.isdigit() else step for step in place)
        yield UnlocatedDiagnostic(
            here,
            f"{path} is a local path, which executors on other machines cannot reach",
            "an object store, or a directory in spark.shared_mounts",
        )
    kafka = spec.source.read_from_kafka
    broker = kafka or spec.source.rivven
    if broker is not None and broker.stays_here and not is_loopback(host_of(spark.master)):
        yield UnlocatedDiagnostic(
            (*spec.source.kafka_key.split("."), "brokers") if kafka else ("source", "rivven", "broker"),
            "loopback addresses, which executors on other machines cannot reach",
            "addresses that all nodes reach",
            severity="warning",
        )


def _secrets(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Warnings for references that cannot be resolved; secrets are resolved at run time."""
    for pattern in sorted(SECRETS):
        for path, secret in _secrets_at(spec, pattern, ()):
            yield from _secret(secret, path)


def _secrets_at(value: object, pattern: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Secret]]:
    """Secrets at the paths that match a pattern."""
    if not pattern:
        if isinstance(value, Secret):
            yield path, value
        return
    step, *rest = pattern
    inner: Iterable[tuple[str | int, object]] = [(step, getattr(value, step, None))]
    if step == "*":
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple) else ()
    for name, below in inner:
        yield from _secrets_at(below, tuple(rest), (*path, name))


def _secret(secret: Secret, path: Path) -> Iterator[UnlocatedDiagnostic]:
    try:
        secret.reveal()
    except BadReference as error:
        yield UnlocatedDiagnostic(path, error.message.removesuffix("."), severity="warning", depends_on=())
        return
    if secret.is_open():
        yield UnlocatedDiagnostic(path, "the file is world-readable", "mode 0600", severity="warning", depends_on=())


RULES: tuple[Callable[[Spec], Iterator[UnlocatedDiagnostic]], ...] = (
    check_source,
    check_topics_of_entries,
    _state,
    check_dead_letters,
    check_hot_store,
    _storage,
    _run,
    _spark,
    _secrets,
)

# Rules for the main tables and for the tables of each branch.
BRANCH_RULES: tuple[Callable[[Spec], Iterator[UnlocatedDiagnostic]], ...] = (
    _template,
    _catalog_table,
    _route,
    _widening,
    _table_path,
    check_explode,
    check_transform,
    check_results,
    _tables,
    check_txn,
    check_masks,
    _keys,
    check_maintenance,
    _deduplicate,
    _overwrite_modes,
)
