"""Where another writer has stopped: positions in the txns of kafka-delta-ingest, a consumer group or a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.delta.txn import foreign_txns
from headrace.errors import UsageError, plural
from headrace.pipeline.takeover import ExistingTable
from headrace.source.base import GroupSource, Partition, Source
from headrace.spec.base import InvalidValue
from headrace.spec.start import first_offsets
from headrace.storage.base import NotFound
from headrace.storage.store import Profile, Store

Lasts = dict[Partition, int]  # the last offset that was written


class OriginKind(StrEnum):
    """What another writer has stored its positions in."""

    KAFKA_DELTA_INGEST = "kafka-delta-ingest"
    GROUP = "group"
    CHECKPOINT = "checkpoint"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True)
class Origin:
    """The value of `--from`."""

    kind: OriginKind
    name: str  # app id, group, path or JSON

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Parse `KIND:VALUE`."""
        kind, _, name = text.partition(":")
        if kind not in list(OriginKind) or not name.strip():
            raise UsageError(
                f"--from: invalid value: '{text}'.",
                hint="Use kafka-delta-ingest:APP_ID, group:NAME, checkpoint:PATH or offsets:JSON.",
            )
        return cls(OriginKind(kind), name.strip())


def last_offsets_of(
    origin: Origin, source: Source, tables: Sequence[ExistingTable], profile: Profile
) -> dict[str, Lasts]:
    """The last offset of each partition that was written to each table of the pipeline, by the table's path."""
    topics = sorted(source.topics())
    if origin.kind is OriginKind.KAFKA_DELTA_INGEST:
        return _of_txns(origin.name, _only(topics), tables)
    if origin.kind is OriginKind.GROUP:
        following = _of_group(origin.name, source)
    elif origin.kind is OriginKind.CHECKPOINT:
        following = _of_checkpoint(Store(origin.name, profile), topics, tables)
    else:
        following = _of_json(origin.name, topics)
    lasts = {partition: offset - 1 for partition, offset in following.items()}
    return {each.store.uri: lasts for each in tables} or {"": lasts}


def _only(topics: Sequence[str]) -> str:
    if len(topics) != 1:
        raise UsageError(
            f"The pipeline reads {plural(len(topics), 'topic')}: {', '.join(topics[:5])}. Offsets without a topic "
            "need exactly one.",
            hint='Name the topics: `--from \'offsets:{"TOPIC": {"0": OFFSET}}\'`.',
        )
    return topics[0]


def _of_txns(app_id: str, topic: str, tables: Sequence[ExistingTable]) -> dict[str, Lasts]:
    lasts = {each.store.uri: written for each in tables if (written := each.written(app_id, topic))}
    if not lasts:
        others = sorted({name for each in tables for name in foreign_txns(each.txns)})
        paths = ", ".join(each.store.uri for each in tables[:5]) or "the paths of the spec"
        raise UsageError(
            f"No table has txns of the app id '{app_id}': {paths}.",
            hint=f"App ids with such txns: {', '.join(others)}." if others else "Check the path and the storage.",
        )
    return lasts


def _of_group(group: str, source: Source) -> dict[Partition, int]:
    if not isinstance(source, GroupSource):
        raise UsageError("Only Kafka has consumer groups.", hint="Use `--from offsets:{…}`.")
    if members := source.group_members(group):
        raise UsageError(
            f"The consumer group '{group}' has {plural(members, 'active member')}.",
            hint="Stop its consumers: records that they write after the takeover would be written twice.",
        )
    offsets = source.group_offsets(group)
    if not offsets:
        raise UsageError(f"The consumer group '{group}' has no offsets for the topics of the spec.")
    return dict(offsets)


def _of_json(text: str, topics: Sequence[str]) -> dict[Partition, int]:
    try:
        value = first_offsets(json.loads(text))
    except (ValueError, InvalidValue) as error:
        raise UsageError(
            f"--from: invalid offsets: '{text[:100]}'.",
            hint='Use the first offset to read of each partition: `{"0": 12}`, or `{"TOPIC": {"0": 12}}`.',
        ) from error
    if not isinstance(next(iter(value.values())), Mapping):
        value = {_only(topics): value}
    return _partitions(value)


def _partitions(value: Mapping[str, Mapping[str, int]]) -> dict[Partition, int]:
    return {(topic, int(number)): offset for topic, offsets in value.items() for number, offset in offsets.items()}


# ---- checkpoints of Spark ----


def _of_checkpoint(store: Store, topics: Sequence[str], tables: Sequence[ExistingTable]) -> dict[Partition, int]:
    """The offsets after the last batch that is in the tables.

    `offsets/N` has the ends of batch N and is written before it, `commits/N` after it.
    """
    started, finished = (_numbers(store, folder) for folder in ("offsets", "commits"))
    if not started:
        raise UsageError(f"{store.uri} is not a checkpoint of a streaming query: it has no offsets.")
    batch = max(started)
    if batch not in finished and not _is_written(store, batch, tables):
        if batch - 1 not in started:
            raise UsageError(
                f"Batch {batch} of the query was not finished, and {store.uri} has no offsets of the one before.",
                hint="Start the query again until the batch is finished, or use `--from offsets:{…}`.",
            )
        batch -= 1
    offsets = _partitions(_kafka_offsets(store, batch, topics))
    if not offsets:
        raise UsageError(f"Batch {batch} of {store.uri} has no offsets of {', '.join(topics[:5])}.")
    return offsets


def _numbers(store: Store, folder: str) -> set[int]:
    names = (each.path.rpartition("/")[2] for each in store.list(folder))
    return {int(name) for name in names if name.isdecimal()}


def _is_written(store: Store, batch: int, tables: Iterable[ExistingTable]) -> bool:
    """Whether a batch that was not finished is in the tables, by the txn that Delta's sink has for the query."""
    query = ""
    with suppress(NotFound, ValueError, KeyError):
        query = str(json.loads(store.get("metadata"))["id"])
    versions = {each.txns[query] for each in tables if query in each.txns}
    if len(versions) != 1:
        reason = "no table has the txn of the query, so it is unknown whether its rows are written"
        if versions:
            reason = f"the tables are at different batches ({min(versions)}, {max(versions)})"
        raise UsageError(
            f"Batch {batch} of the query was started and not finished, and {reason}: {store.uri}.",
            hint="Start the query again until the batch is finished, then stop it; or use `--from offsets:{…}`.",
        )
    return versions.pop() >= batch


def _kafka_offsets(store: Store, batch: int, topics: Sequence[str]) -> dict[str, Any]:
    """The offsets of these topics; a line for each source of the query follows the version and the metadata."""
    lines = store.get(f"offsets/{batch}").decode().splitlines()
    by_topic: dict[str, Any] = {}
    for line in lines[2:]:
        text = line if line.startswith("{") else line.partition(":")[2]  # version 2: the name of the source, a colon
        with suppress(ValueError):
            for topic, offsets in json.loads(text).items():
                if topic in topics and topic in by_topic and by_topic[topic] != offsets:
                    raise UsageError(
                        f"The query reads {topic} twice, with different offsets: {store.uri}.",
                        hint="Use `--from offsets:{…}`.",
                    )
                if topic in topics and isinstance(offsets, dict):
                    by_topic[topic] = offsets
    return by_topic
