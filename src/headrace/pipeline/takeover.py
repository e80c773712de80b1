"""Takeover of the tables of kafka-delta-ingest: which records they have, and where the pipeline continues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.delta.log import newest_version
from headrace.delta.txn import foreign_txn, foreign_txns
from headrace.errors import SourceRewound, SourceTopicGone
from headrace.ledger.known_tables import TakenOver
from headrace.pipeline.existing_tables import table_uris
from headrace.pipeline.foreign_txns import takeover_required, txns_of, undecided
from headrace.source.base import Bounds, Partition
from headrace.spec import Spec, TableSpec
from headrace.spec.route_id import RouteId
from headrace.spec.txn import KAFKA_DELTA_INGEST
from headrace.storage.store import Store

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext

Offsets = Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class ExistingTable:
    """A table of the spec that exists, with all its txns."""

    store: Store
    rules: TableSpec
    txns: Mapping[str, int]

    def written(self, app_id: str, topic: str) -> dict[Partition, int]:
        """The last offset of each partition that kafka-delta-ingest has written to the table."""
        return {(topic, number): last for number, last in foreign_txns(self.txns).get(app_id, {}).items()}


def existing_tables(spec: Spec, state: Store) -> Iterator[ExistingTable]:
    """The tables that exist at the paths of a spec; `state`: a store with its credentials."""
    for uri in table_uris(spec, state.profile):
        store, route_id = Store(uri, state.profile), spec.route_of(uri)
        if (version := newest_version(store)) is not None:
            yield ExistingTable(store, spec.table_for(route_id or RouteId()), txns_of(store, version))


def takes_over(spec: Spec) -> bool:
    """Whether all tables of a spec continue after kafka-delta-ingest."""
    return all(rules.txn.app_id for branch in spec.branch_specs().values() for rules in branch.all_rules())


def take_over(context: PipelineContext) -> None:
    """Before a run reads records: continue after kafka-delta-ingest as the spec says; TakeoverRequired if it does not.

    A pipeline with batches continues after kafka-delta-ingest where that has continued after the pipeline.
    """
    spec, known = context.spec, context.ledger.known
    if spec.source.kafka is None:
        return
    if context.ledger.batch == 0:
        _begin_new(context)
    elif takes_over(spec):
        _follow(context)
    # From now on the pipeline itself changes these txns, also if the option is removed later.
    watched = [uri for uri, each in known.taken_over.items() if each.app_id]
    known.unwatch(uri for uri in watched if spec.table_for(spec.route_of(uri) or RouteId()).txn.app_id)


def _begin_new(context: PipelineContext) -> None:
    known = context.ledger.known
    tables = [each for each in existing_tables(context.spec, context.state) if foreign_txns(each.txns)]
    if not tables:
        return
    bounds = context.source.bounds()
    numbers = {number for _, number in bounds}
    for each in tables:
        txns = undecided(each.rules, each.txns, numbers)
        if each.store.uri not in known.taken_over and txns:
            raise takeover_required(each.store.uri, txns)
    taken_over: dict[str, TakenOver] = {}
    for each in tables:
        if (app_id := each.rules.txn.app_id) is not None:
            [topic] = context.spec.kafka.topics or ()
            before = known.taken_over.get(each.store.uri, TakenOver()).offsets
            written = each.written(app_id, topic)
            _check_within(each.store.uri, app_id, written, bounds)
            lasts = {part: max(written.get(part, -1), before.get(part, -1)) for part in {*written, *before}}
            taken_over |= {each.store.uri: TakenOver(app_id, lasts)} if lasts else {}
    if taken_over:
        default = {**context.source.start(bounds), **(known.start or {})}
        start = starts([each.offsets for each in taken_over.values()], default)
        if (start, {**known.taken_over, **taken_over}) != (known.start, known.taken_over):
            known.store_takeover(start, context.source.topics(), taken_over)
            context.report(takeover_event(context.spec.pipeline, start, taken_over))


def _check_within(uri: str, app_id: str, lasts: Offsets, bounds: Mapping[Partition, Bounds]) -> None:
    """Raise an error if txns are not of the topic as it is now: its records would be taken for written ones."""
    for (topic, number), last in sorted(lasts.items()):
        bound = bounds.get((topic, number))
        txn = f"{uri} has the txn {foreign_txn(app_id, number)} = {last}"
        if bound is None:
            raise SourceTopicGone(
                f"{txn}, but the partition {topic}/{number} does not exist.",
                hint="Check source.kafka.topics and table.txn: the txn is of another topic.",
            )
        if last >= bound.latest:
            raise SourceRewound(
                f"{txn}, but {topic}/{number} ends at {bound.latest}: the topic was replaced or restored.",
                hint=f"Use another app id, such as `table.txn: {{{KAFKA_DELTA_INGEST}: {app_id}_2, ignore: "
                f"[{app_id}]}}`, also if {KAFKA_DELTA_INGEST} is to continue: it would skip the new records, too.",
                topic=topic,
                partition=number,
                read=last + 1,
                latest=bound.latest,
            )


def starts(tables: Iterable[Offsets], default: Offsets) -> dict[Partition, int]:
    """The first offset to read of each partition: the lowest that a table lacks; `tables`: the last ones they have.

    A table that has other partitions only lacks all records of a partition, from its default start on.
    """
    lasts = list(tables)
    partitions = {partition for each in lasts for partition in each}
    lacking = {
        partition: min(each[partition] + 1 if partition in each else default.get(partition, 0) for each in lasts)
        for partition in partitions
    }
    return {**default, **lacking}


def takeover_event(pipeline: str, offsets: Offsets, tables: Iterable[str]) -> dict[str, Any]:
    """The event of a takeover; `offsets`: the first one to read of each partition."""
    return {
        "event": "takeover",
        "pipeline": pipeline,
        "offsets": [{"topic": each[0], "partition": each[1], "offset": at} for each, at in sorted(offsets.items())],
        "tables": sorted(tables),
        "text": f"continues after {KAFKA_DELTA_INGEST} at "
        + ", ".join(f"{topic}/{number}: {at}" for (topic, number), at in sorted(offsets.items())),
    }


def _follow(context: PipelineContext) -> None:
    """Skip the records that kafka-delta-ingest has written to all tables after the last batch of the pipeline."""
    ledger, position = context.ledger, context.ledger.position()
    [topic] = context.spec.kafka.topics or ()
    tables: dict[str, Offsets] = {}
    bounds = context.source.bounds()
    for each in existing_tables(context.spec, context.state):
        app_id = each.rules.txn.app_id or ""
        if written := each.written(app_id, topic):
            _check_within(each.store.uri, app_id, written, bounds)
            tables[each.store.uri] = written
    if not tables:
        return
    lowest = {partition: min(each.get(partition, -1) + 1 for each in tables.values()) for partition in position}
    if ahead := {partition: offset for partition, offset in lowest.items() if offset > position[partition]}:
        ledger.decide(f"{KAFKA_DELTA_INGEST} has written the records before these offsets", ahead)
        context.report(takeover_event(context.spec.pipeline, ahead, tables))
