"""Takeover of tables that another writer has filled: its positions, verified and recorded as the pipeline's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.delta.txn import batch_txn
from headrace.errors import SourceGap, SourceRewound, SourceTopicGone, UsageError
from headrace.ledger.known_tables import TakenOver
from headrace.pipeline.context import PipelineContext
from headrace.pipeline.takeover import existing_tables, starts
from headrace.recovery.takeover_origin import Lasts, Origin, OriginKind, last_offsets_of
from headrace.source.base import Bounds, Partition


@dataclass(frozen=True, slots=True)
class Takeover:
    """A takeover to be recorded."""

    start: Mapping[Partition, int]  # the first offset to read of each partition
    bounds: Mapping[Partition, Bounds]
    tables: Mapping[str, TakenOver]
    is_recorded: bool  # whether the state has it already

    def record(self, context: PipelineContext) -> None:
        """Make it the start of the pipeline."""
        context.ledger.known.store_takeover(self.start, context.source.topics(), self.tables)


def plan_takeover(context: PipelineContext, origin: Origin, accept_gap: bool = False) -> Takeover:
    """Read the positions of another writer and verify them against the broker; nothing is changed."""
    tables = list(existing_tables(context.spec, context.state))
    if context.ledger.batch or context.ledger.open_batch() or any(_own(context) in each.txns for each in tables):
        raise UsageError(
            f"The pipeline '{context.spec.pipeline}' has batches; its position is in its ledger.",
            hint="Take over with a pipeline of another name.",
        )
    app_id = origin.name if origin.kind is OriginKind.KAFKA_DELTA_INGEST else ""
    for each in tables if app_id else ():
        if each.rules.txn.app_id not in (None, app_id):
            raise UsageError(
                f"The spec keeps the txns of '{each.rules.txn.app_id}' current in {each.store.uri}.",
                hint=f"Use --from kafka-delta-ingest:{each.rules.txn.app_id}, or change table.txn.",
            )
    bounds = context.source.bounds()
    lasts = last_offsets_of(origin, context.source, tables, context.state.profile)
    verified = {uri: _verified(each, bounds, accept_gap) for uri, each in lasts.items()}
    start = starts(verified.values(), context.source.start(bounds))
    # After a rewind, txns beyond the end of the topic do not show whether kafka-delta-ingest still writes.
    rewound = {uri for uri, each in lasts.items() if any(last > verified[uri][part] for part, last in each.items())}
    taken_over = {uri: TakenOver("" if uri in rewound else app_id, offsets) for uri, offsets in verified.items() if uri}
    known = context.ledger.known
    is_recorded = known.start == start and taken_over.items() <= known.taken_over.items()
    return Takeover(start, bounds, taken_over, is_recorded)


def _own(context: PipelineContext) -> str:
    return batch_txn(context.spec.pipeline)


def _verified(lasts: Lasts, bounds: Mapping[Partition, Bounds], accept_gap: bool) -> Lasts:
    """The offsets, if the broker has the records after them; `accept_gap`: moved to the nearest that it has."""
    verified: Lasts = {}
    for (topic, number), last in sorted(lasts.items()):
        where, following = f"{topic}/{number}", last + 1
        bound = bounds.get((topic, number))
        if bound is None:
            raise SourceTopicGone(
                f"The partition {where} does not exist, but offset {last} was written from it.",
                hint="Check source.kafka and --from: the offsets are of another topic.",
            )
        if following < bound.earliest and not accept_gap:
            raise SourceGap(
                f"{where}: the broker no longer has offsets {following} to {bound.earliest - 1} (its earliest is "
                f"{bound.earliest}); {last} is the last one that was written.",
                hint="Add --accept-gap to continue after them; these records are lost.",
                topic=topic,
                partition=number,
                wanted=following,
                earliest=bound.earliest,
            )
        if following > bound.latest and not accept_gap:
            raise SourceRewound(
                f"{where}: the broker ends at {bound.latest}, but offset {last} was written.",
                hint="Check source.kafka and --from. If the topic was restored from a backup, add --accept-gap to "
                "continue at its end.",
                topic=topic,
                partition=number,
                read=following,
                latest=bound.latest,
            )
        verified[topic, number] = min(max(following, bound.earliest), bound.latest) - 1
    return verified
