"""A state folder that lost its ledger gets a new one: from the batch last begun, or from the tables' own logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from headrace.spec.uris import folder_of
from headrace.storage.store import Profile, Store
from headrace.version import VERSION
from headrace.write.intent import Intent
from headrace.write.tombstones import TOMBSTONES, Tombstones

if TYPE_CHECKING:
    from headrace.pipeline.pipeline import Pipeline


def rebuild(pipeline: Pipeline, accepted: bool = False) -> list[str]:
    """Write a ledger anew where there was one; answers in words what was done, nothing where none was lost.

    `accepted`: a person says that the topics are the ones that were read, and that what cannot be known is given up.
    """
    ledger = pipeline.ledger
    if not ledger.is_new and ledger.known.is_new and ledger.position():
        return _known_again(pipeline, accepted)
    if not ledger.is_new and not accepted:
        return []
    begun, found = ledger.newest_intent(), table_evidence.traces(_stores(pipeline), pipeline.spec.pipeline)
    highest = found.batch if found else 0
    if not ledger.is_new and highest <= ledger.batch + (ledger.open_batch() is not None):
        return []  # the ledger tells all that the tables hold
    if max(highest, begun.batch if begun else 0) <= 1 and (begun is not None or found is None):
        return []  # the first batch is yet to be booked
    if begun is not None and begun.batch >= highest:
        said = _from_begun(pipeline, begun)
    else:
        assert found is not None  # noqa: S101
        said = _from_tables(pipeline, found, accepted)
    if found is not None:
        ledger.known.remember(tables={**_known(pipeline, found), **ledger.known.tables})
    ledger.rebuild(said)
    pipeline.report({"event": "rebuild", "pipeline": pipeline.spec.pipeline, "batch": ledger.batch, "text": said})
    return [said]


def _known(pipeline: Pipeline, found: table_evidence.TableEvidence) -> dict[str, KnownTable]:
    """The tables that have txns of the pipeline."""
    return {
        uri: KnownTable(state.table_id, _kind(pipeline.spec, uri, state), writers=(pipeline.writer,))
        for uri, state in found.tables.items()
    }


def _known_again(pipeline: Pipeline, accepted: bool) -> list[str]:
    """A ledger is there, and the ids of topics and tables are lost: only a person can say that they are the same."""
    spec, ledger = pipeline.spec, pipeline.ledger
    if not accepted:
        raise TxnMismatch(
            f"The state of '{spec.pipeline}' has a ledger, but what is known of its topics and tables (known_tables/) "
            "is lost: one that was created again since cannot be told from the one before.",
            hint=f"{table_evidence.ACCEPT} if the topics and tables are still the same.",
        )
    found = table_evidence.traces(_stores(pipeline), spec.pipeline)
    topics = {topic for topic, _ in ledger.position()}
    ids = {name: topic_id for name, topic_id in pipeline.source.topics().items() if name in topics}
    ledger.known.remember(tables=_known(pipeline, found) if found else {}, topics=ids, batch=ledger.batch)
    return ["the ids of topics and tables were lost; goes on with those that are there now"]


def _from_begun(pipeline: Pipeline, begun: Intent) -> str:
    """Exact: all before the batch last begun is done, and the batch itself is about to be finished."""
    stood = (*begun.idle_ranges, *begun.ranges)
    pipeline.ledger.known.remember(
        topics={each.topic: each.topic_id for each in stood if each.topic_id}, batch=begun.batch - 1
    )
    pipeline.ledger.assume(begun.batch - 1, {(each.topic, each.partition): each.start for each in stood})
    return f"the ledger was lost; rebuilt from batch {begun.batch}, the last one begun"


def _from_tables(pipeline: Pipeline, found: table_evidence.TableEvidence, accepted: bool) -> str:
    known = pipeline.ledger.known
    unknown = table_evidence.topics(found, pipeline.spec.pipeline) - known.topics.keys()
    if unknown and not accepted:
        raise TxnMismatch(
            f"The state of '{pipeline.spec.pipeline}' is lost; {len(found.tables)} tables have its marks, up to batch "
            f"{found.batch}. Marks do not tell whether {', '.join(sorted(unknown))} was deleted and made again since."
            f"{_without_deletes(pipeline, found)}",
            hint=f"{table_evidence.ACCEPT} if the topics are still the ones that were read.",
        )
    if unknown:
        topics = {name: topic_id for name, topic_id in pipeline.source.topics().items() if name in unknown}
        known.remember(topics=topics, batch=found.batch)
    try:
        return _told(pipeline, found)
    except TransientError:
        raise
    except HeadraceError as stop:
        if not accepted:
            raise
        where = table_evidence.beyond(found, pipeline.spec.pipeline)
        pipeline.ledger.assume(where.batch, _met_anew(pipeline, where))
        return (
            f"the ledger was lost; rebuilt from the tables' marks; goes on after batch {where.batch}, and what of it "
            f"some table lacks is given up: {stop.message}"
        )


def _without_deletes(pipeline: Pipeline, found: table_evidence.TableEvidence) -> str:
    """Which tables have lost, with the state, the deletes that were remembered."""
    bare = [uri for uri, state in found.tables.items() if _tombstones(pipeline, uri, state) is not None]
    if not bare:
        return ""
    return f" The deletes that were remembered of {', '.join(sorted(bare))} are lost, too."


def deletes_anew(pipeline: Pipeline) -> list[str]:
    """Let tables that have lost the deletes they remembered go on without them, as somebody has decided."""
    said = []
    for uri in pipeline.ledger.known.tables:
        state = load_state(Store(uri, pipeline.profile))
        tombstones = _tombstones(pipeline, uri, state) if state is not None else None
        rules = merging_of(pipeline.spec.table_for(pipeline.spec.name_of(uri) or ""))
        if state is not None and tombstones is not None and rules is not None:
            tombstones.begin_anew(state.schema, rules)
            said.append(f"{uri}: goes on without the deletes that were remembered, which are lost")
    return said


def _tombstones(pipeline: Pipeline, uri: str, state: TableState) -> Tombstones | None:
    """The place of a table's deletes, where they are lost."""
    if not _merges(pipeline.spec, uri):
        return None
    found = Tombstones(pipeline.state.child(f"{TOMBSTONES}/{state.table_id}"), pipeline.writer)
    return found if found.lost(Store(uri, pipeline.profile), state.version) else None


def _told(pipeline: Pipeline, found: table_evidence.TableEvidence) -> str:
    spec = pipeline.spec
    letters, since = Store(spec.dead_letters_uri).uri, pipeline.ledger.known.since
    where = table_evidence.rebuilt_position(found, spec.pipeline, letters, _writes_one(spec), since)
    said = f"the ledger was lost; rebuilt from the marks of {len(found.tables)} tables: batch {where.batch} is in all"
    pipeline.ledger.assume(where.batch, _met_anew(pipeline, where), half=where.half is not None)
    if where.half is None:
        return said
    pipeline.ledger.begin(_read_again(pipeline, where.half))
    return f"{said}; batch {where.half.batch} may be in some only, so it is read again for the others"


def _read_again(pipeline: Pipeline, half: BatchCommit) -> Intent:
    """The batch that only some tables have, with its own number: those that have it will skip it."""
    spec, account = pipeline.spec, half.account
    stop = f"The ledger of '{spec.pipeline}' is lost, and batch {half.batch} may be missing from some tables"
    if account["spec"] != spec.digest:
        raise TxnMismatch(
            f"{stop}; it was written with another spec (digest {account['spec'][:12]}; this one has "
            f"{spec.digest[:12]}).",
            hint=f"Run it once with that spec. {table_evidence.ACCEPT} to go on after that batch.",
        )
    ranges, counts = table_evidence.ranges_of(half, pipeline.ledger.known.topics), table_evidence.counts_of(half)
    started, token = datetime.fromtimestamp(half.at / 1000, UTC), pipeline.lease.token
    rests = pipeline.ledger.standing({(each.topic, each.partition) for each in ranges})
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
        again = pipeline.again(begun)
    except SourceGap as gap:
        raise SourceGap(
            f"{stop}; it cannot be read again: {gap.message}",
            hint=f"{table_evidence.ACCEPT} to go on after it.",
            **gap.facts,
        ) from None
    if _account(again) != _account(begun):
        pipeline.discard(item for table in again.tables for item in table.files)
        raise TxnMismatch(
            f"{stop}; read again, it is another one: {_account(again)} records, it was {_account(begun)} "
            "(read, routed, dead, filtered).",
            hint=f"{table_evidence.ACCEPT} to go on after it.",
        )
    return again


def _account(intent: Intent) -> tuple[int, int, int, int]:
    counts = intent.counts
    return counts.read, counts.routed, counts.dead, counts.filtered


def _met_anew(pipeline: Pipeline, where: table_evidence.RebuiltPosition) -> Position:
    """Marks of a topic that was replaced after the last commit are those of the one before: the new one is unread."""
    since, last = pipeline.ledger.known.since, where.batch + (where.half is not None)
    anew = {each for each in where.position if since.get(each[0], 0) > last}
    if not anew:
        return where.position
    bounds = pipeline.source.bounds()
    return where.position | {each: bounds[each].earliest if each in bounds else 0 for each in anew}


def _kind(spec: Spec, uri: str, state: TableState) -> str:
    return WriterKind.MERGE if _merges(spec, uri) else writer_of(state)


def _merges(spec: Spec, uri: str) -> bool:
    name = spec.name_of(uri)
    return name is not None and spec.table_for(name).merges is not None


def _stores(pipeline: Pipeline) -> list[Store]:
    """Wherever the pipeline may have written."""
    spec = pipeline.spec
    routes = {uri for branch in spec.branch_specs().values() for uri in _routes(branch, pipeline)}
    uris = {spec.dead_letters_uri, *pipeline.ledger.known.tables, *routes}
    return [Store(uri, pipeline.profile) for uri in sorted(uris)]


def _writes_one(spec: Spec) -> bool:
    """Whether there is but one table beside the dead letters."""
    return spec.route.kind == "fixed" and not spec.branches


def _routes(spec: Spec, pipeline: Pipeline) -> Iterator[str]:
    base = folder_of(spec.table.path)
    parts = spec.table.path[len(base) + 1 :].split("/")
    whole = template(spec.table.path)
    yield from (uri for uri in _below(base, parts, pipeline.profile) if whole.fullmatch(uri))


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
