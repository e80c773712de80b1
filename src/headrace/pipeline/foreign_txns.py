"""Txns of kafka-delta-ingest in the tables of a pipeline: which there are, and the versions that a commit sets."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from headrace.delta.snapshot import TableState, all_txns
from headrace.delta.txn import foreign_txn, foreign_txns
from headrace.errors import TableFeature, TakeoverRequired, TxnMismatch
from headrace.ledger.known_tables import TakenOver
from headrace.source.ranges import Range
from headrace.spec import Spec, TableSpec
from headrace.spec.txn import KAFKA_DELTA_INGEST
from headrace.storage.store import Store

Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class ForeignTxns:
    """The txns that one app id of kafka-delta-ingest has in a table, one for each partition of a topic."""

    app_id: str
    partitions: tuple[tuple[str, int], ...]
    are_current: bool  # whether the pipeline keeps them current

    @classmethod
    def of(
        cls, spec: Spec, rules: TableSpec, taken_over: TakenOver | None, partitions: Iterable[tuple[str, int]]
    ) -> ForeignTxns:
        """The txns of a table of these partitions: as the spec says, or the takeover; none where neither does."""
        app_id = rules.txn.app_id or (taken_over.app_id if taken_over else "")
        topics = (spec.source.kafka.topics if spec.source.kafka else None) or ()
        if not app_id or len(topics) != 1 or (rules.txn.app_id is None and rules.txn.ignores(app_id)):
            return NO_FOREIGN_TXNS
        own = tuple(sorted(each for each in partitions if each[0] in topics))
        return cls(app_id, own, rules.txn.app_id is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(foreign_txn(self.app_id, number) for _, number in self.partitions)

    def offsets(self, state: TableState | None) -> dict[tuple[str, int], int]:
        """The last offset of each partition that has a txn."""
        txns = state.txns if state is not None else {}
        named = zip(self.names, self.partitions, strict=True)
        return {partition: txns[name] for name, partition in named if name in txns}

    def changes(self, versions: Mapping[str, int], read: Iterable[Range], start: Offsets) -> dict[str, tuple[int, int]]:
        """The version of each txn before and after a commit (-1: none); `versions`: those before it, by name.

        `read`: the position of each partition after the batch. A partition that was not read since its `start` gets no
        txn: kafka-delta-ingest reads it as it is configured.
        """
        if not self.are_current:
            return {}
        after = dict(versions)
        for part in read:
            name = foreign_txn(self.app_id, part.partition)
            if part.until > start.get((part.topic, part.partition), 0):
                after[name] = max(part.until - 1, after.get(name, -1))
        return {name: (versions.get(name, -1), version) for name, version in after.items()}

    def check_stopped(self, uri: str, offsets: Offsets, state: TableState | None) -> None:
        """TxnMismatch if kafka-delta-ingest has written to a table after the takeover, without `table.txn`."""
        for partition, last in () if self.are_current else self.offsets(state).items():
            if last > (before := offsets.get(partition, -1)):
                raise TxnMismatch(
                    f"{KAFKA_DELTA_INGEST} (app id '{self.app_id}') has written {partition[0]}/{partition[1]} up to "
                    f"offset {last} to {uri}; the pipeline took it over after offset {before}, and reads these records "
                    "as well.",
                    hint="Stop kafka-delta-ingest. If the pipeline has no batch yet, run `headrace takeover SPEC "
                    f"--from {KAFKA_DELTA_INGEST}:{self.app_id}` again; otherwise delete the rows of one of them, and "
                    f"set `table.txn: {{ignore: [{self.app_id}]}}`.",
                )


NO_FOREIGN_TXNS = ForeignTxns("", (), False)


def undecided(rules: TableSpec, txns: Mapping[str, int], partitions: Collection[int]) -> dict[str, dict[int, int]]:
    """Txns of kafka-delta-ingest, by app id, if the spec does not tell whether to continue after them.

    Those of other partitions than the source has belong to another topic; so do those of other app ids beside the one
    that the pipeline continues after.
    """
    by_app_id = foreign_txns(txns)
    if rules.txn.app_id in by_app_id:
        return {}
    return {
        app_id: offsets
        for app_id, offsets in by_app_id.items()
        if not rules.txn.ignores(app_id) and not offsets.keys().isdisjoint(partitions)
    }


def txns_of(store: Store, version: int) -> dict[str, int]:
    """Every txn of a table; none if its checkpoints have a format that kafka-delta-ingest does not write either."""
    try:
        return all_txns(store, version)
    except TableFeature:
        return {}


def takeover_required(uri: str, txns: Mapping[str, Mapping[int, int]]) -> TakeoverRequired:
    """The error for a table with undecided txns."""
    listed = [
        f"{foreign_txn(app_id, partition)} = {offset}"
        for app_id, offsets in txns.items()
        for partition, offset in sorted(offsets.items())
    ]
    app_id = next(iter(txns))
    return TakeoverRequired(
        f"{uri} has txns of {KAFKA_DELTA_INGEST}: {', '.join(listed[:5])}{', …' if len(listed) > 5 else ''}. Records "
        "that it has written would be written again.",
        hint=f"Stop it and run `headrace takeover SPEC --from {KAFKA_DELTA_INGEST}:{app_id}` to continue after them; "
        f"with `table.txn: {{{KAFKA_DELTA_INGEST}: {app_id}}}`, the pipeline also keeps these txns current. If they "
        f"belong to another source, set `table.txn: {{ignore: [{', '.join(txns)}]}}`.",
    )
