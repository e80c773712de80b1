"""Verify the source against the ledger before a record is read: same topics, and no gap at the next offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.errors import SourceGap, SourceRepartitioned, SourceReplaced, SourceRewound, SourceTopicGone
from headrace.ledger.ledger import Ledger
from headrace.source.base import Bounds, Offsets, Partition, Source
from headrace.source.ranges import Range

if TYPE_CHECKING:
    from headrace.spec import Spec


def verify_source(source: Source, ledger: Ledger, by_offset: bool = False) -> tuple[dict[str, str], Offsets]:
    """The topics with their ids, and the position to read from; an error when source and ledger disagree.

    `by_offset`: a table orders changes by the offsets of their records.
    """
    topics = same_topics(source, ledger.known.topics)
    bounds = {each: offsets for each, offsets in source.bounds().items() if each[0] in topics}
    if by_offset and (added := added_partitions(bounds, ledger)):
        raise _repartitioned(added)
    _start_new(source, ledger, topics, bounds)
    known = {
        each: offset
        for each, offset in ledger.position().items()
        if each[0] in topics and (offset or each in bounds)  # a partition at 0 that no longer exists was never read
    }
    for each, offset in known.items():
        _check(each, offset, bounds)
    return topics, known


def ordered_by_offset(spec: Spec) -> bool:
    """Whether a table of the spec orders changes by the offsets of their records."""
    merges = [rules.merges for each in spec.branch_specs().values() for rules in each.all_rules()]
    return any(merge is not None and merge.sequence_by is None for merge in merges)


def added_partitions(bounds: Iterable[Partition], ledger: Ledger) -> list[Partition]:
    """Partitions that were added to topics since they were first read."""
    position = ledger.position()
    read = {topic for topic, _ in position}
    return sorted(each for each in bounds if each[0] in read and each not in position)


def _repartitioned(added: Sequence[Partition]) -> SourceRepartitioned:
    named = ", ".join(f"{topic}/{partition}" for topic, partition in added[:10])
    return SourceRepartitioned(
        f"Partitions were added ({named}{', …' if len(added) > 10 else ''}), and a table orders changes by partition "
        "and offset (it has no `merge.sequence_by`): newer changes of a key that moved to a lower partition would be "
        "dropped as older ones.",
        hint="Order changes by a column (`merge.sequence_by`) and run again; or, when every key stays in its "
        "partition, run `headrace resume SPEC --accept-added-partitions`.",
        topic=added[0][0],
    )


def _start_new(source: Source, ledger: Ledger, topics: Mapping[str, str], bounds: Mapping[Partition, Bounds]) -> None:
    """Record the start offsets of new partitions, so that a restart uses the same.

    `start` applies to the partitions that exist when the pipeline first starts. A partition added to a topic that is
    read starts at offset 0, so that records which the broker has deleted are a gap; a new topic at its first record.
    """
    position = ledger.position()
    if not position and ledger.known.start is None:
        begin = source.start(bounds)
    elif new := [each for each in bounds if each not in position]:
        read = {topic for topic, _ in position}
        begin = {each: 0 if each[0] in read else bounds[each].earliest for each in new}
    else:
        return
    ids = {topic: topics[topic] for topic, _ in begin}
    ledger.known.store_start(begin, ids, ledger.batch + 1)


def same_topics(source: Source, known: Mapping[str, str]) -> dict[str, str]:
    """The source's topics; SourceReplaced when one has another id than before."""
    topics = source.topics()
    for name, topic_id in topics.items():
        if known.get(name, topic_id) != topic_id:
            raise SourceReplaced(
                f"The topic '{name}' was deleted and created again: its id is {topic_id}, it was {known[name]}.",
                hint="Run `headrace resume SPEC --accept-replaced-topic` to read the new topic from its first record.",
                topic=name,
            )
    return topics


def still_there(source: Source, ranges: Iterable[Range]) -> None:
    """SourceGap when the broker no longer holds ranges that must be read again."""
    bounds = source.bounds()
    for each in ranges:
        try:
            _check((each.topic, each.partition), each.start, bounds)
        except SourceTopicGone as gone:
            raise SourceTopicGone(
                f"{gone.message} Its offsets {each.start} to {each.until - 1} must be read again.",
                hint="Restore it, or run `headrace resume SPEC --accept-gap` to skip these records.",
            ) from None


def readable_ranges(source: Source, ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The parts of the ranges that the source still has."""
    topics, bounds, readable = source.topics(), source.bounds(), []
    for each in ranges:
        bound = bounds.get((each.topic, each.partition), Bounds(0, 0))
        start, until = max(each.start, bound.earliest), min(each.until, bound.latest)
        if topics.get(each.topic) == each.topic_id and start < until:
            readable.append(replace(each, start=start, until=until))
    return tuple(readable)


def _check(each: Partition, offset: int, bounds: Mapping[Partition, Bounds]) -> None:
    topic, partition = each
    if each not in bounds:
        raise SourceTopicGone(
            f"The partition {topic}/{partition} no longer exists.",
            hint="Restore it, or remove the topic from the spec.",
        )
    bound = bounds[each]
    if offset < bound.earliest:
        raise SourceGap(
            f"{topic}/{partition}: the broker no longer has offsets {offset} to {bound.earliest - 1} "
            f"(its earliest is {bound.earliest}); they were never read.",
            hint="Run `headrace resume SPEC --accept-gap` to record the gap and continue after it.",
            topic=topic,
            partition=partition,
            wanted=offset,
            earliest=bound.earliest,
        )
    if offset > bound.latest:
        raise SourceRewound(
            f"{topic}/{partition}: the broker ends at {bound.latest}, but offset {offset - 1} was already read.",
            hint="If it was restored from a backup, run `headrace resume SPEC --accept-gap` to continue from its end.",
            topic=topic,
            partition=partition,
            read=offset,
            latest=bound.latest,
        )
