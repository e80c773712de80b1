"""Rules for `topics`: entries that apply to topics of the source, each to some of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

from headrace.spec.danube_source import source_topic
from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import Spec, TopicSpec
from headrace.spec.units import spell_duration
from headrace.spec.yaml_reader import Path

_OTLP_FORMATS = ("otlp", "raw")


def check_topics_of_entries(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Each entry must be able to get records."""
    if spec.topics and spec.source_kind in ("files", "generate"):
        yield UnlocatedDiagnostic(("topics",), f"the source {spec.source_kind} has one topic", "a source with topics")
        return
    names, pattern = source_topics(spec)
    for index, entry in enumerate(spec.topics):
        here: Path = ("topics", index)
        yield from _selected_before(spec, entry, here)
        if names is not None:
            yield from _unread(spec, entry, names, pattern, here)
        yield from _flush(spec, entry, here)
        if spec.source.otlp is not None and entry.decode is not None and entry.decode.format not in _OTLP_FORMATS:
            message = f"{entry.decode.format} cannot decode export requests"
            yield UnlocatedDiagnostic((*here, "decode"), message, "otlp", depends_on=(("source", "otlp"),))


def _selected_before(spec: Spec, entry: TopicSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    """Topics that never reach an entry, as an earlier one selects them."""
    earlier = spec.topics[: int(here[1])]
    for nth, topic in enumerate(entry.topics):
        place: Path = (*here, "topic", nth)
        if topic in entry.topics[:nth]:
            yield UnlocatedDiagnostic(place, f"duplicate topic '{topic}'", "unique topics", depends_on=())
        if first := next((each for each in earlier if each.selects(topic)), None):
            message = f"'{topic}' is already selected by the entry '{first.name}'"
            yield UnlocatedDiagnostic(place, message, f"another topic, or this entry before '{first.name}'")


def _unread(
    spec: Spec, entry: TopicSpec, names: tuple[str, ...], pattern: str | None, here: Path
) -> Iterator[UnlocatedDiagnostic]:
    """Topics that the source does not read."""
    for nth, (written, topic) in enumerate(zip(entry.topic or (), entry.topics, strict=True)):
        is_named = written == topic or spec.source.danube is not None
        if not is_named or (topic not in names and not (pattern and re.search(pattern, topic))):
            expected = ", ".join(names) or f"a topic that matches {pattern}"
            message = f"the source does not read '{written}'"
            yield UnlocatedDiagnostic((*here, "topic", nth), message, expected, closest(topic, names))
    if entry.match is not None and pattern is None and not any(map(entry.selects, names)):
        yield UnlocatedDiagnostic((*here, "match"), "no topic of the source matches", ", ".join(names))


def source_topics(spec: Spec) -> tuple[tuple[str, ...] | None, str | None]:
    """Topics that the source reads, by their names in records, and the pattern of others; None if not known."""
    source = spec.source
    if (broker := source.kafka or source.rivven) is not None:
        return broker.topics or (), broker.pattern
    if source.danube is not None:
        return tuple(map(source_topic, source.danube.topics)), None
    if source.http is not None:
        return source.http.all_topics, source.http.pattern
    return None, None


def _flush(spec: Spec, entry: TopicSpec, here: Path) -> Iterator[UnlocatedDiagnostic]:
    if entry.flush is None:
        return
    if spec.source.rate is not None:
        message, rate = "not used with a maximum rate, which all topics share", (("source", spec.source_kind, "rate"),)
        yield UnlocatedDiagnostic(
            (*here, "flush"), message, f"flush, or source.{spec.source_kind}.rate", depends_on=rate
        )
    flush = spec.flush_of(entry)
    if "rows" in entry.flush.model_fields_set and flush.rows > spec.limits.batch_rows:
        message = f"more than limits.batch_rows ({spec.limits.batch_rows})"
        yield UnlocatedDiagnostic(
            (*here, "flush", "rows"), message, "at most limits.batch_rows", depends_on=(("limits", "batch_rows"),)
        )
    if flush.every > timedelta(days=1):
        yield UnlocatedDiagnostic((*here, "flush", "every"), "more than one day", "at most 1d", depends_on=())
    if spec.freshness is not None and spec.freshness.target <= flush.every:
        every = spell_duration(flush.every)
        message = f"records wait for up to {every} before a batch starts, which is more than freshness.target"
        yield UnlocatedDiagnostic((*here, "flush", "every"), message, "less than freshness.target")
