"""What `check --online` asks: are the topics there, does the store answer, do tables and newest schemas fit?"""

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
from headrace.spec.diagnostics import UnlocatedDiagnostic, located
from headrace.spec.yaml_reader import Path
from headrace.storage.store import Profile, Store
from headrace.transform.sql.constraints import constraints_of, names_of
from headrace.write.spark_append import fillable

_PROBE = ".check"
_SAMPLE = 100  # records of each topic
_CERTAIN = frozenset({Reason.TYPE, Reason.MISSING, Reason.NEW_FIELD, Reason.BAD_NAME})  # whatever the values are


_KEYS = {"BrokerUnreachable": "source.kafka.brokers", "SourceTopicGone": "source.kafka.topics"}  # of an error
_STANDS_FOR = {"state": "table.path", "storage": "table.path"}  # the key that says it where this one is not written


def online(spec: Spec) -> list[Diagnostic]:
    """Findings about the world the spec names; the file itself was found right before."""
    asked = {
        "source": _source,
        "storage": _storage,
        "table.path": _folders,
        "state": _known,
        "table": _tables,
        f"decode.{spec.format}.registry": _registry,
        "transform": _names,
    }
    return [finding for key, ask in asked.items() for finding in _asked(spec, key, ask)]


def _asked(spec: Spec, key: str, ask: Callable[[Spec], Iterator[Diagnostic]]) -> list[Diagnostic]:
    """Everything found until something stops the question, and that."""
    found: list[Diagnostic] = []
    try:
        found.extend(ask(spec))
    except HeadraceError as error:
        key = _KEYS.get(error.name, key)
        found.append(_finding(spec, key, f"{error.name}: {error.message}", error.hint or "a successful response"))
    return found


def _finding(
    spec: Spec,
    key: str | Path,
    seen: str,
    allowed: str,
    severity: Literal["error", "warning"] = "error",
    suggestion: str = "",
) -> Diagnostic:
    """A finding at the line of its key (`table.path`, or a path such as `("table", "columns", 0)`)."""
    path = tuple(key.split(".")) if isinstance(key, str) else key
    finding = located(spec, UnlocatedDiagnostic(path, seen, allowed, suggestion, severity))
    other = _STANDS_FOR.get(str(path[0]))
    if other is None or path[0] in _written_keys(spec):
        return finding
    elsewhere = located(spec, UnlocatedDiagnostic(tuple(other.split(".")), seen))
    return replace(finding, line=elsewhere.line, column=elsewhere.column)


def _written_keys(spec: Spec) -> frozenset[str]:
    return frozenset(spec.written.root.plain()) if spec.written else frozenset()


def _source(spec: Spec) -> Iterator[Diagnostic]:
    source = open_source(spec)
    try:
        if not source.topics():
            yield _finding(spec, "source", "no topic matches", "at least one topic")
        source.bounds()
    finally:
        source.close()


def _folders(spec: Spec) -> Iterator[Diagnostic]:
    """The folders of tables and dead letters must take a file; on a store of objects there are none."""
    places = {"dead_letters.path": spec.dead_letters.path and spec.dead_letters_uri.rpartition("/")[0]}
    for branch in spec.branch_specs().values():
        yield from _asked(branch, "table.path", partial(_writable, branch.base_uri))
    for key, uri in places.items():
        yield from _asked(spec, key, partial(_writable, uri)) if uri else ()


def _writable(uri: str, spec: Spec) -> Iterator[Diagnostic]:
    store = Store(uri, Profile(**spec.storage_profile()))
    if store.local:
        store.put(_PROBE, b"headrace check")
        store.delete([_PROBE])
    yield from ()


def _known(spec: Spec) -> Iterator[Diagnostic]:
    """Whether the state is this pipeline's, and its tables are still the ones that were written."""
    known = KnownTables.load(Store(spec.state_uri, Profile(**spec.storage_profile())))
    tables = [uri for uri in known.tables if spec.name_of(uri) is not None or uri == spec.dead_letters_uri]
    own = [uri for uri in tables if uri != spec.dead_letters_uri]
    others = [uri for uri in known.tables if uri not in tables]
    if known.topics and others and not own and not {*known.topics} & {*_topics(spec)}:
        topics, paths = ", ".join(sorted(known.topics)), ", ".join(sorted(others))
        seen = (
            f"'{spec.pipeline}' is the name of a pipeline that reads {topics} into {paths}, with its "
            f"state in {spec.state_uri}"
        )
        yield _finding(spec, "pipeline", seen, "a unique pipeline name, or another state path")
        return
    for uri in tables:
        yield from _asked(spec, "table.path", partial(_same, uri, known.tables[uri]))


def _same(uri: str, known: KnownTable, spec: Spec) -> Iterator[Diagnostic]:
    check_identity(uri, load_state(Store(uri, Profile(**spec.storage_profile()))), known)
    yield from ()


def _storage(spec: Spec) -> Iterator[Diagnostic]:
    """The state folder must take a put, give it back, and refuse the second put-if-absent."""
    store = Store(spec.state_uri, Profile(**spec.storage_profile()))
    probe = _PROBE
    store.put(probe, b"headrace check")
    try:
        if store.get(probe) != b"headrace check":
            yield _finding(
                spec, "state", "the object store returned different bytes than were written", "the same bytes"
            )
        try:
            store.put_new(probe, b"again")
            yield _finding(
                spec,
                "state",
                "the object store does not support put-if-absent",
                "an object store with conditional writes",
            )
        except HeadraceError as refused:
            if refused.name != "AlreadyThere":
                raise
    finally:
        store.delete([probe])


def _tables(spec: Spec) -> Iterator[Diagnostic]:
    for branch in Plan(spec, {}).branches.values():
        if branch.routing.by == "fixed":
            yield from _asked(branch.spec, "table", partial(_table, branch))


def _table(branch: CompiledBranch, spec: Spec) -> Iterator[Diagnostic]:
    store = Store(spec.table.path, Profile(**spec.storage_profile()))
    state = load_state(store)
    if state is None:
        if spec.table.create == "never":
            yield _finding(spec, "table.path", f"no table at {store.uri}", "an existing table, or create: auto")
        return
    if EXPIRING in state.properties:
        text = f"{store.uri} has the property {EXPIRING}: a batch could be written twice after its txn expires"
        unset = f"`headrace table set-properties {store.uri} --unset {EXPIRING}`"
        yield _finding(spec, "table.path", text, f"the property removed: {unset}")
    yield from _unknown_constraints(spec, state)
    constraints_of(store.uri, state, spec.table)
    existing = fillable(state.schema)
    generated = set(state.schema.names) - set(existing.names)
    by = tuple(name for name in spec.table.partitions if name not in generated)
    shape = branch.shape_of("", existing=existing, partition_by=by, generated=generated)
    if shape.unfilled:
        names = ", ".join(shape.unfilled)
        text = f"only_declared: no record sets {names} of {store.uri}; they will be NULL"
        yield _finding(spec, "table.only_declared", text, "all columns of the table declared", "warning")
    merges = spec.table.merge is not None
    if why := (rewrite_blocker if merges else append_blocker)(state):
        text = f"{store.uri} is {'merged' if merges else 'appended'} by Spark, which is slower, because {why}"
        yield _finding(spec, "table.path", text, "a table without these features", "warning")
    elif not store.local:
        text = f"{store.uri} is on S3: other Spark writers may silently overwrite commits"
        yield _finding(spec, "table.path", text, "no other Spark writers", "warning")


def _unknown_constraints(spec: Spec, state: TableState) -> Iterator[Diagnostic]:
    names = names_of(state)
    for name in spec.table.constraints:
        if name not in names:
            allowed = ", ".join(names) or "no constraints; the table has none"
            yield _finding(spec, ("table", "constraints", name), f"no constraint '{name}'", allowed, "warning")


def _names(spec: Spec) -> Iterator[Diagnostic]:
    """Names that neither the tables nor the newest records have; what else fails here is found elsewhere."""
    with suppress(HeadraceError):
        for each in preview_records(spec, None, _SAMPLE).unknown:
            path = tuple(int(part) if part.isdigit() else part for part in re.split(r"[\[\].]+", each.place) if part)
            seen = f"no '{each.name}' in the latest {_SAMPLE} records of each topic, the table or earlier steps"
            yield _finding(spec, path, seen, "an existing name, or allow_missing", suggestion=each.suggestion)


def _registry(spec: Spec) -> Iterator[Diagnostic]:
    """What the newest schema of each topic (its subject is the topic's name and `-value`) would do to the table."""
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
                yield _finding(
                    spec, key, f"no subject {subject}; its schema was not checked", "a registered subject", "warning"
                )
            else:
                for branch in branches:
                    yield from _foreseen(branch, key, topic, subject, schema)
        except UnknownSchema as unknown:
            yield _finding(spec, key, f"latest schema of {subject}: {unknown}", "a schema that Delta supports")


def _topics(spec: Spec) -> list[str]:
    source = open_source(spec)
    try:
        return sorted(source.topics())
    finally:
        source.close()


def _foreseen(branch: CompiledBranch, key: str, topic: str, subject: str, schema: Registered) -> Iterator[Diagnostic]:
    """Records of a schema before there are any: new columns are a warning, certain letters an error."""
    spec, asked = branch.spec, branch.fresh_decoder(pa.schema([]), "ignore")
    if not isinstance(asked, SchemaPredictor):
        return
    kind, _ = asked.foresee(schema)
    route = {"fixed": "", "topic": topic, "type": f"{topic}:{kind}" if branch.routing.topics else kind}.get(
        branch.routing.by
    )
    if route is None:
        return
    store = Store(branch.uri(route), Profile(**spec.storage_profile()))
    state = load_state(store)
    if state is None and not branch.rules(route).declared:
        return  # a new table takes what comes
    shape = branch.shape_of(route, existing=state.schema if state else None)
    found = predict_payload(branch, route, shape, schema)
    which = f"the latest schema of {subject} (id {schema.id})"
    widens = branch.rules(route).contract.widens
    for _, reason, detail in found.rejects:
        if widens and reason in MISFITS:
            text = f"{which} requires wider columns in {store.uri}; otherwise its records become dead letters: {detail}"
            yield _finding(spec, key, text, "records that match the table", "warning")
        elif reason in _CERTAIN:
            yield _finding(
                spec,
                key,
                f"{which} is incompatible with {store.uri}: {detail} ({reason})",
                "records that match the table",
            )
    if found.unknown:
        fields = list(found.unknown["fields"])
        names = ", ".join([name for name in fields if name not in shape.payload.names] or fields)
        yield _finding(spec, key, f"{which} adds columns to {store.uri}: {names}", "no new columns", "warning")
