"""Rules for topics and start offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.start import Start
from headrace.spec.yaml_reader import Path


def check_topics_and_start(topics: Sequence[str], start: Start, source: Path) -> Iterator[UnlocatedDiagnostic]:
    """Check that topics are unique, and that start offsets are those of topics that are read."""
    for index, topic in enumerate(topics):
        if topic in topics[:index]:
            path, message = (*source, "topics", index), f"duplicate topic '{topic}'"
            yield UnlocatedDiagnostic(path, message, "unique topics", depends_on=())
    if isinstance(start, str) or start.offsets is None:
        return
    here = (*source, "start", "offsets")
    if any(isinstance(item, int) for item in start.offsets.values()):
        if len(topics) != 1:
            yield UnlocatedDiagnostic(
                here, "offsets without a topic", "{orders: {0: 12}}, unless there is exactly one topic"
            )
        return
    for topic in start.offsets:
        if topics and topic not in topics:
            yield UnlocatedDiagnostic(
                (*here, topic), "topic is not read by the pipeline", ", ".join(topics), closest(topic, topics)
            )
