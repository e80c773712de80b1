"""Generate a spec for topics: sample records, detect the format and infer the columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import plural
from headrace.pipeline.preview import Preview, preview_records
from headrace.plan.inferred_columns import InferredColumns
from headrace.spec import Spec
from headrace.validate.load import loads

_BARE_TEXT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18"}
_MIN_RATIO = 0.5  # of records that must become rows for a format to be detected


@dataclass(frozen=True)
class DraftInputs:
    """Inputs of a draft, in spec notation."""

    brokers: str
    topics: Sequence[str]
    security: Mapping[str, Any] = field(default_factory=dict)  # tls, sasl, plaintext
    registry: Mapping[str, Any] | None = None
    pipeline: str = ""
    table: str = ""

    @property
    def name(self) -> str:
        """Pipeline name: as specified, or derived from the topic name."""
        derived = re.sub(r"[^a-z0-9_-]+", "-", self.topics[0].lower()).strip("-_")[:63]
        return self.pipeline or derived or "events"

    @property
    def path(self) -> str:
        """Table path: as specified, or derived from the topic name."""
        return self.table or ("./lake/{topic}" if len(self.topics) > 1 else f"./lake/{self.topics[0]}")

    def content(self, decode: Any) -> dict[str, Any]:
        """Spec with a format, as plain data."""
        kafka = {"brokers": self.brokers, "topics": list(self.topics), **self.security}
        content = {"pipeline": self.name, "source": {"kafka": kafka}, "decode": decode, "table": {"path": self.path}}
        return {**content, "route": {"by": "topic"}} if len(self.topics) > 1 else content

    def spec(self, decode: Any, base: Path) -> Spec:
        """Validated spec."""
        return loads(json.dumps(self.content(decode)), base, "the draft")[0]


@dataclass(frozen=True)
class Sample:
    """Sample records of topics and their detected format."""

    records: int
    empty: int  # records without a value
    framed: bool
    decode: Any
    preview: Preview | None  # None without records


def draft(connection: DraftInputs, records: int, base: Path) -> str:
    """Commented spec for topics, from some of their latest records."""
    from headrace.source.base import open_source

    source = open_source(connection.spec("raw", base))
    try:
        tail = source.tail(records, "end")
    finally:
        source.close()
    with_value = tail.filter(pc.is_valid(tail["value"]))
    values = [value for value in with_value["value"].to_pylist() if value]
    decode, preview = _detect(connection, values, with_value, base)
    sample = Sample(len(tail), len(tail) - len(with_value), bool(values) and _framed(values), decode, preview)
    return "\n".join(_lines(connection, sample)) + "\n"


def _detect(connection: DraftInputs, values: list[bytes], records: pa.Table, base: Path) -> tuple[Any, Preview | None]:
    """First format that decodes enough records, the most specific formats first; otherwise bytes."""
    if not len(records):
        return "json", None
    for decode in _candidates(values, connection.registry):
        preview = preview_records(connection.spec(decode, base), records)
        if preview.counts.routed >= _MIN_RATIO * len(records):
            return decode, preview
    return "raw", preview_records(connection.spec("raw", base), records)


def _candidates(values: list[bytes], registry: Mapping[str, Any] | None) -> Iterator[Any]:
    """Candidate formats for the bytes, as `decode` values."""
    if not values:
        return
    first = values[0]
    for compression, magic in _MAGIC.items():
        if first.startswith(magic):
            yield {"json": {"compression": compression}}
    if first.startswith(b"Obj\x01"):
        yield {"avro": {"container": True}}
    if _framed(values) and registry is not None:
        yield from ({name: {"registry": dict(registry), **options}} for name, options in _REGISTERED)
    if any(value.lstrip()[:1] in (b"{", b"[") for value in values):
        yield from _JSON
    if all(re.fullmatch(rb"\s*-?[0-9][0-9.eE+-]*\s*", value) for value in values):
        yield "number"
    if all(len(value) == 8 for value in values) and any(min(value) < 9 for value in values):
        yield "int64"
    if not any(min(value) < 9 for value in values):
        yield "string"


_REGISTERED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("avro", {"envelope": "debezium"}),
    ("avro", {}),
    ("json", {}),
    ("protobuf", {}),
)
_JSON: tuple[Any, ...] = (
    {"json": {"envelope": "debezium"}},
    {"json": {"envelope": "cloudevents"}},
    "json",
    {"json": {"rows": "array"}},
    {"json": {"rows": "lines"}},
)


def _framed(values: list[bytes]) -> bool:
    """Whether values start like the Confluent wire format: a zero byte and a schema id."""
    return all(len(value) > 5 and value[0] == 0 for value in values)


# ---- text of the spec ----


def _lines(connection: DraftInputs, sample: Sample) -> Iterator[str]:
    several = len(connection.topics) > 1
    yield f"# Generated by `headrace init` from {plural(sample.records, 'record')} of {', '.join(connection.topics)}."
    yield "# Next: `headrace check FILE --online`, `headrace preview FILE` (shows the rows), `headrace run FILE`."
    yield f"pipeline: {connection.name}  # permanent and unique: the app id of its Delta transactions"
    yield "source:"
    yield "  kafka:"
    yield f"    brokers: {_text(connection.brokers)}"
    yield f"    topics: [{', '.join(map(_text, connection.topics))}]"
    for key, value in connection.security.items():
        yield f"    {key}: {_flow(value)}"
    yield "    start: earliest  # or latest, {timestamp: …}, {offsets: …}; used on the first run only"
    yield f"decode: {_flow(sample.decode)}  # {_detection(sample)}"
    yield from _notes(connection, sample)
    if several:
        yield "route: {by: topic}  # one table per topic"
    yield "table:"
    yield f"  path: {_text(connection.path)}  # or s3://bucket/path; relative to this file"
    for columns in sample.preview.inferred if sample.preview else ():
        yield from _columns(columns, several)


def _detection(sample: Sample) -> str:
    if sample.preview is None:
        return "assumed: no record has a value" if sample.records else "assumed: there are no records yet"
    counts = sample.preview.counts
    reasons = ", ".join(sorted(set(sample.preview.dead_letters["reason"].to_pylist())))
    dead = f"; {counts.dead:,} would be dead letters ({reasons})" if counts.dead else ""
    return f"detected: {counts.routed:,} of {counts.read:,} records become rows{dead}"


def _notes(connection: DraftInputs, sample: Sample) -> Iterator[str]:
    if sample.empty:
        tombstones = plural(sample.empty, "tombstone")
        yield f"# {tombstones} (records with a null value) would be dead letters; see `tombstone: skip`."
    if sample.decode == "raw":
        yield "# No known format was detected: the bytes of each record are stored unchanged in `data`."
        if sample.framed and connection.registry is None:
            yield "# The values look like the Confluent wire format: run `headrace init` again with --registry URL."
    if "debezium" in _flow(sample.decode):
        yield "# Change events: set `mode: upsert` and `merge: {keys: [id]}` in the table to keep one row per key."


def _columns(inferred: InferredColumns, several: bool) -> Iterator[str]:
    """Columns as comments; uncomment them to declare the columns."""
    table = f" of {inferred.table}" if several else ""
    yield f"  # Columns of the sampled records{table}. A run infers them again; declare them to fix names and types."
    yield "  # columns:"
    for name, kind in inferred.columns.items():
        reason = _text_reason(inferred, name)
        if reason:  # a nested field cannot be declared as text, so the whole column is
            yield f"  #   - {{name: {_text(name)}, type: string, json: true}}  # {reason}"
        else:
            yield f"  #   - {{name: {_text(name)}, type: {_text(kind)}}}"


def _text_reason(inferred: InferredColumns, name: str) -> str:
    """Why a column must be JSON text; empty if it need not."""
    reasons = [
        f"values{path.removeprefix(name)} are {reason}"
        for path, reason in inferred.json_text.items()
        if path == name or path.startswith(f"{name}.")
    ]
    return "; ".join(reasons)


def _text(value: str) -> str:
    """YAML text, quoted if necessary."""
    bare = _BARE_TEXT.fullmatch(value) and value.lower() not in ("true", "false", "null", "yes", "no", "on", "off")
    return value if bare else json.dumps(value, ensure_ascii=False)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, bool):
        return str(value).lower()
    return _text(str(value))
