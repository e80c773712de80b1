"""A state folder that lost its ledger gets a new one: from the batch last begun, or from the tables' own logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from headrace.delta.batch_commits import BatchCommit
from headrace.delta.features import WriterKind, writer_of
from headrace.delta.snapshot import TableState, load_state
from headrace.errors import HeadraceError, SourceGap, TransientError, TxnMismatch
from headrace.ledger import table_evidence
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Position
from headrace.pipeline.table_entry import merging_of
from headrace.spec import Spec
from headrace.spec.model import template
from headrace.spec.route_id import RouteId
from headrace.spec.uris import folder_of
from headrace.stage.stager import delete_staged
from headrace.storage.store import Profile, Store
from headrace.version import VERSION
from headrace.write.intent import Intent
from headrace.write.tombstones import TOMBSTONES, Tombstones

if TYPE_CHECKING:
    from headrace.pipeline.context import PipelineContext


def rebuild(context: PipelineContext, accepted: bool = False) -> list[str]:
    """Write a ledger anew where there was one; answers in words what was done, nothing where none was lost.

    `accepted`: a person says that the topics are the ones that were read, and that what cannot be known is given up.
    """
    ledger = context.ledger
    if not ledger.is_new and ledger.known.is_new and ledger.position():
        return _known_again(context, accepted)
    if not ledger.is_new and not accepted:
        return []
    begun, found = ledger.newest_intent(), table_evidence.traces(_stores(context), context.spec.pipeline)
    highest = found.batch if found else 0
    if not ledger.is_new and highest <= ledger.batch + (ledger.open_batch() is not None):
        return []  # the ledger tells all that the tables hold
    if max(highest, begun.batch if begun else 0) <= 1 and (begun is not None or found is None):
        return []  # the first batch is yet to be booked
    if begun is not None and begun.batch >= highest:
        said = _from_begun(context, begun)
    else:
        assert found is not None  # noqa: S101
        said = _from_tables(context, found, accepted)
    if found is not None:
        ledger.known.remember(tables={**_known(context, found), **ledger.known.tables})
    ledger.rebuild(said)
    context.report({"event": "rebuild", "pipeline": context.spec.pipeline, "batch": ledger.batch, "text": said})
    return [said]


def _known(context: PipelineContext, found: table_evidence.TableEvidence) -> dict[str, KnownTable]:
    """The tables that have txns of the pipeline."""
    return {
        uri: KnownTable(state.table_id, _kind(context.spec, uri, state), writers=(context.writer,))
        for uri, state in found.tables.items()
    }


def _known_again(context: PipelineContext, accepted: bool) -> list[str]:
    """A ledger is there, and the ids of topics and tables are lost: only a person can say that they are the same."""
    spec, ledger = context.spec, context.ledger
    if not accepted:
        raise TxnMismatch(
            f"The state of '{spec.pipeline}' has a ledger, but what is known of its topics and tables (known_tables/) "
            "is lost: one that was created again since cannot be told from the one before.",
            hint=f"{table_evidence.ACCEPT} if the topics and tables are still the same.",
        )
    found = table_evidence.traces(_stores(context), spec.pipeline)
    topics = {topic for topic, _ in ledger.position()}
    ids = {name: topic_id for name, topic_id in context.source.topics().items() if name in topics}
    ledger.known.remember(tables=_known(context, found) if found else {}, topics=ids, batch=ledger.batch)
    return ["the ids of topics and tables were lost; goes on with those that are there now"]


def _from_begun(context: PipelineContext, begun: Intent) -> str:
    """Exact: all before the batch last begun is done, and the batch itself is about to be finished."""
    stood = (*begun.idle_ranges, *begun.ranges)
    context.ledger.known.remember(
        topics={each.topic: each.topic_id for each in stood if each.topic_id}, batch=begun.batch - 1
    )
    context.ledger.assume(begun.batch - 1, {(each.topic, each.partition): each.start for each in stood})
    return f"the ledger was lost; rebuilt from batch {begun.batch}, the last one begun"


def _from_tables(context: PipelineContext, found: table_evidence.TableEvidence, accepted: bool) -> str:
    known = context.ledger.known
    unknown = table_evidence.topics(found, context.spec.pipeline) - known.topics.keys()
    if unknown and not accepted:
        raise TxnMismatch(
            f"The state of '{context.spec.pipeline}' is lost; {len(found.tables)} tables have its marks, up to batch "
            f"{found.batch}. Marks do not tell whether {', '.join(sorted(unknown))} was deleted and made again since."
            f"{_without_deletes(context, found)}",
            hint=f"{table_evidence.ACCEPT} if the topics are still the ones that were read.",
        )
    if unknown:
        topics = {name: topic_id for name, topic_id in context.source.topics().items() if name in unknown}
        known.remember(topics=topics, batch=found.batch)
    try:
        return _told(context, found)
    except TransientError:
        raise
    except HeadraceError as stop:
        if not accepted:
            raise
        where = table_evidence.beyond(found, context.spec.pipeline)
        context.ledger.assume(where.batch, _met_anew(context, where))
        return (
            f"the ledger was lost; rebuilt from the tables' marks; goes on after batch {where.batch}, and what of it "
            f"some table lacks is given up: {stop.message}"
        )


def _without_deletes(context: PipelineContext, found: table_evidence.TableEvidence) -> str:
    """Which tables have lost, with the state, the deletes that were remembered."""
    bare = [uri for uri, state in found.tables.items() if _tombstones(context, uri, state) is not None]
    if not bare:
        return ""
    return f" The deletes that were remembered of {', '.join(sorted(bare))} are lost, too."


def deletes_anew(context: PipelineContext) -> list[str]:
    """Let tables that have lost the deletes they remembered go on without them, as somebody has decided."""
    said = []
    for uri in context.ledger.known.tables:
        state = load_state(context.store(uri))
        tombstones = _tombstones(context, uri, state) if state is not None else None
        rules = merging_of(context.spec.table_for(context.spec.route_of(uri) or RouteId()))
        if state is not None and tombstones is not None and rules is not None:
            tombstones.begin_anew(state.schema, rules)
            said.append(f"{uri}: goes on without the deletes that were remembered, which are lost")
    return said


def _tombstones(context: PipelineContext, uri: str, state: TableState) -> Tombstones | None:
    """The place of a table's deletes, where they are lost."""
    if not _merges(context.spec, uri):
        return None
    found = Tombstones(context.state.child(f"{TOMBSTONES}/{state.table_id}"), context.writer)
    return found if found.lost(context.store(uri), state.version) else None


def _told(context: PipelineContext, found: table_evidence.TableEvidence) -> str:
    spec = context.spec
    letters, since = Store(spec.dead_letters_uri).uri, context.ledger.known.since
    where = table_evidence.rebuilt_position(found, spec.pipeline, letters, _writes_one(spec), since)
    said = f"the ledger was lost; rebuilt from the marks of {len(found.tables)} tables: batch {where.batch} is in all"
    context.ledger.assume(where.batch, _met_anew(context, where), half=where.half is not None)
    if where.half is None:
        return said
    context.ledger.begin(_read_again(context, where.half))
    return f"{said}; batch {where.half.batch} may be in some only, so it is read again for the others"


def _read_again(context: PipelineContext, half: BatchCommit) -> Intent:
    """The batch that only some tables have, with its own number: those that have it will skip it."""
    spec, account = context.spec, half.account
    stop = f"The ledger of '{spec.pipeline}' is lost, and batch {half.batch} may be missing from some tables"
    if account["spec"] != spec.digest:
        raise TxnMismatch(
            f"{stop}; it was written with another spec (digest {account['spec'][:12]}; this one has "
            f"{spec.digest[:12]}).",
            hint=f"Run it once with that spec. {table_evidence.ACCEPT} to go on after that batch.",
        )
    ranges, counts = table_evidence.ranges_of(half, context.ledger.known.topics), table_evidence.counts_of(half)
    started, token = datetime.fromtimestamp(half.at / 1000, UTC), context.lease.token
    rests = context.ledger.standing({(each.topic, each.partition) for each in ranges})
    begun = Intent(
        spec.pipeline,
        half.batch,
        ranges,
        (),
        counts,
        started,
        token,
        spec.text,
        spec.digest,
        VERSION,
        idle_ranges=rests,
    )
    try:
        again = context.batches.again(begun)
    except SourceGap as gap:
        raise SourceGap(
            f"{stop}; it cannot be read again: {gap.message}",
            hint=f"{table_evidence.ACCEPT} to go on after it.",
            **gap.facts,
        ) from None
    before, now = begun.counts.records(), again.counts.records()
    if before != now:
        delete_staged((item for table in again.tables for item in table.files), context.store)
        raise TxnMismatch(
            f"{stop}; read again, its records have other outcomes: {_text(now)}; it had {_text(before)}.",
            hint=f"{table_evidence.ACCEPT} to go on after it.",
        )
    return again


def _text(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _met_anew(context: PipelineContext, where: table_evidence.RebuiltPosition) -> Position:
    """Marks of a topic that was replaced after the last commit are those of the one before: the new one is unread."""
    since, last = context.ledger.known.since, where.batch + (where.half is not None)
    anew = {each for each in where.position if since.get(each[0], 0) > last}
    if not anew:
        return where.position
    bounds = context.source.bounds()
    return where.position | {each: bounds[each].earliest if each in bounds else 0 for each in anew}


def _kind(spec: Spec, uri: str, state: TableState) -> str:
    return WriterKind.MERGE if _merges(spec, uri) else writer_of(state)


def _merges(spec: Spec, uri: str) -> bool:
    route_id = spec.route_of(uri)
    return route_id is not None and spec.table_for(route_id).merges is not None


def _stores(context: PipelineContext) -> list[Store]:
    """Wherever the pipeline may have written."""
    spec = context.spec
    routes = {uri for branch in spec.branch_specs().values() for uri in _routes(branch, context.state.profile)}
    uris = {spec.dead_letters_uri, *context.ledger.known.tables, *routes}
    return [context.store(uri) for uri in sorted(uris)]


def _writes_one(spec: Spec) -> bool:
    """Whether there is but one table beside the dead letters."""
    return spec.route.kind == "fixed" and not spec.branches


def _routes(spec: Spec, profile: Profile) -> Iterator[str]:
    base = folder_of(spec.table.path)
    parts = spec.table.path[len(base) + 1 :].split("/")
    whole = template(spec.table.path)
    yield from (uri for uri in _below(base, parts, profile) if whole.fullmatch(uri))


def _below(base: str, parts: Sequence[str], profile: Profile) -> Iterator[str]:
    """The folders that a pattern leads to, part by part."""
    if not any("{" in part for part in parts):
        yield "/".join((base, *parts))
        return
    first, *rest = parts
    if "{" not in first:
        yield from _below(f"{base}/{first}", rest, profile)
        return
    for folder in Store(base, profile).folders():
        yield from _below(f"{base}/{folder}", rest, profile)
