"""Online checks: topics, object store, known tables, table schemas and registered schemas."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Literal

import pyarrow as pa

from headrace.decode.base import SchemaPredictor
from headrace.decode.registry.client import Registered, UnknownSchema, registry_of
from headrace.delta.features import append_blocker, rewrite_blocker
from headrace.delta.properties import EXPIRING
from headrace.delta.snapshot import TableState, load_state
from headrace.errors import HeadraceError
from headrace.ledger.known_tables import KnownTable, KnownTables
from headrace.pipeline.preview import preview_records
from headrace.pipeline.table_entry import check_identity
from headrace.plan.branch import CompiledBranch
from headrace.plan.decoding import predict_payload
from headrace.plan.plan import Plan
from headrace.reasons import MISFITS, Reason
from headrace.source.base import open_source
from headrace.spec import Diagnostic, Spec
from headrace.spec.diagnostics import UnlocatedDiagnostic, locate
from headrace.spec.yaml_reader import Path
from headrace.storage.base import AlreadyExists
from headrace.storage.store import Profile, Store
from headrace.transform.sql.constraints import constraints_of, names_of
from headrace.write.spark_append import fillable

_PROBE = ".check"
_SAMPLE = 100  # records per topic
_VALUE_INDEPENDENT = frozenset(
    {Reason.TYPE, Reason.MISSING, Reason.NEW_FIELD, Reason.BAD_NAME}
)  # reasons that apply to all values


_KEYS = {
    "BrokerUnreachable": "source.kafka.brokers",
    "SourceTopicGone": "source.kafka.topics",
}  # key to report, by error
_SUBSTITUTES = {"state": "table.path", "storage": "table.path"}  # key to report if this one is not in the spec


def online(spec: Spec) -> list[Diagnostic]:
    """Run all online checks of a valid spec."""
    checks = {
        "source": _source,
        "storage": _storage,
        "table.path": _folders,
        "state": _known_tables,
        "table": _tables,
        f"decode.{spec.format}.registry": _registry,
        "transform": _names,
    }
    return [finding for key, check in checks.items() for finding in _run_check(spec, key, check)]


def _run_check(spec: Spec, key: str, check: Callable[[Spec], Iterator[Diagnostic]]) -> list[Diagnostic]:
    """Diagnostics of a check, including the error that ends it."""
    diagnostics: list[Diagnostic] = []
    try:
        diagnostics.extend(check(spec))
    except HeadraceError as error:
        key = _KEYS.get(error.name, key)
        diagnostics.append(
            _diagnostic(spec, key, f"{error.name}: {error.message}", error.hint or "a successful response")
        )
    return diagnostics


def _diagnostic(
    spec: Spec,
    key: str | Path,
    message: str,
    expected: str,
    severity: Literal["error", "warning"] = "error",
    suggestion: str = "",
) -> Diagnostic:
    """Diagnostic at the line of its key (`table.path`, or a path such as `("table", "columns", 0)`)."""
    path = tuple(key.split(".")) if isinstance(key, str) else key
    diagnostic = locate(spec, UnlocatedDiagnostic(path, message, expected, suggestion, severity))
    substitute = _SUBSTITUTES.get(str(path[0]))
    if substitute is None or path[0] in _written_keys(spec):
        return diagnostic
    elsewhere = locate(spec, UnlocatedDiagnostic(tuple(substitute.split(".")), message))
    return replace(diagnostic, line=elsewhere.line, column=elsewhere.column)


def _written_keys(spec: Spec) -> frozenset[str]:
    return frozenset(spec.written.root.plain()) if spec.written else frozenset()


def _source(spec: Spec) -> Iterator[Diagnostic]:
    source = open_source(spec)
    try:
        if not source.topics():
            yield _diagnostic(spec, "source", "no topic matches", "at least one topic")
        source.bounds()
    finally:
        source.close()


def _folders(spec: Spec) -> Iterator[Diagnostic]:
    """Local directories of tables and dead letters must be writable."""
    places = {"dead_letters.path": spec.dead_letters.path and spec.dead_letters_uri.rpartition("/")[0]}
    for branch in spec.branch_specs().values():
        yield from _run_check(branch, "table.path", partial(_writable, branch.base_uri))
    for key, uri in places.items():
        yield from _run_check(spec, key, partial(_writable, uri)) if uri else ()


def _writable(uri: str, spec: Spec) -> Iterator[Diagnostic]:
    store = Store(uri, Profile(**spec.storage_profile()))
    if store.local:
        store.put(_PROBE, b"headrace check")
        store.delete([_PROBE])
    yield from ()


def _known_tables(spec: Spec) -> Iterator[Diagnostic]:
    """Whether the state belongs to this pipeline, and its tables have not been replaced."""
    known_tables = KnownTables.load(Store(spec.state_uri, Profile(**spec.storage_profile())))
    tables = [uri for uri in known_tables.tables if spec.route_of(uri) is not None or uri == spec.dead_letters_uri]
    own = [uri for uri in tables if uri != spec.dead_letters_uri]
    other_tables = [uri for uri in known_tables.tables if uri not in tables]
    if known_tables.topics and other_tables and not own and not {*known_tables.topics} & {*_topics(spec)}:
        topics, paths = ", ".join(sorted(known_tables.topics)), ", ".join(sorted(other_tables))
        message = (
            f"'{spec.pipeline}' is the name of a pipeline that reads {topics} into {paths}, with its "
            f"state in {spec.state_uri}"
        )
        yield _diagnostic(spec, "pipeline", message, "a unique pipeline name, or another state path")
        return
    for uri in tables:
        yield from _run_check(spec, "table.path", partial(_same_table, uri, known_tables.tables[uri]))


def _same_table(uri: str, known_table: KnownTable, spec: Spec) -> Iterator[Diagnostic]:
    check_identity(uri, load_state(Store(uri, Profile(**spec.storage_profile()))), known_table)
    yield from ()


def _storage(spec: Spec) -> Iterator[Diagnostic]:
    """The state path must support reads, writes and put-if-absent."""
    store = Store(spec.state_uri, Profile(**spec.storage_profile()))
    probe = _PROBE
    store.put(probe, b"headrace check")
    try:
        if store.get(probe) != b"headrace check":
            yield _diagnostic(
                spec, "state", "the object store returned different bytes than were written", "the same bytes"
            )
        try:
            store.put_new(probe, b"again")
            yield _diagnostic(
                spec,
                "state",
                "the object store does not support put-if-absent",
                "an object store with conditional writes",
            )
        except AlreadyExists:
            pass
    finally:
        store.delete([probe])


def _tables(spec: Spec) -> Iterator[Diagnostic]:
    for branch in Plan(spec, {}).branches.values():
        if branch.routing.by == "fixed":
            yield from _run_check(branch.spec, "table", partial(_table, branch))


def _table(branch: CompiledBranch, spec: Spec) -> Iterator[Diagnostic]:
    store = Store(spec.table.path, Profile(**spec.storage_profile()))
    state = load_state(store)
    if state is None:
        if spec.table.create == "never":
            yield _diagnostic(spec, "table.path", f"no table at {store.uri}", "an existing table, or create: auto")
        return
    if EXPIRING in state.properties:
        text = f"{store.uri} has the property {EXPIRING}: a batch could be written twice after its txn expires"
        unset = f"`headrace table set-properties {store.uri} --unset {EXPIRING}`"
        yield _diagnostic(spec, "table.path", text, f"no such property; remove it with {unset}")
    yield from _unknown_constraints(spec, state)
    constraints_of(store.uri, state, spec.table)
    existing = fillable(state.schema)
    generated = set(state.schema.names) - set(existing.names)
    by = tuple(name for name in spec.table.partitions if name not in generated)
    route_schema = branch.route_schema("", existing=existing, partition_by=by, generated=generated)
    if route_schema.unfilled:
        names = ", ".join(route_schema.unfilled)
        text = f"only_declared: no record sets {names} of {store.uri}; they will be NULL"
        yield _diagnostic(spec, "table.only_declared", text, "all columns of the table declared", "warning")
    merges = spec.table.merge is not None
    if blocker := (rewrite_blocker if merges else append_blocker)(state):
        text = f"{store.uri} is {'merged' if merges else 'appended'} by Spark, which is slower, because {blocker}"
        yield _diagnostic(spec, "table.path", text, "a table without these features", "warning")
    elif not store.local:
        text = f"{store.uri} is on S3: other Spark writers may silently overwrite commits"
        yield _diagnostic(spec, "table.path", text, "Headrace as the only Spark writer", "warning")


def _unknown_constraints(spec: Spec, state: TableState) -> Iterator[Diagnostic]:
    names = names_of(state)
    for name in spec.table.constraints:
        if name not in names:
            expected = ", ".join(names) or "no entry; the table has no constraints"
            yield _diagnostic(spec, ("table", "constraints", name), f"no constraint '{name}'", expected, "warning")


def _names(spec: Spec) -> Iterator[Diagnostic]:
    """Names that neither the tables nor the latest records have; other errors are reported by other checks."""
    with suppress(HeadraceError):
        for name in preview_records(spec, None, _SAMPLE).unknown:
            path = tuple(int(part) if part.isdigit() else part for part in re.split(r"[\[\].]+", name.place) if part)
            message = f"no '{name.name}' in the latest {_SAMPLE} records of each topic, the table or earlier steps"
            yield _diagnostic(spec, path, message, "an existing name, or allow_missing", suggestion=name.suggestion)


def _registry(spec: Spec) -> Iterator[Diagnostic]:
    """Compare the latest registered schema of each topic (subject `<topic>-value`) with its table."""
    registry = getattr(spec.decode.options, "registry", None) if spec.decode.options.framing == "confluent" else None
    if registry is None or spec.source_kind != "kafka":
        return
    key = f"decode.{spec.format}.registry"
    branches = Plan(spec, {}).branches.values()
    for topic in _topics(spec):
        subject = f"{topic}-value"
        try:
            schema = registry_of(registry).newest(subject)
            if schema is None:
                yield _diagnostic(
                    spec, key, f"no subject {subject}; its schema was not checked", "a registered subject", "warning"
                )
            else:
                for branch in branches:
                    yield from _check_schema(branch, key, topic, subject, schema)
        except UnknownSchema as unknown:
            yield _diagnostic(spec, key, f"latest schema of {subject}: {unknown}", "a schema that Delta supports")


def _topics(spec: Spec) -> list[str]:
    source = open_source(spec)
    try:
        return sorted(source.topics())
    finally:
        source.close()


def _check_schema(
    branch: CompiledBranch, key: str, topic: str, subject: str, schema: Registered
) -> Iterator[Diagnostic]:
    """New columns are a warning, incompatible columns an error."""
    spec, decoder = branch.spec, branch.fresh_decoder(pa.schema([]), "ignore")
    if not isinstance(decoder, SchemaPredictor):
        return
    kind, _ = decoder.predict(schema)
    route = {"fixed": "", "topic": topic, "type": f"{topic}:{kind}" if branch.routing.topics else kind}.get(
        branch.routing.by
    )
    if route is None:
        return
    store = Store(branch.uri(route), Profile(**spec.storage_profile()))
    state = load_state(store)
    if state is None and not branch.rules(route).declared:
        return  # a new table accepts any schema
    route_schema = branch.route_schema(route, existing=state.schema if state else None)
    prediction = predict_payload(branch, route, route_schema, schema)
    latest = f"the latest schema of {subject} (id {schema.id})"
    widens = branch.rules(route).contract.widens
    for _, reason, detail in prediction.rejects:
        if widens and reason in MISFITS:
            text = f"{latest} requires wider columns in {store.uri}; otherwise its records are dead letters: {detail}"
            yield _diagnostic(spec, key, text, "records that match the table", "warning")
        elif reason in _VALUE_INDEPENDENT:
            yield _diagnostic(
                spec,
                key,
                f"{latest} is incompatible with {store.uri}: {detail} ({reason})",
                "records that match the table",
            )
    if prediction.unknown:
        fields = list(prediction.unknown["fields"])
        names = ", ".join([name for name in fields if name not in route_schema.payload.names] or fields)
        yield _diagnostic(
            spec, key, f"{latest} adds columns to {store.uri}: {names}", "the columns of the table", "warning"
        )
