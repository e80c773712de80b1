"""Rebuild a lost ledger: from the newest intent, or from the tables' own logs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.delta.batch_commits import BatchCommit
from headrace.delta.features import WriterKind, writer_of
from headrace.delta.snapshot import TableState, load_state
from headrace.errors import HeadraceError, SourceGap, TransientError, TxnMismatch
from headrace.ledger import table_evidence
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Position
from headrace.pipeline.existing_tables import table_uris
from headrace.pipeline.table_entry import merging_of
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.stage.stager import delete_staged
from headrace.storage.store import Store
from headrace.version import VERSION
from headrace.write.intent import Intent
from headrace.write.tombstones import TOMBSTONES, Tombstones

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext


def rebuild(context: PipelineContext, accepted: bool = False) -> list[str]:
    """Rebuild a lost ledger; returns a message per change, none where no ledger was lost.

    `accepted`: the user confirms that the topics are the ones that were read, and gives up rows that cannot be
    restored.
    """
    ledger = context.ledger
    if not ledger.is_new and ledger.known.is_new and ledger.position():
        return _rebuild_known(context, accepted)
    if not ledger.is_new and not accepted:
        return []
    intent, evidence = ledger.newest_intent(), table_evidence.traces(_stores(context), context.spec.pipeline)
    highest = evidence.batch if evidence else 0
    if not ledger.is_new and highest <= ledger.batch + (ledger.open_batch() is not None):
        return []  # the ledger has all batches of the tables
    if max(highest, intent.batch if intent else 0) <= 1 and (intent is not None or evidence is None):
        return []  # the first batch is not recorded yet
    if intent is not None and intent.batch >= highest:
        message = _from_intent(context, intent)
    else:
        assert evidence is not None  # noqa: S101
        message = _from_tables(context, evidence, accepted)
    if evidence is not None:
        ledger.known.store(tables={**_known_tables(context, evidence), **ledger.known.tables})
    ledger.rebuild(message)
    context.report({"event": "rebuild", "pipeline": context.spec.pipeline, "batch": ledger.batch, "text": message})
    return [message]


def _known_tables(context: PipelineContext, evidence: table_evidence.TableEvidence) -> dict[str, KnownTable]:
    """The tables that have txns of the pipeline."""
    tables = {}
    for uri, state in evidence.tables.items():
        kind = WriterKind.MERGE if _merges(context.spec, uri) else writer_of(state)
        tables[uri] = KnownTable(state.table_id, kind, writers=(context.writer,))
    return tables


def _rebuild_known(context: PipelineContext, accepted: bool) -> list[str]:
    """Record the ids of topics and tables again, if the user confirms that they are the same."""
    spec, ledger = context.spec, context.ledger
    if not accepted:
        raise TxnMismatch(
            f"The state of '{spec.pipeline}' has a ledger, but the ids of its topics and tables (known_tables/) are "
            "lost: a topic or table that was recreated since cannot be detected.",
            hint=f"{table_evidence.ACCEPT} if the topics and tables are still the same.",
        )
    evidence = table_evidence.traces(_stores(context), spec.pipeline)
    topics = {topic for topic, _ in ledger.position()}
    ids = {name: topic_id for name, topic_id in context.source.topics().items() if name in topics}
    tables = _known_tables(context, evidence) if evidence else {}
    ledger.known.store(tables=tables, topics=ids, batch=ledger.batch)
    return ["the ids of topics and tables were lost; continues with the current ones"]


def _from_intent(context: PipelineContext, intent: Intent) -> str:
    """Rebuild from the newest intent. Exact: earlier batches are complete, and this one is finished next."""
    ranges = (*intent.idle_ranges, *intent.ranges)
    topics = {part.topic: part.topic_id for part in ranges if part.topic_id}
    context.ledger.known.store(topics=topics, batch=intent.batch - 1)
    context.ledger.assume(intent.batch - 1, {(part.topic, part.partition): part.start for part in ranges})
    return f"the ledger was lost; rebuilt from the intent of batch {intent.batch}"


def _from_tables(context: PipelineContext, evidence: table_evidence.TableEvidence, accepted: bool) -> str:
    known, pipeline = context.ledger.known, context.spec.pipeline
    unknown = table_evidence.topics(evidence, pipeline) - known.topics.keys()
    if unknown and not accepted:
        raise TxnMismatch(
            f"The state of '{pipeline}' is lost; {len(evidence.tables)} tables have its txns, up to batch "
            f"{evidence.batch}. Txns do not show whether {', '.join(sorted(unknown))} was recreated since."
            f"{_lost_tombstones(context, evidence)}",
            hint=f"{table_evidence.ACCEPT} if the topics are still the ones that were read.",
        )
    if unknown:
        topics = {name: topic_id for name, topic_id in context.source.topics().items() if name in unknown}
        known.store(topics=topics, batch=evidence.batch)
    try:
        return _from_txns(context, evidence)
    except TransientError:
        raise
    except HeadraceError as error:
        if not accepted:
            raise
        rebuilt = table_evidence.beyond(evidence, pipeline)
        context.ledger.assume(rebuilt.batch, _position(context, rebuilt))
        return (
            f"the ledger was lost; rebuilt from the tables' txns; continues after batch {rebuilt.batch}, and rows of "
            f"it that a table lacks are skipped: {error.message}"
        )


def _lost_tombstones(context: PipelineContext, evidence: table_evidence.TableEvidence) -> str:
    """The tables whose tombstones were lost with the state, as a sentence."""
    tables = [uri for uri, state in evidence.tables.items() if _missing_tombstones(context, uri, state) is not None]
    return f" The tombstones of {', '.join(sorted(tables))} are lost, too." if tables else ""


def reset_tombstones(context: PipelineContext) -> list[str]:
    """Let tables that have lost their tombstones continue without them."""
    messages = []
    for uri in context.ledger.known.tables:
        state = load_state(context.store(uri))
        tombstones = _missing_tombstones(context, uri, state) if state is not None else None
        rules = merging_of(context.spec.table_for(context.spec.route_of(uri) or RouteId()))
        if state is not None and tombstones is not None and rules is not None:
            tombstones.create_empty(state.schema, rules)
            messages.append(f"{uri}: continues without its tombstones, which are lost")
    return messages


def _missing_tombstones(context: PipelineContext, uri: str, state: TableState) -> Tombstones | None:
    """The tombstones of a table if they are lost; None if they are not, or if the table has none."""
    if not _merges(context.spec, uri):
        return None
    tombstones = Tombstones(context.state.child(f"{TOMBSTONES}/{state.table_id}"), context.writer)
    return tombstones if tombstones.lost(context.store(uri), state.version) else None


def _from_txns(context: PipelineContext, evidence: table_evidence.TableEvidence) -> str:
    spec, known = context.spec, context.ledger.known
    one_table = spec.route.kind == "fixed" and not (spec.branches or spec.topics)  # beside the dead letters
    rebuilt = table_evidence.rebuilt_position(
        evidence, spec.pipeline, Store(spec.dead_letters_uri).uri, one_table, known.since
    )
    context.ledger.assume(rebuilt.batch, _position(context, rebuilt), half=rebuilt.half is not None)
    message = (
        f"the ledger was lost; rebuilt from the txns of {len(evidence.tables)} tables: all have batch {rebuilt.batch}"
    )
    if rebuilt.half is None:
        return message
    context.ledger.begin(_reread(context, rebuilt.half))
    return f"{message}; batch {rebuilt.half.batch} may be missing from some tables, so it is read again for those"


def _reread(context: PipelineContext, half: BatchCommit) -> Intent:
    """Plan again the batch that only some tables have, with the same number: those that have it skip it."""
    spec, account = context.spec, half.account
    problem = f"The ledger of '{spec.pipeline}' is lost, and batch {half.batch} may be missing from some tables"
    if account["spec"] != spec.digest:
        raise TxnMismatch(
            f"{problem}; it was written with another spec (digest {account['spec'][:12]}; this one has "
            f"{spec.digest[:12]}).",
            hint=f"Run it once with that spec. {table_evidence.ACCEPT} to continue after that batch.",
        )
    ranges = table_evidence.ranges_of(half, context.ledger.known.topics)
    before = Intent(
        spec.pipeline,
        half.batch,
        ranges,
        (),
        table_evidence.counts_of(half),
        datetime.fromtimestamp(half.at / 1000, UTC),
        context.lease.token,
        spec.text,
        spec.digest,
        VERSION,
        idle_ranges=context.ledger.idle_ranges({(part.topic, part.partition) for part in ranges}),
    )
    try:
        intent = context.batches.restage(before)
    except SourceGap as gap:
        raise SourceGap(
            f"{problem}; it cannot be read again: {gap.message}",
            hint=f"{table_evidence.ACCEPT} to continue after it.",
            **gap.facts,
        ) from None
    if intent.counts.records() != before.counts.records():
        delete_staged((file for table in intent.tables for file in table.files), context.store)
        raise TxnMismatch(
            f"{problem}; its records now have different outcomes: {_text(intent.counts.records())}; it had "
            f"{_text(before.counts.records())}.",
            hint=f"{table_evidence.ACCEPT} to continue after it.",
        )
    return intent


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _position(context: PipelineContext, rebuilt: table_evidence.RebuiltPosition) -> Position:
    """The rebuilt position; topics that were recreated after the last commit start at their first record."""
    since, last = context.ledger.known.since, rebuilt.batch + (rebuilt.half is not None)
    recreated = {partition for partition in rebuilt.position if since.get(partition[0], 0) > last}
    if not recreated:
        return rebuilt.position
    bounds = context.source.bounds()
    return rebuilt.position | {part: bounds[part].earliest if part in bounds else 0 for part in recreated}


def _merges(spec: Spec, uri: str) -> bool:
    route_id = spec.route_of(uri)
    return route_id is not None and spec.table_for(route_id).merges is not None


def _stores(context: PipelineContext) -> list[Store]:
    """All locations that the pipeline may have written to."""
    spec = context.spec
    existing = table_uris(spec, context.state.profile)
    return [context.store(uri) for uri in sorted({spec.dead_letters_uri, *context.ledger.known.tables, *existing})]
