"""Plan a reingest: which lost rows of a table can be read again from the source.

The table's log has the lost rows: files that a repair removed, and whose rows no later commit has restored.
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
class UnrecoverableRows:
    """Rows that stay lost, and the reason."""

    version: int  # of the commit that wrote them
    why: str
    pipeline: str | None = None
    batch: int | None = None
    ranges: tuple[Range, ...] = ()


@dataclass(frozen=True, slots=True)
class Reingest:
    """Lost rows of a table: those that can be read again, and those that cannot."""

    rows: int | None  # of the lost files; None if one of them has no statistics
    ranges: tuple[Range, ...]  # to read again
    files: tuple[str, ...]  # whose rows they restore, as first committed
    unrecoverable: tuple[UnrecoverableRows, ...]
    unknown_origin: tuple[str, ...]  # lost files that no commit of the log mentions any more
    rows_restored: int = 0
    version: int | None = None  # of the commit that restored them


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Topics of the source, as they are and as the pipeline knows them."""

    topics: Mapping[str, str]  # current ids
    known: Mapping[str, str]  # ids in the pipeline's state
    since: Mapping[str, int]  # by topic, the first batch with its current id
    bounds: Mapping[Partition, Bounds]


def plan_reingest(spec: Spec, origins: FileOrigins, facts: SourceFacts) -> Reingest:
    """Decide for each commit that wrote lost rows whether its records can be read again."""
    sizes = [file.rows for file in origins.lost]
    rows = None if None in sizes else sum(size or 0 for size in sizes)
    last = [offset_bounds_of(file) for file in origins.lost]
    readable, unrecoverable = list[tuple[OriginCommit, Iterable[Range]]](), list[UnrecoverableRows]()
    for commit in origins.commits:
        if why := _blocker(spec, commit):
            unrecoverable.append(
                UnrecoverableRows(commit.version, why, commit.pipeline, commit.batch, commit.ranges or ())
            )
            continue
        needed = narrowed(narrowed(commit.ranges or (), map(offset_bounds_of, commit.files)), last)
        available, missing = _split_by_source(commit, needed, facts)
        unrecoverable += [
            UnrecoverableRows(commit.version, why, commit.pipeline, commit.batch, (part,)) for part, why in missing
        ]
        if available or not missing:
            partitions = {(part.topic, part.partition) for part in available}
            whole = [part for part in commit.ranges or () if (part.topic, part.partition) in partitions]
            readable.append((commit, _split_by_source(commit, whole, facts)[0]))
    first = [offset_bounds_of(file) for commit, _ in readable for file in commit.files]
    ranges = join_ranges(part for _, parts in readable for part in parts)  # of whole batches, which are adjacent
    files = sorted(file.path for commit, _ in readable for file in commit.files)
    return Reingest(
        rows, narrowed(narrowed(ranges, first), last), tuple(files), tuple(unrecoverable), origins.unknown_origin
    )


def _blocker(spec: Spec, commit: OriginCommit) -> str | None:
    """Why the records of a commit cannot be read again at all."""
    if commit.pipeline is None:
        return "not written by a pipeline"
    if commit.pipeline != spec.pipeline:
        return f"written by '{commit.pipeline}'; use its spec"
    if commit.replayed:
        return f"replayed from dead letters by replay {commit.batch}"
    if (digest := commit.account.get("spec", "")) != spec.digest:
        return f"written with another spec (digest {digest[:12]}; this one has {spec.digest[:12]}); use that spec"
    if not commit.ranges:
        return "the commit has no offset ranges"
    return None


def _split_by_source(
    commit: OriginCommit, ranges: Iterable[Range], facts: SourceFacts
) -> tuple[list[Range], list[tuple[Range, str]]]:
    """Ranges that the source has, with current topic ids; and those that it lacks, with the reason."""
    available, missing = list[Range](), list[tuple[Range, str]]()
    for part in ranges:
        topic_id, partition = facts.topics.get(part.topic, ""), (part.topic, part.partition)
        part = replace(part, topic_id=topic_id)
        recreated = facts.known.get(part.topic) != topic_id or facts.since.get(part.topic, 0) > (commit.batch or 0)
        if recreated or partition not in facts.bounds:
            missing.append((part, "the topic was recreated" if recreated else "the partition does not exist"))
            continue
        earliest, latest = facts.bounds[partition].earliest, facts.bounds[partition].latest
        offsets = (
            f"the broker has offsets {earliest} to {latest - 1}" if earliest < latest else "the partition is empty"
        )
        start, until = max(part.start, earliest), min(part.until, latest)
        if start >= until:
            missing.append((part, offsets))
            continue
        available.append(replace(part, start=start, until=until))
        if part.start < start:
            missing.append((replace(part, until=start), offsets))
        if until < part.until:
            missing.append((replace(part, start=until), offsets))
    return available, missing


def check_kind(spec: Spec, uri: str, columns: Iterable[str]) -> None:
    """Raise OperationDisabled for tables whose lost rows cannot be identified."""
    route_id = spec.route_of(uri)
    if route_id is None or uri == Store(spec.dead_letters_uri).uri:
        kind = (
            "the dead-letter table" if route_id is None and uri == Store(spec.dead_letters_uri).uri else "not a table"
        )
        raise OperationDisabled(
            f"{uri} is {kind} of the pipeline '{spec.pipeline}'; only its tables can be reingested."
        )
    rules = spec.table_for(route_id)
    if rules.merges is not None:
        raise OperationDisabled(
            f"{uri} has mode: {rules.mode}; a row is the result of all its changes, not of one batch.",
            hint="Remove the lost files from the log (`headrace table repair PATH`), then run the spec once from the "
            "start, under another `pipeline` name, with `start: earliest`: an older change never replaces a newer one.",
        )
    if rules.overwrites:
        raise OperationDisabled(
            f"{uri} has mode: {rules.mode}; every run overwrites it.", hint="Run the pipeline: `--until latest`."
        )
    if SOURCE.name not in set(columns):
        raise OperationDisabled(
            f"{uri} has no column {SOURCE.name}, which is needed to identify the lost rows.",
            hint="RESTORE it to a version whose files exist, then run `headrace resume SPEC --table-restored=refill`.",
        )


def check_sole_writer(spec: Spec, uri: str, txns: Mapping[str, int], ranges: Iterable[Range]) -> None:
    """Raise OperationDisabled if another pipeline has written records of the same topics to the table."""
    names = {pipeline_of(name) for name in txns if batch_number_of({name: 0})} - {spec.pipeline}
    topics = {part.topic for part in ranges}
    for name in sorted(names):
        if shared := topics & {topic for topic, _ in position_of(txns, name)}:
            raise OperationDisabled(
                f"{uri} also has records of {', '.join(sorted(shared))} written by '{name}': rows of the two pipelines "
                "cannot be distinguished.",
                hint="Fill a new table from the topic.",
            )
