"""Route records to tables. Table names that come from data are validated here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.base import Rejects
from headrace.errors import UsageError
from headrace.reasons import Reason
from headrace.spec.routing import NAME, Routing
from headrace.transform.headers import last_header

MAX_LENGTH = 128


@dataclass(frozen=True)
class Routed:
    """Routes, rejects and filtered records."""

    values: pa.StringArray
    rejects: Rejects
    filtered: pa.Int64Array


def routes(routing: Routing, records: pa.Table, peeked: pa.StringArray | None = None) -> Routed:
    """Route each record; `peeked` has the values of the routing field or expression."""
    if routing.by == "fixed":
        return Routed(pa.repeat("", len(records)), Rejects(), pa.array([], pa.int64()))
    values = _candidates(routing, records, peeked)
    kinds, kind_of = _distinct(_under_topics(records, values) if routing.topics else values)
    verdicts = [_verdict(routing, kind) for kind in kinds]
    bad = np.array([verdict is not None for verdict in verdicts], bool)
    skipped = np.array([_skipped(routing, verdict) for verdict in verdicts], bool)
    return Routed(
        pa.array(kinds, pa.string(), mask=bad).take(pa.array(kind_of)),
        _rejects(verdicts, kind_of, bad & ~skipped),
        pa.array(np.flatnonzero(skipped[kind_of]), pa.int64()),
    )


def split_by_route(values: pa.StringArray) -> dict[str, pa.Int64Array]:
    """Ascending positions by route."""
    kinds, kind_of = _distinct(values)
    order = np.argsort(kind_of, kind="stable")
    bounds = np.searchsorted(kind_of[order], np.arange(len(kinds) + 1))
    parts = (order[start:end] for start, end in pairwise(bounds))
    return {kind: pa.array(part, pa.int64()) for kind, part in zip(kinds, parts, strict=True) if kind is not None}


def _candidates(routing: Routing, records: pa.Table, peeked: pa.StringArray | None) -> pa.Array:
    if routing.by == "topic":
        return _whole(records.column("topic"))
    if routing.by == "header":
        return last_header(_whole(records.column("headers")), routing.value or "")
    if peeked is None:
        raise UsageError(f"route.by {routing.by}: no values provided.")
    return peeked


def _under_topics(records: pa.Table, values: pa.Array) -> pa.Array:
    """Prefix routes with `topic:`; topic names have no colon."""
    topics = _whole(records.column("topic")).cast(values.type)
    return pc.binary_join_element_wise(topics, values, pa.scalar(":", values.type))


def _whole(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return array if isinstance(array, pa.Array) else pa.concat_arrays(array.chunks)


def _distinct(values: pa.Array) -> tuple[list[str | None], np.ndarray]:
    """Distinct values and the index of each record, so that rules run once per value."""
    encoded = values.dictionary_encode(null_encoding="encode")
    return [_as_text(value) for value in encoded.dictionary.to_pylist()], encoded.indices.to_numpy()


def _as_text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


Verdict = tuple[Reason, str] | None


def _verdict(routing: Routing, value: str | None) -> Verdict:
    """Reason why a value is not a valid route; None if it is valid."""
    if value is None:
        return Reason.UNROUTED, f"the {_called(routing)} is missing"
    if routing.topics:
        topic, _, value = value.partition(":")
        if not NAME.fullmatch(topic):
            return Reason.BAD_ROUTE, f"the topic {topic[:80]!r} is not a valid directory name"
    label = f"the {_called(routing)} {value[:80]!r}"
    if len(value) > MAX_LENGTH:
        return Reason.BAD_ROUTE, f"{label} has {len(value)} characters; the maximum is {MAX_LENGTH}"
    if routing.include is not None and not re.search(routing.include, value):
        return Reason.UNROUTED, f"{label} does not match include"
    if routing.exclude is not None and re.search(routing.exclude, value):
        return Reason.UNROUTED, f"{label} matches exclude"
    if not NAME.fullmatch(value):
        return Reason.BAD_ROUTE, (
            f"{label} is not a valid table name: letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return None


def _called(routing: Routing) -> str:
    if routing.by in ("field", "header"):
        return f"{routing.by} '{routing.value}'"
    return {"topic": "topic", "type": "type", "sql": "route"}[routing.by]


def _skipped(routing: Routing, verdict: Verdict) -> bool:
    return routing.unrouted == "skip" and verdict is not None and verdict[0] is Reason.UNROUTED


def _rejects(verdicts: list[Verdict], kind_of: np.ndarray, bad: np.ndarray) -> Rejects:
    positions = np.flatnonzero(bad[kind_of])
    reasons = [verdict for verdict in (verdicts[kind] for kind in kind_of[positions]) if verdict]
    return Rejects(positions.tolist(), [reason for reason, _ in reasons], [detail for _, detail in reasons])
