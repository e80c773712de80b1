"""What no single key can tell: rules between keys, for a spec whose parts are all well-formed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from headrace.errors import UsageError
from headrace.spec.branching import check_apart, check_explode
from headrace.spec.columns import check_columns, check_names, columns_of, names_after
from headrace.spec.decode import Msgpack, Protobuf
from headrace.spec.findings import Complaint, closest
from headrace.spec.model import SECRETS, Branch, Jmespath, MaskBy, Spec, Step
from headrace.spec.modes import check_mode
from headrace.spec.places import holds, may_meet
from headrace.spec.registry import RegistrySpec
from headrace.spec.secrets import BadReference, Secret
from headrace.spec.table import TableMatch, TableOptions, TableSpec, route_names
from headrace.spec.tree import Path
from headrace.spec.upkeep import check_upkeep

_KAFKA: Path = ("source", "kafka")
_S3: Path = ("storage", "s3")
_CERTIFICATES = "PEM text or ${file:…}, certificates only"


def check(spec: Spec) -> Iterator[Complaint]:
    """Everything that is wrong, or doubtful, between the keys of a spec."""
    for rule in RULES:
        yield from rule(spec)
    branches: list[tuple[Path, Spec]] = [((), spec)]
    branches += [(("also", index), spec.along(each)) for index, each in enumerate(spec.also)]
    for here, branch in branches:
        for rule in BRANCH_RULES:
            yield from (replace(each, path=(*here, *each.path)) for each in rule(branch))
    yield from check_apart(spec)


def _connection(spec: Spec) -> Iterator[Complaint]:
    kafka = spec.source.kafka
    if kafka is None:
        return
    if kafka.tls is None and not kafka.plaintext and not kafka.stays_here:
        seen = "a broker on another machine and neither encryption nor a word that none is meant"
        yield Complaint((*_KAFKA, "brokers"), seen, "tls, or plaintext: true")
    if kafka.tls is not None and kafka.plaintext:
        yield Complaint((*_KAFKA, "plaintext"), "true beside tls", "one of them")


def _is_certificate(text: str) -> bool:
    return "-----BEGIN CERTIFICATE-----" in text and "PRIVATE KEY" not in text


def _certificates(spec: Spec) -> Iterator[Complaint]:
    tls = spec.source.kafka.tls if spec.source.kafka else None
    if tls is None:
        return
    here = (*_KAFKA, "tls")
    for name in ("ca", "certificate"):
        text = getattr(tls, name)
        if text is not None and not _is_certificate(text):
            yield Complaint((*here, name), "no certificate", _CERTIFICATES)
    if (tls.certificate is None) != (tls.key is None):
        yield Complaint(here, "one of certificate and key without the other", "both or none")
    if tls.key is None and tls.key_password is not None:
        yield Complaint((*here, "key_password"), "a password for no key", "key_password beside key")


def _registry(spec: Spec) -> Iterator[Complaint]:
    registry = getattr(spec.decode.options, "registry", None)
    if not isinstance(registry, RegistrySpec):
        return
    here: Path = ("decode", spec.format, "registry")
    encrypted = registry.url.startswith("https://")
    if not encrypted and not registry.plaintext and not registry.stays_here:
        seen = "a registry on another machine, an unencrypted address, and no word that it is meant"
        yield Complaint((*here, "url"), seen, "https://, or plaintext: true")
    if encrypted and registry.plaintext:
        yield Complaint((*here, "plaintext"), "true beside https://", "one of them")
    if (registry.username is None) != (registry.password is None):
        yield Complaint(here, "one of username and password without the other", "both or none")
    if registry.ca is not None and not _is_certificate(registry.ca):
        yield Complaint((*here, "ca"), "no certificate", _CERTIFICATES)


def _schema_file(spec: Spec) -> Iterator[Complaint]:
    """A schema beside the spec is read now: what is wrong with it should not wait for the first record."""
    options = spec.decode.options
    if isinstance(options, Protobuf) and options.descriptor is not None:
        yield from _descriptor(options.descriptor, options.message or "", spec.limits.depth)
    if isinstance(options, Msgpack) and options.schemas is not None:
        from headrace.decode.msgpack_schema import BadSchemas, in_path

        try:
            in_path(options.schemas)
        except BadSchemas as bad:
            yield Complaint(("decode", "msgpack", "schemas"), str(bad), "a file of schemas, or a folder of such files")


def _descriptor(path: str, message: str, depth: int) -> Iterator[Complaint]:
    from headrace.decode.proto.files import in_file
    from headrace.decode.proto.schema import BadSchema, NoMessage

    here: Path = ("decode", "protobuf")
    try:
        in_file(path, depth).message(message)
    except OSError as trouble:
        yield Complaint((*here, "descriptor"), f"no file that can be read ({trouble.strerror})")
    except NoMessage as none:
        yield Complaint((*here, "message"), str(none), "the full name of a message in the schema, package included")
    except BadSchema as bad:
        yield Complaint((*here, "descriptor"), str(bad), "a .proto file or a descriptor set with its imports")


def _avro_files(spec: Spec) -> Iterator[Complaint]:
    avro = spec.decode.avro
    if avro is None:
        return
    from headrace.decode.avro import schema_file, schemas_at

    try:
        if avro.schema_ is not None:
            schema_file(avro.schema_)
        if avro.single_object is not None:
            schemas_at(avro.single_object)
    except UsageError as error:
        key = "schema" if avro.schema_ is not None else "single_object"
        yield Complaint(("decode", "avro", key), error.seen.removesuffix("."), "a file with an Avro schema")


def _topics(spec: Spec) -> Iterator[Complaint]:
    kafka = spec.source.kafka
    if kafka is None:
        return
    topics = kafka.topics or ()
    for index, topic in enumerate(topics):
        if topic in topics[:index]:
            yield Complaint((*_KAFKA, "topics", index), f"'{topic}' a second time", "each topic once")
    if isinstance(kafka.start, str) or kafka.start.offsets is None:
        return
    here = (*_KAFKA, "start", "offsets")
    if any(isinstance(item, int) for item in kafka.start.offsets.values()):
        if len(topics) != 1:
            yield Complaint(here, "offsets without a topic", "{orders: {0: 12}} where there is not exactly one topic")
        return
    for topic in kafka.start.offsets:
        if topics and topic not in topics:
            yield Complaint((*here, topic), "a topic that is not read", ", ".join(topics), closest(topic, topics))


def _template(spec: Spec) -> Iterator[Complaint]:
    """The path says `{route}` exactly where there is more than one route to say."""
    here: Path = ("table", "path")
    path = spec.table.path
    variables = re.findall(r"\{([^{}]*)\}", path)
    names = route_names(spec.route)
    for name in variables:
        if name != "route":
            known = ", ".join(f"{{{each}}}" for each in names) or "no variable while route.by is fixed"
            yield Complaint(here, f"the variable {{{name}}}", known, closest(name, names))
    if re.search(r"[{}]", re.sub(r"\{[^{}]*\}", "", path)):
        yield Complaint(here, "a brace alone", "{route}")
    if "route" in variables and spec.route.kind == "fixed":
        yield Complaint(here, "{route}, but every record has the same", "route.by, or a path without {route}")
    if not variables and spec.route.kind != "fixed":
        yield Complaint(here, f"one path for all routes (by {spec.route.kind})", "a path with {route}")


def _route(spec: Spec) -> Iterator[Complaint]:
    route = spec.route
    if route.kind == "fixed":
        for key in ("include", "exclude"):
            if getattr(route, key) is not None:
                yield Complaint(("route", key), "a choice among routes, but there is one", "route.by other than fixed")
        if spec.tables:
            yield Complaint(("tables",), "options by route, but there is one", "route.by other than fixed")
    if route.kind == "type" and not spec.decode.options.typed:
        seen = f"the type of a record, which {spec.format} does not tell as it is read here"
        yield Complaint(("route", "by"), seen, "topic, {field: …} or {header: …}; or a registry in decode")
    if route.kind == "type" and spec.decode.options.many:
        yield Complaint(("route", "by"), "one type, but a value holds many rows", "{sql: …}")
    if route.kind == "field" and spec.decode.options.many:
        seen = "a field of the value, but a value holds many rows"
        yield Complaint(("route", "by", "field"), seen, "{sql: …}, which each row answers for itself")
    if route.kind == "field" and not _is_field(route.value or ""):
        yield Complaint(("route", "by", "field"), f"'{route.value}'", "a.b or /a/b, without empty parts")


def _widening(spec: Spec) -> Iterator[Complaint]:
    """Tables of an SQL route are read with columns they have in common, so one of them cannot widen its own."""
    if spec.route.kind != "sql":
        return
    for here, own in _written(spec):
        answers: list[tuple[Path, str | None]] = [(("contract",), own.contract_keys.wrong_type)]
        answers += [(("columns", nth, "contract"), each.contract.wrong_type) for nth, each in enumerate(own.columns)]
        for place, answer in answers:
            if answer == "widen":
                yield Complaint((*here, *place, "wrong_type"), "widen beside route.by.sql", "another way to route")


def _written(spec: Spec | Branch) -> Iterator[tuple[Path, TableSpec | TableMatch]]:
    """The table's options, and those of some routes, with where they stand."""
    yield ("table",), spec.table
    for index, item in enumerate(spec.tables):
        yield ("tables", index), item


def _is_field(text: str) -> bool:
    parts = text[1:].split("/") if text.startswith("/") else text.split(".")
    return all(parts) and "\0" not in text


def _places(spec: Spec) -> Iterator[Complaint]:
    """Tables must not lie in the folders of letters and state."""
    for name, place in (("the state", spec.state_uri), ("the dead letters", spec.dead_letters_uri)):
        if may_meet(spec.table.path, place):
            yield Complaint(("table", "path"), f"a folder that {name} ({place}) shares", "a folder of its own")
            return


def _state(spec: Spec) -> Iterator[Complaint]:
    """Letters and state are in one place each, and not in one another's (the state has a folder for letters)."""
    state, letters = spec.state_uri, spec.dead_letters_uri
    for key in ("state", "dead_letters"):
        value = spec.state if key == "state" else spec.dead_letters.path
        if value and re.search(r"[{}]", value):
            yield Complaint((key,) if key == "state" else (key, "path"), "a brace", "one fixed place")
    said = any(may_meet(spec.table.path, place) for place in (state, letters))  # of the table's path, and enough
    if not said and letters != f"{state}/dead_letters" and (holds(letters, state) or holds(state, letters)):
        yield Complaint(("dead_letters", "path"), f"a folder that the state ({state}) shares", "a folder of its own")


def _transform(spec: Spec) -> Iterator[Complaint]:
    yield from check_names(spec.transform)
    closed = spec.table.declared and spec.table.contract.new_field != "evolve" and not spec.tables
    names = [*columns_of(spec.table), *_position(spec)] if closed else None
    for index, step in enumerate(spec.transform):
        here: Path = ("transform", index)
        for path, text in _expressions(step):
            yield from _expression((*here, *path), text, names)
        yield from _queries((*here, "jmespath"), step)
        if names is not None:
            yield from _absent(here, step, names)
            names = names_after([step], names)
    if spec.route.kind == "sql":
        yield from _expression(("route", "by", "sql"), spec.route.value or "", names)


def _letter_columns(spec: Spec) -> Iterator[Complaint]:
    """What letters get beside their own columns; those are the letter, and stay as they are."""
    from headrace.spec.columns import bad_name
    from headrace.tables.schema import DEAD_LETTERS
    from headrace.transform import dialect

    names = list(DEAD_LETTERS.names)
    for index, step in enumerate(spec.dead_letters.transform):
        key = "set" if step.set else "jmespath"
        for name, text in (step.set or step.jmespath or {}).items():
            here: Path = ("dead_letters", "transform", index, key, name)
            if trouble := bad_name(name):
                yield Complaint(here, trouble, "a name that Delta takes")
            elif name.lower() in [each.lower() for each in names]:
                yield Complaint(here, f"'{name}', which letters have already", "a name of its own")
            elif step.set:
                yield from _expression(here, text, names)
            else:
                yield from (
                    Complaint(here, seen, "one JMESPath expression over the letter") for seen in dialect.check(text)
                )
            names.append(name)


def _expression(path: Path, text: str, names: list[str] | None) -> Iterator[Complaint]:
    from headrace.transform.expressions import check as check_expression

    for seen in check_expression(text, names):
        yield Complaint(path, seen, "one SQL expression over the row and its envelope")


def _queries(here: Path, step: Step) -> Iterator[Complaint]:
    from headrace.transform.dialect import check as check_query

    here = (*here, "set") if isinstance(step.jmespath, Jmespath) else here
    for target, text in step.queries.items():
        for seen in check_query(text):
            yield Complaint((*here, target), seen, "one JMESPath expression, or kafka.offset and its like")


def _expressions(step: Step) -> Iterator[tuple[Path, str]]:
    if step.where is not None:
        yield ("where",), step.where
    for name, text in (step.set or {}).items():
        yield ("set", name), text


def _absent(here: Path, step: Step, names: list[str]) -> Iterator[Complaint]:
    for index, name in enumerate(step.drop or ()):
        if name not in names:
            yield Complaint((*here, "drop", index), f"no column '{name}'", ", ".join(names), closest(name, names))
    named = [("rename", name, name) for name in step.rename or {}]
    named += [("mask", name, name.split(".")[0]) for name in step.mask or {}]
    for key, at, name in named:
        if name not in names:
            yield Complaint((*here, key, at), f"no column '{name}'", ", ".join(names), closest(name, names))


def _position(spec: Spec) -> list[str]:
    """The column that exploding makes, whether or not it is declared."""
    made = spec.explode.position if spec.explode else None
    return [made] if made and made not in columns_of(spec.table) else []


def _tables(spec: Spec) -> Iterator[Complaint]:
    for here, own in _written(spec):
        table = own.over(spec.table) if isinstance(own, TableMatch) else own
        yield from check_columns(table, own, here, spec.transform)
        yield from check_mode(table, own, here, spec.transform)
        yield from _expectations(spec, table, own, here)
        yield from _predicates(spec, table, own, here)


def _expectations(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[Complaint]:
    """Those written here; the columns they see are the table's, after the transform."""
    closed = table.declared and table.contract.new_field != "evolve"
    names = names_after(spec.transform, [*columns_of(table), *_position(spec)]) if closed else None
    known: set[str] = set()
    for index, each in enumerate(own.expectations):
        path = (*here, "expectations", index)
        if each.name in known:
            yield Complaint((*path, "name"), f"'{each.name}' a second time", "each once")
        known.add(each.name)
        yield from _expression((*path, "expect"), each.expect, names)


def _masks(spec: Spec) -> Iterator[Complaint]:
    """Masks that would not hide what they should."""
    covered = False
    for index, step in enumerate(spec.transform):
        here: Path = ("transform", index)
        if covered and step.jmespath is not None:
            seen = "JMESPath after a mask: it reads the message as it came, clear values among it"
            yield Complaint((*here, "jmespath"), seen, "a mask after it", severity="warning")
        for name, by in (step.mask or {}).items():
            yield from _mask((*here, "mask", name), name, by)
        covered = covered or step.mask is not None
    if covered:
        yield from _rescued(spec)
        yield from _emptied(spec)


def _mask(here: Path, name: str, by: MaskBy | str) -> Iterator[Complaint]:
    from headrace.transform.mask import SHORTEST

    if not all(name.split(".")):
        yield Complaint(here, f"'{name}'", "a column, or a field as a.b, without empty parts", on_key=True)
    if isinstance(by, str) or by.sha256 is None:
        return
    with suppress(BadReference):  # which is told of every secret
        size = len(by.sha256.reveal().encode())
        if size < SHORTEST:
            yield Complaint((*here, "sha256"), f"a key of {size} bytes", f"a key of {SHORTEST} bytes or more")


def _rescued(spec: Spec) -> Iterator[Complaint]:
    """What is rescued is kept as it came, a value that a mask should cover among it."""
    steps = spec.transform
    if any("_rescued" in (*(step.drop or ()), *(step.mask or ())) for step in steps):
        return
    for here, own in _written(spec):
        table = own.over(spec.table) if isinstance(own, TableMatch) else own
        if table.contract.rescues:
            seen = "rescue beside a mask: _rescued would hold clear values"
            yield Complaint((*here, "contract"), seen, "a mask of _rescued, too, or drop: [_rescued]")


def _emptied(spec: Spec) -> Iterator[Complaint]:
    """A required column that is always NULL would make a letter of every record."""
    null = {name for step in spec.transform for name, by in (step.mask or {}).items() if by == "null"}
    for here, own in _written(spec):
        for index, column in enumerate(own.columns):
            if column.name in null and not column.nullable:
                path = (*here, "columns", index, "nullable")
                yield Complaint(path, f"false, and a mask makes '{column.name}' NULL", "true, or another mask")


def _predicates(spec: Spec, table: TableSpec, own: TableOptions, here: Path) -> Iterator[Complaint]:
    """What deletes, over the columns after the transform and what the envelope says."""
    if own.merge is None:
        return
    closed = table.declared and table.contract.new_field != "evolve"
    columns = [*columns_of(table), *_position(spec)]
    names = [*names_after(spec.transform, columns), *own.merge.aside] if closed else None
    for key in ("delete_when", "truncate_when"):
        if text := getattr(own.merge, key):
            yield from _expression((*here, "merge", key), text, names)


def _doubles(spec: Spec) -> Iterator[Complaint]:
    """A record of which some rows are doubles and others are not would be neither stored nor filtered."""
    if not (spec.also or spec.explode or spec.decode.options.many):
        return
    branches = [(("also", index, *here), own) for index, each in enumerate(spec.also) for here, own in _written(each)]
    for here, own in (*_written(spec), *branches):
        if own.deduplicate is not None:
            seen = "records that may have several rows"
            yield Complaint((*here, "deduplicate"), seen, "records of one row: no also, no explode, one value a record")


def _generations(spec: Spec) -> Iterator[Complaint]:
    """All tables of a pipeline are read anew together, or none is: it reads each record once for all of them."""
    branches = [(("also", index, *here), own) for index, each in enumerate(spec.also) for here, own in _written(each)]
    for here, own in (*_written(spec), *branches):
        if own.overwrites != spec.table.overwrites and ("mode" in own.model_fields_set or isinstance(own, TableSpec)):
            seen = f"{own.mode}, beside {spec.table.mode}"
            yield Complaint((*here, "mode"), seen, "every table of the pipeline is overwritten, or none")


def _keys(spec: Spec) -> Iterator[Complaint]:
    """A record's key that is one value can be only one column's."""
    how = spec.decode.options.key
    for options in (spec.table, *spec.tables):
        if how != "json" and options.merge is not None and len(options.merge.keys) > 1:
            yield Complaint(("decode", spec.format, "key"), f"{how} for {len(options.merge.keys)} keys", "json")


def _storage(spec: Spec) -> Iterator[Complaint]:
    s3 = spec.storage.s3
    if (s3.access_key_id is None) != (s3.secret_access_key is None):
        yield Complaint(_S3, "one of access_key_id and secret_access_key without the other", "both or none")
    if s3.session_token is not None and s3.secret_access_key is None:
        yield Complaint((*_S3, "session_token"), "a token without its key", "session_token beside the keys")
    if s3.endpoint and s3.endpoint.startswith("http://") and not s3.allow_http:
        yield Complaint((*_S3, "endpoint"), "an unencrypted address", "https://, or allow_http: true")
    tables = [branch.table.path for branch in spec.branches().values()]
    uses = (*tables, spec.state_uri, spec.dead_letters_uri)
    if "storage" in spec.model_fields_set and not any(place.startswith("s3://") for place in uses):
        yield Complaint(_S3, "a store that no path of the spec uses", "", severity="warning")


def _run(spec: Spec) -> Iterator[Complaint]:
    if spec.lease.renew * 2 > spec.lease.ttl:
        yield Complaint(("lease", "renew"), "more than half of ttl", "at least two renewals in a ttl")
    if spec.retry.unreachable.first > spec.retry.unreachable.longest:
        yield Complaint(("retry", "unreachable", "first"), "more than longest", "first up to longest")
    if "rows" in spec.flush.model_fields_set and spec.flush.rows > spec.limits.batch_rows:
        seen = f"more than limits.batch_rows ({spec.limits.batch_rows})"
        yield Complaint(("flush", "rows"), seen, "at most limits.batch_rows")
    if spec.flush.every > timedelta(days=1):
        yield Complaint(("flush", "every"), "more than a day", "at most 1d")
    number, unit = int(spec.spark.memory[:-1]), spec.spark.memory[-1]
    if unit == "m" and number < 512:
        yield Complaint(("spark", "memory"), f"'{spec.spark.memory}'", "at least 512m")


def _secrets(spec: Spec) -> Iterator[Complaint]:
    """References are followed late; here is only said which would lead nowhere."""
    for place in sorted(SECRETS):
        for path, secret in _found(spec, place, ()):
            yield from _secret(secret, path)


def _found(value: object, place: tuple[str, ...], path: Path) -> Iterator[tuple[Path, Secret]]:
    """The secrets at a place, which may be many."""
    if not place:
        if isinstance(value, Secret):
            yield path, value
        return
    step, *rest = place
    inner: Iterable[tuple[str | int, object]] = [(step, getattr(value, step, None))]
    if step == "*":
        inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, tuple) else ()
    for name, below in inner:
        yield from _found(below, tuple(rest), (*path, name))


def _secret(secret: Secret, path: Path) -> Iterator[Complaint]:
    try:
        secret.reveal()
    except BadReference as trouble:
        yield Complaint(path, trouble.seen.removesuffix("."), severity="warning")
        return
    if secret.is_open():
        yield Complaint(path, "a file that everybody on this machine may read", "mode 0600", severity="warning")


RULES: tuple[Callable[[Spec], Iterator[Complaint]], ...] = (
    _connection,
    _certificates,
    _registry,
    _schema_file,
    _avro_files,
    _topics,
    _state,
    _letter_columns,
    _storage,
    _run,
    _secrets,
)

# What is said of a pipeline's own tables and of those of each branch, in the same words.
BRANCH_RULES: tuple[Callable[[Spec], Iterator[Complaint]], ...] = (
    _template,
    _route,
    _widening,
    _places,
    check_explode,
    _transform,
    _tables,
    _masks,
    _keys,
    check_upkeep,
    _doubles,
    _generations,
)
