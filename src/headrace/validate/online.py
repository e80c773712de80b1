"""Online checks: topics, object store, known tables, table schemas and registered schemas."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from headrace.delta.txn import batch_txn, foreign_txns
from headrace.errors import HeadraceError, plural
from headrace.ledger.known_tables import KnownTable, KnownTables
from headrace.pipeline.foreign_txns import takeover_required, undecided
from headrace.pipeline.object_stores import object_stores
from headrace.pipeline.preview import preview_records
from headrace.pipeline.table_entry import check_identity
from headrace.pipeline.takeover import existing_tables
from headrace.plan.branch import CompiledBranch
from headrace.plan.decoding import predict_payload
from headrace.plan.plan import Plan
from headrace.plan.routing import routes as routes_of
from headrace.reasons import MISFITS, Reason
from headrace.runtime.environment_archive import existing_environment
from headrace.source.base import open_source
from headrace.source.spool.receiver import ReceivingSource
from headrace.spec import Diagnostic, Spec, TableSpec
from headrace.spec.danube_source import DanubeSpec
from headrace.spec.diagnostics import UnlocatedDiagnostic, locate
from headrace.spec.route_id import RouteId
from headrace.spec.yaml_reader import Path
from headrace.storage.store import Profile, Store
from headrace.transform.sql.constraints import constraints_of, names_of
from headrace.validate.files_source import has_files
from headrace.write.spark_append import fillable

_PROBE = ".check"
_SAMPLE = 100  # records per topic
_VALUE_INDEPENDENT = frozenset(
    {Reason.TYPE, Reason.MISSING, Reason.NEW_FIELD, Reason.BAD_NAME}
)  # reasons that apply to all values


_KEYS = {
    ("kafka", "BrokerUnreachable"): "source.kafka.brokers",
    ("kafka", "SourceTopicGone"): "source.kafka.topics",
    ("http", "BrokerUnreachable"): "source.http.kafka.brokers",
    ("http", "SourceTopicGone"): "source.http.topics",
    ("rivven", "BrokerUnreachable"): "source.rivven.broker",
    ("rivven", "EndpointInvalid"): "source.rivven.broker",
    ("rivven", "SourceTopicGone"): "source.rivven.topics",
    ("danube", "BrokerUnreachable"): "source.danube.url",
    ("danube", "SourceTopicGone"): "source.danube.topics",
}  # key to report, by source and error
_ENDPOINT_ERRORS = (
    "BrokerUnreachable",
    "StorageUnreachable",
    "RegistryUnreachable",
    "HotStoreUnreachable",
    "AuthenticationFailed",
)
_CREATED = "the bucket does not exist; the pipeline creates it"
_NO_BUCKET = (_CREATED, "NoSuchBucket", "ContainerNotFound")  # nothing else can be asked for then
_OBJECT = re.compile(r"^(\w+://[^/]+)/.*?: ")  # bucket and key before the reason: `s3://lake/a: Connection refused.`
_SUBSTITUTES = {"state": "table.path", "storage": "table.path"}  # key to report if this one is not in the spec

_Check = Callable[[Spec], Iterator[Diagnostic]]


def online(spec: Spec) -> list[Diagnostic]:
    """Run all online checks of a valid spec.

    The endpoints are asked concurrently, so that none delays the report of another. Checks that use DuckDB run in this
    thread: a connection of a thread that has ended is never closed, which DuckDB reports at exit.
    """
    endpoints: list[tuple[str, Spec, str, _Check]] = [
        ("source", spec, "source", _source),
        ("store", spec, "storage", _stores),
        ("cluster", spec, "spark", _cluster),
        ("hot_store", spec, "hot_store.postgres", _hot_store),
    ]
    formats = [spec, *(spec.along(entry) for entry in spec.topics)]
    registries = [(_registry_name(own), own, f"decode.{own.format}.registry") for own in formats]
    endpoints += [
        (name, own, key, _registry_responds)
        for name, own, key in registries
        if own.entry is None or own.entry.decode is not None
    ]
    with ThreadPoolExecutor(len(endpoints), thread_name_prefix="headrace-check") as pool:
        results = list(pool.map(lambda endpoint: _run_check(*endpoint[1:]), endpoints))
    down = {
        name
        for (name, *_), diagnostics in zip(endpoints, results, strict=True)
        if any(map(_prevents_others, diagnostics))
    }
    checks: list[tuple[Spec, str, _Check, set[str]]] = [
        (spec, "state", _known_tables, {"store"}),
        (spec, "table", _tables, {"store"}),
        (spec, "table.path", _taken_over, {"source", "store"}),
        *((own, key, partial(_registered_schemas, spec), {"source", "store", name}) for name, own, key in registries),
        (spec, "transform", _names, {"source", "store"}),
    ]
    results += [_run_check(own, key, check) for own, key, check, required in checks if not required & down]
    return _without_repeats(diagnostic for diagnostics in results for diagnostic in diagnostics)


def _registry_name(own: Spec) -> str:
    """Name of the endpoint of a registry: that of the pipeline, or of an entry of `topics` with its own format."""
    return "registry" if own.entry is None or own.entry.decode is None else f"registry of {own.entry.name}"


def _hot_store(spec: Spec) -> Iterator[Diagnostic]:
    """Whether PostgreSQL takes rows of the tables as they are now."""
    if spec.hot_store is not None:
        from headrace.hot_store.status import check_online  # imports psycopg

        check_online(spec, sorted(KnownTables.load(Store(spec.state_uri, Profile(**spec.storage_profile()))).tables))
    yield from ()


def _prevents_others(diagnostic: Diagnostic) -> bool:
    """Whether an endpoint or a bucket cannot be used, so that other checks would only repeat it."""
    return diagnostic.message.startswith(_ENDPOINT_ERRORS) or any(each in diagnostic.message for each in _NO_BUCKET)


def _without_repeats(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Diagnostics in which each cause of an endpoint error, which several checks can meet, occurs once."""
    causes: set[str] = set()
    distinct = []
    for diagnostic in diagnostics:
        cause = _endpoint_cause(diagnostic.message)
        if cause is None or cause not in causes:
            distinct.append(diagnostic)
        causes |= {cause} if cause else set()
    return distinct


def _endpoint_cause(message: str) -> str | None:
    """Error, endpoint and reason, without the object; None if the message is not about an endpoint.

    `StorageUnreachable: s3://lake/a/_delta_log (at http://minio:9000): Connection refused.` has the cause
    `StorageUnreachable: (at http://minio:9000): Connection refused.`; without an endpoint, the bucket remains.
    """
    if not message.startswith(_ENDPOINT_ERRORS):
        return None
    name, _, text = message.partition(": ")
    _, at, reason = text.partition(" (at ")
    cause = f"{at}{reason}" if at else _OBJECT.sub(r"\1: ", text)
    return f"{name}: {cause}"


def _run_check(spec: Spec, key: str, check: _Check) -> list[Diagnostic]:
    """Diagnostics of a check, including the error that ends it."""
    diagnostics: list[Diagnostic] = []
    try:
        diagnostics.extend(check(spec))
    except HeadraceError as error:
        key = _KEYS.get((spec.source_kind, error.name), key)
        diagnostics.append(_diagnostic(spec, key, f"{error.name}: {error.message} {error.hint}".rstrip(), expected=""))
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
    from headrace.source.kafka import KafkaSource

    source = open_source(spec)
    try:
        if not source.topics() and not isinstance(source, ReceivingSource):  # whose topics come with their records
            yield _diagnostic(spec, "source", "no topic matches", "at least one topic")
        if isinstance(source, KafkaSource) and (members := source.group_members()):
            message = f"the consumer group '{source.kafka.group}' has {plural(members, 'active member')}"
            yield _diagnostic(spec, "source.kafka.group", message, "a group that no consumer uses")
        if spec.source_kind != "files":
            source.bounds()
        elif not has_files(spec):  # its bounds would be recorded in the state
            yield _diagnostic(spec, "source.files.path", "no file yet", "at least one file", "warning")
    finally:
        source.close()
    if spec.source.danube is not None:  # the source itself only reads the spool
        yield from _danube_topics(spec.source.danube)


def _danube_topics(danube: DanubeSpec) -> Iterator[Diagnostic]:
    from headrace.source.danube.client import DanubeClient

    client = DanubeClient(danube)
    try:
        for topic in danube.topics:
            client.partitions(topic)
    finally:
        client.close()
    yield from ()


def _stores(spec: Spec) -> Iterator[Diagnostic]:
    """State, buckets and local directories; not concurrently, as two may write their probe to the same path."""
    for branch, key, store in object_stores(spec):
        yield from _run_check(branch, key, partial(_takes_conditional_puts, store))
    yield from _folders(spec)


def _cluster(spec: Spec) -> Iterator[Diagnostic]:
    """A standalone master must accept connections, and the archive for executors must exist."""
    spark = spec.spark
    if not spark.is_cluster:
        return
    if spark.environment == "archive":
        existing_environment()  # SetupError
    addresses = spark.master.removeprefix("spark://").split(",") if spark.master.startswith("spark://") else []
    failures = [failure for address in addresses if (failure := _connection_failure(address))]
    if addresses and len(failures) == len(addresses):
        yield _diagnostic(
            spec, "spark.master", f"no master accepts connections: {'; '.join(failures)}", "a running master"
        )


def _connection_failure(address: str) -> str:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return ""


def _folders(spec: Spec) -> Iterator[Diagnostic]:
    """Local directories of state, tables and dead letters must be writable."""
    places = {"storage": spec.state_uri}
    places |= {"dead_letters.path": spec.dead_letters_uri.rpartition("/")[0]} if spec.dead_letters.path else {}
    for branch in spec.branch_specs().values():
        yield from _run_check(branch, "table.path", partial(_writable, branch.base_uri))
    for key, uri in places.items():
        yield from _run_check(spec, key, partial(_writable, uri))


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


def _takes_conditional_puts(store: Store, spec: Spec) -> Iterator[Diagnostic]:
    """A bucket must support reads, writes and put-if-absent, unless the pipeline creates it."""
    if spec.storage.create_bucket and _is_missing(store):
        yield _diagnostic(spec, "storage.create_bucket", f"{store.uri}: {_CREATED}", "an existing bucket", "warning")
    else:
        store.verify_conditional_puts()


def _is_missing(store: Store) -> bool:
    try:
        return not store.bucket_exists()
    except OSError:
        return False  # its cause is found by the requests of the check


def _tables(spec: Spec) -> Iterator[Diagnostic]:
    """Existing tables of all routes that are known before a record is read."""
    branches = Plan(spec, {}).branches
    is_routed = any(branch.routing.by != "fixed" for branch in branches.values())
    earlier_routes = _earlier_routes(spec) if is_routed else []
    for name, branch in branches.items():
        routes = {route_id.route for route_id in earlier_routes if route_id.branch == name}
        routes |= {""} if branch.routing.by == "fixed" else _topic_routes(spec, branch)
        for route in sorted(routes):
            yield from _run_check(branch.spec, "table", partial(_table, branch, route))


def _earlier_routes(spec: Spec) -> list[RouteId]:
    """Routes of the tables that the pipeline has written."""
    known_tables = KnownTables.load(Store(spec.state_uri, Profile(**spec.storage_profile())))
    routes = [spec.route_of(uri) for uri in known_tables.tables]
    return [route_id for route_id in routes if route_id is not None]


def _topic_routes(spec: Spec, branch: CompiledBranch) -> set[str]:
    """Routes of the topics with `route.by: topic`; values of records are not known yet."""
    if branch.routing.by != "topic":
        return set()
    with suppress(HeadraceError):  # reported by `_source`
        kafka = spec.source.read_from_kafka
        listed = kafka.topics if kafka else None
        names = [topic for topic in listed or _topics(spec) if spec.entry_of(topic) == branch.spec.entry]
        topics = pa.table({"topic": pa.array(names, pa.string())})
        return {route for route in routes_of(branch.routing, topics).values.to_pylist() if route is not None}
    return set()


def _table(branch: CompiledBranch, route: str, spec: Spec) -> Iterator[Diagnostic]:
    store, table = Store(branch.uri(route), Profile(**spec.storage_profile())), branch.rules(route)
    state = load_state(store)
    if state is None:
        if table.create == "never":
            yield _diagnostic(spec, "table.path", f"no table at {store.uri}", "an existing table, or create: auto")
        return
    if EXPIRING in state.properties:
        text = f"{store.uri} has the property {EXPIRING}: a batch could be written twice after its txn expires"
        unset = f"`headrace table set-properties {store.uri} --unset {EXPIRING}`"
        yield _diagnostic(spec, "table.path", text, f"no such property; remove it with {unset}")
    yield from _unknown_constraints(spec, table, state)
    constraints_of(store.uri, state, table)
    existing = fillable(state.schema)
    generated = set(state.schema.names) - set(existing.names)
    by = tuple(name for name in table.partitions if name not in generated)
    route_schema = branch.route_schema(route, existing=existing, partition_by=by, generated=generated)
    if route_schema.unfilled:
        names = ", ".join(route_schema.unfilled)
        text = f"only_declared: no record sets {names} of {store.uri}; they will be NULL"
        yield _diagnostic(spec, "table.only_declared", text, "all columns of the table declared", "warning")
    merges = table.merge is not None
    if blocker := (rewrite_blocker if merges else append_blocker)(state):
        text = f"{store.uri} is {'merged' if merges else 'appended'} by Spark, which is slower, because {blocker}"
        yield _diagnostic(spec, "table.path", text, "a table without these features", "warning")
    elif not store.local:
        text = f"{store.uri} is in an object store: other Spark writers may silently overwrite commits"
        yield _diagnostic(spec, "table.path", text, "no other Spark writers", "warning")


def _taken_over(spec: Spec) -> Iterator[Diagnostic]:
    """Tables with records of kafka-delta-ingest, for which neither the spec nor the state has a decision."""
    if spec.source.kafka is None:
        return
    state = Store(spec.state_uri, Profile(**spec.storage_profile()))
    known = KnownTables.load(state)
    tables = [
        each
        for each in existing_tables(spec, state)
        if batch_txn(spec.pipeline) not in each.txns and each.store.uri not in known.taken_over
    ]
    if not any(foreign_txns(each.txns) for each in tables):
        return
    source = open_source(spec)
    try:
        numbers = {number for _, number in source.bounds()}
    finally:
        source.close()
    for each in tables:
        if txns := undecided(each.rules, each.txns, numbers):
            error = takeover_required(each.store.uri, txns)
            yield _diagnostic(spec, "table.path", f"{error.name}: {error.message}", error.hint)


def _unknown_constraints(spec: Spec, table: TableSpec, state: TableState) -> Iterator[Diagnostic]:
    names = names_of(state)
    for name in table.constraints:
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


def _registry_responds(spec: Spec) -> Iterator[Diagnostic]:
    """Whether the registry responds, even while the topics are not known."""
    registry = getattr(spec.decode.options, "registry", None)
    if registry is not None:
        registry_of(registry).check_response()
    yield from ()


def _registered_schemas(pipeline: Spec, spec: Spec) -> Iterator[Diagnostic]:
    """Compare the latest registered schema of each topic (subject `<topic>-value`) with its table.

    `spec`: of the pipeline, or of an entry of its `topics`; each has topics of its own.
    """
    registry = getattr(spec.decode.options, "registry", None) if spec.decode.options.framing == "confluent" else None
    if registry is None or spec.source.read_from_kafka is None:
        return
    key = f"decode.{spec.format}.registry"
    branches = [branch for branch in Plan(pipeline, {}).branches.values() if branch.spec.entry == spec.entry]
    for topic in _topics(pipeline):
        if pipeline.entry_of(topic) != spec.entry:
            continue
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
