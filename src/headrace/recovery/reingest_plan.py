"""What of a table's lost rows can be read again from the source, and what not.

What is lost is told by the table's log: files that a repair took out of it and whose rows no later commit says it has
put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headrace.delta.schema import SOURCE
from headrace.delta.txn import batch_number_of, pipeline_of
from headrace.errors import OperationDisabled
from headrace.ledger.ledger import position_of
from headrace.recovery.file_origins import FileOrigins, OriginCommit, narrowed, offset_bounds_of
from headrace.source.ranges import Range, join_ranges
from headrace.storage.store import Store

if TYPE_CHECKING:
    from headrace.source.base import Bounds, Partition
    from headrace.spec import Spec


@dataclass(frozen=True, slots=True)
class Unread:
    """Rows that stay lost, and why."""

    version: int  # of the commit that had brought them
    why: str
    pipeline: str | None = None
    batch: int | None = None
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Reingest:
    """What of a table's lost rows can be read again, and what not."""

    rows: int | None  # of the files that are gone; None where one of them does not tell
    ranges: tuple[Range, ...]  # to read again
    files: tuple[str, ...]  # whose rows that brings back, as they were first committed
    unread: tuple[Unread, ...]
    untold: tuple[str, ...]  # files of which no commit tells any more what was in them
    put_back: int = 0  # rows
    version: int | None = None  # that has them


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What is known of the source, now and then."""

    topics: Mapping[str, str]  # ids that the broker has now
    known: Mapping[str, str]  # ids that the pipeline knows
    since: Mapping[str, int]  # the batch that first met a topic under its id
    bounds: Mapping[Partition, Bounds]


# ---- what can be read again ----


def plan(spec: Spec, found: FileOrigins, facts: SourceFacts) -> Reingest:
    """Decide for each commit that had brought lost rows whether they can be made again."""
    held = [file.rows for file in found.gone]
    rows = None if None in held else sum(each or 0 for each in held)
    last = [offset_bounds_of(file) for file in found.gone]
    again, unread = list[tuple[OriginCommit, Iterable[Range]]](), list[Unread]()
    for each in found.brought:
        if why := _never(spec, each):
            unread.append(Unread(each.version, why, each.pipeline, each.batch, each.ranges or ()))
            continue
        there, gone = _there(
            each, narrowed(narrowed(each.ranges or (), map(offset_bounds_of, each.files)), last), facts
        )
        unread += [Unread(each.version, why, each.pipeline, each.batch, (part,)) for part, why in gone]
        if there or not gone:
            read = {(part.topic, part.partition) for part in there}
            whole = [part for part in each.ranges or () if (part.topic, part.partition) in read]
            again.append((each, _there(each, whole, facts)[0]))
    first = [offset_bounds_of(file) for each, _ in again for file in each.files]
    ranges = join_ranges(part for _, parts in again for part in parts)  # of whole batches, for those follow each other
    files = sorted(file.path for each, _ in again for file in each.files)
    return Reingest(rows, narrowed(narrowed(ranges, first), last), tuple(files), tuple(unread), found.untold)


def _never(spec: Spec, each: OriginCommit) -> str | None:
    """Why the records of a commit cannot be read again at all."""
    if each.pipeline is None:
        return "no pipeline brought these rows"
    if each.pipeline != spec.pipeline:
        return f"'{each.pipeline}' brought them; give its spec"
    if each.replayed:
        return f"they were dead letters, which plan {each.batch} replayed"
    if (digest := each.account.get("spec", "")) != spec.digest:
        return f"another spec wrote them (digest {digest[:12]}; this one has {spec.digest[:12]}); give that one"
    if not each.ranges:
        return "the commit does not tell what was read"
    return None


def _there(
    each: OriginCommit, wanted: Iterable[Range], facts: SourceFacts
) -> tuple[list[Range], list[tuple[Range, str]]]:
    """What the source holds still, with the ids of its topics; and what not, with why."""
    there, gone = list[Range](), list[tuple[Range, str]]()
    for part in wanted:
        topic_id, at = facts.topics.get(part.topic, ""), (part.topic, part.partition)
        part = replace(part, topic_id=topic_id)
        anew = facts.known.get(part.topic) != topic_id or facts.since.get(part.topic, 0) > (each.batch or 0)
        if anew or at not in facts.bounds:
            gone.append((part, "the topic is another one now" if anew else "the broker has no such partition"))
            continue
        low, high = facts.bounds[at].earliest, facts.bounds[at].latest
        start, until = max(part.start, low), min(part.until, high)
        if start >= until:
            gone.append((part, _span(low, high)))
            continue
        there.append(replace(part, start=start, until=until))
        if part.start < start:
            gone.append((replace(part, until=start), _span(low, high)))
        if until < part.until:
            gone.append((replace(part, start=until), _span(low, high)))
    return there, gone


def _span(earliest: int, latest: int) -> str:
    return f"the broker holds {earliest} to {latest - 1}" if earliest < latest else "the broker holds nothing there"


def check_kind(spec: Spec, uri: str, columns: Iterable[str]) -> None:
    """OperationDisabled where lost rows cannot be told from those that are there, or were changed since."""
    route_id = spec.route_of(uri)
    if route_id is None or uri == Store(spec.dead_letters_uri).uri:
        what = "the dead letters" if route_id is None and uri == Store(spec.dead_letters_uri).uri else "no table"
        raise OperationDisabled(f"{uri} is {what} of the pipeline '{spec.pipeline}': only its tables are reingested.")
    rules = spec.table_for(route_id)
    if rules.merges is not None:
        raise OperationDisabled(
            f"{uri} has mode: {rules.mode}: a lost row is what all its changes had left, not what one batch brought.",
            hint="Take the lost files out of the log (`headrace table repair PATH`), then run the spec once more from "
            "the start, under another `pipeline` name, with `start: earliest`: an older change never replaces a newer "
            "one.",
        )
    if rules.overwrites:
        raise OperationDisabled(
            f"{uri} has mode: {rules.mode}: every run fills it anew.", hint="Run the pipeline: `--until latest`."
        )
    if SOURCE.name not in set(columns):
        raise OperationDisabled(
            f"{uri} has no column {SOURCE.name}: which of its rows are lost cannot be told from those that are there.",
            hint="RESTORE it to a version whose files are there, then `headrace resume SPEC --table-restored=refill`.",
        )


def check_alone(spec: Spec, uri: str, marks: Mapping[str, int], ranges: Iterable[Range]) -> None:
    """OperationDisabled where another pipeline has brought the same records to the table."""
    names = {pipeline_of(name) for name in marks if batch_number_of({name: 0})} - {spec.pipeline}
    topics = {each.topic for each in ranges}
    for name in sorted(names):
        if shared := topics & {topic for topic, _ in position_of(marks, name)}:
            raise OperationDisabled(
                f"{uri} has records of {', '.join(sorted(shared))} by '{name}', too: rows of the one cannot be told "
                "from those of the other.",
                hint="Fill a new table from the topic.",
            )
