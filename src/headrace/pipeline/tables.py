"""The tables of a running pipeline: opened, followed, evolved; and the shapes that tasks work from."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa

from headrace import faults
from headrace.decode.inference import Structure, stated
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.decode.payload_field import payload_field
from headrace.delta.batch_commits import newest_part
from headrace.delta.log import newest_version
from headrace.delta.log_writer import LogWriter
from headrace.delta.receipt import Receipt
from headrace.delta.schema import from_delta, to_delta
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import batch_txn
from headrace.errors import ColumnsDisagree, PipelineStopped, TableChanged, TxnMismatch, UnknownColumn
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Ledger
from headrace.pipeline.overwrite import replaced, stale_letters
from headrace.pipeline.table_entry import (
    OpenTable,
    TableOpener,
    batch_in_table,
    check_row_identity,
    merging_of,
    row_identity,
    staged_for_schema,
)
from headrace.plan.branch import EVERY, CompiledBranch
from headrace.plan.explode import without_conflict
from headrace.plan.inferred_columns import InferredColumns, inferred_columns
from headrace.plan.plan import Plan
from headrace.plan.route_schema import Offsets, RouteSchema, columns_of_route, disagreement, payload_of, route_schema_of
from headrace.plan.unknown_names import UnknownName, nowhere
from headrace.spec import Spec, TableSpec
from headrace.stage.change_schema import staged
from headrace.stage.stager import FileLayout
from headrace.storage.store import Profile, Store
from headrace.transform.sql.constraints import constraints_of
from headrace.write.append import account
from headrace.write.intent import ALL, Intent, TableIntent
from headrace.write.table_writer import TableWriter

LETTERS = "dead letters"  # a route no record can have: names match no blank
STAGING = "staging"  # the folder of the state for files that are merged, or appended by Spark


class PipelineTables:
    """Every table the pipeline has met."""

    def __init__(
        self,
        spec: Spec,
        profile: Profile,
        ledger: Ledger,
        spark_table: Callable[[Store], TableWriter],
        writer: str = "",  # whose marks the commits carry; the pipeline's own unless given
    ) -> None:
        self.spec = spec
        self.writer = writer or spec.pipeline
        self.profile = profile
        self.ledger = ledger
        plan = Plan(spec, {})
        self.branches, self._letters_schema = plan.branches, plan.letter_columns.schema
        self.shapes: dict[str, RouteSchema | None] = {}
        self.shared: dict[str, Structure] = {}  # by branch, what the one payload of its SQL route has shown
        self._opener = TableOpener(ledger, spark_table, spec.pipeline, self.writer)
        self._foreseen: set[str] = set()  # routes met on a guess in the batch at hand
        self._new: set[str] = set()  # routes that the batch at hand is the first to have
        self._late: set[str] = set()  # routes that were one too many for it, and may come in the next
        self._added: Counter[str] = Counter()  # by route: columns that the batch at hand has brought
        self._entries: dict[str, OpenTable] = {}

    # ---- opening ----

    def open(self) -> None:
        """Meet the tables that are known before the first record: the fixed ones, and those of the ledger."""
        self._entries[LETTERS] = letters = self._open(LETTERS, self.spec.dead_letters_uri)
        if letters.existing is not None and not set(self._letters_schema.names) <= set(letters.existing.names):
            letters.committer.evolve(self._letters_schema)
        for prefix, branch in self.branches.items():
            if branch.routing.by == "fixed":
                self._meet(prefix)
        self._meet_known()
        self._refresh()

    def _meet_known(self) -> None:
        """Open the tables of earlier runs, so that their records need no discovery.

        One that cannot be opened stops the pipeline only when a record asks for it; but tables of an SQL route share
        their columns, so there all are needed before the first decode.
        """
        for uri in self.ledger.known.tables:
            if (name := self.spec.name_of(uri)) is None:
                continue
            try:
                self._meet(name)
            except PipelineStopped:
                if self._branch(name).routing.by == "sql":
                    raise

    def _meet(self, name: str) -> OpenTable:
        if name not in self._entries:
            self._entries[name] = self._open(name, self.spec.uri_of(name))
        return self._entries[name]

    def _branch(self, name: str) -> CompiledBranch:
        """The branch of a route; the pipeline's own for what is of none."""
        return self.branches.get(name[: name.rfind("/") + 1], self.branches[""])

    def _open(self, name: str, uri: str, apart: bool = False) -> OpenTable:
        branch, route = self._branch(name), name.rpartition("/")[2]
        rules = branch.rules(route if name == branch.prefix + route and name != LETTERS else "")
        store, letters = Store(uri, self.profile), name == LETTERS
        routed = not letters and self.spec.name_of(uri) is not None  # without a route to it, the rules are unknown
        committer = self._opener.open(store, rules if routed else None, apart)
        if routed:
            check_row_identity(uri, rules, self.ledger.known.tables.get(uri))
        table_id = str(uuid.uuid4()) if committer.state is None else committer.state.table_id
        seen = -1 if committer.state is None else committer.state.version
        return OpenTable(name, branch, store, rules, committer, table_id, seen=seen)

    # ---- shapes ----

    def hold_others(self, uri: str, floors: Offsets) -> None:
        """Let every other table take nothing up to these offsets; unless letters are wanted, which any may bring."""
        if self._entries[LETTERS].store.uri != uri:
            for entry in self._entries.values():
                entry.floors = floors if entry.store.uri != uri else {}
            self._refresh()

    def answer(self, discovered: Mapping[str, Structure], batch: int) -> None:
        """Meet new routes, learn new fields, and evolve the tables that exist before anything is staged for them."""
        for prefix in self.branches:
            if prefix + EVERY in discovered:
                every = self._admitted(prefix + EVERY, None, discovered[prefix + EVERY])
                self.shared[prefix] = _merged(self.shared.get(prefix), every)
        for name, structure in discovered.items():
            prefix = self._branch(name).prefix
            if name != prefix + EVERY:
                meet = self._foresee if prefix + EVERY in discovered else self._welcome
                meet(name, structure)
        self._refresh()
        self._evolve_all(batch)

    def inferred(
        self, known: Mapping[str, RouteSchema | None], discovered: Mapping[str, Structure]
    ) -> Iterator[InferredColumns]:
        """The columns that records gave to tables since their shapes were the known ones."""
        for name, entry in self._entries.items():
            structure = discovered.get(entry.branch.prefix + EVERY) or discovered.get(name)
            if name != LETTERS and structure:
                before, there = known.get(name), entry.existing
                names = before.table.names if before else there.names if there else ()
                found = inferred_columns(names, self.shapes.get(name), structure, entry.branch.transform)
                yield from [found] if found else []

    def bears_out(self, assumed: Iterable[str]) -> bool:
        """Whether files are good that were staged for tables as the spec declares them."""
        return all(self._as_declared(name) for name in assumed)

    def _as_declared(self, name: str) -> bool:
        entry = self._entries.get(name)
        declared = self._branch(name).shape_of(name.rpartition("/")[2])
        return entry is not None and entry.committer.adopts and self.shapes[name] == declared

    def grow(self, batch: int) -> None:
        """Before a batch: add the columns that tables lack, those records brought and those the spec asks for."""
        self._look_again()
        self._forget_conflicts()
        self._forget_limit()
        self._evolve_all(batch)

    def _look_again(self) -> None:
        """Read the tables again that did not exist: another tool or pipeline may have created one since."""
        appeared = False
        for name, entry in self._entries.items():
            if entry.committer.state is None and newest_version(entry.store) is not None:
                found = self._open(name, entry.store.uri)
                entry.committer, entry.table_id, entry.seen = found.committer, found.table_id, found.seen
                appeared = True
        if appeared:
            self._refresh()

    def look(self) -> None:
        """Go along with what others did to the tables, so that the next start need not look so far back."""
        for entry in self._entries.values():
            if entry.committer.state is not None:
                entry.committer.follow()
                entry.seen = entry.committer.state.version

    def keep(self, parts: Iterable[TableIntent]) -> None:
        """Plan these parts of a batch as they were planned: their tables hold them already, so no record may leave."""
        for part in parts:
            self._entry_of(part).planned = from_delta(part.schema) if not part.dead_letters else None
        self._refresh()

    def _evolve_all(self, batch: int) -> None:
        for name, entry in self._entries.items():
            if name != LETTERS:
                self._evolve(entry, batch)

    def _forget_conflicts(self) -> None:
        """Elements that disagreed in one batch may agree in the next."""
        before = [entry.learned for entry in self._entries.values()]
        for entry in self._entries.values():
            if entry.branch.explode is not None and entry.learned is not None:
                entry.learned = without_conflict(entry.branch.explode, entry.learned)
        if any(entry.learned is not was for entry, was in zip(self._entries.values(), before, strict=True)):
            self._refresh()

    def _forget_limit(self) -> None:
        """Each batch may have some new tables, and some new columns."""
        for name in self._late:
            self.shapes.pop(name, None)
        self._late.clear()
        self._new.clear()
        if self._added:
            self._added.clear()
            self._refresh()

    def _welcome(self, name: str, structure: Structure) -> None:
        """A route that records have: its table is met, or refused when there are too many."""
        if name not in self._entries and not self._has_room():
            self._forget(set(self._foreseen))  # they make room; what of them is true comes again
        if name in self._entries or self._has_room():
            self._new |= {name} - self._entries.keys()
            entry = self._meet(name)
            entry.learned = _merged(entry.learned, self._admitted(name, entry.existing, structure))
        else:
            self.shapes[name] = None
            self._late |= {name} if self._may_hold_more() else set()

    def _foresee(self, name: str, structure: Structure) -> None:
        """A route that records seem to have: it stops and refuses nothing, for it may never come."""
        if name not in self._entries and self._has_room():
            with suppress(PipelineStopped):
                self._welcome(name, structure)
                self._foreseen.add(name)

    def _has_room(self) -> bool:
        return self._may_hold_more() and len(self._new) < self.spec.limits.new_tables

    def _may_hold_more(self) -> bool:
        return len(self._entries) <= self.spec.limits.tables

    def _forget(self, names: Iterable[str]) -> None:
        """Routes foreseen for a batch that went nowhere: as if they had never been thought of."""
        for name in names:
            del self._entries[name]
            self.shapes.pop(name, None)
            self._new.discard(name)
        self._foreseen.clear()

    def _admitted(self, name: str, existing: pa.Schema | None, structure: Structure) -> Structure:
        """What of a route's new fields there is room for."""
        route = name.rpartition("/")[2]
        part, columns = self._branch(name).admitted(route, self.shapes.get(name), existing, structure)
        if columns:
            self._added[name] += columns
        return part

    def _refresh(self) -> None:
        for prefix, branch in self.branches.items():
            if branch.routing.by == "sql":
                self._share(prefix, branch)
        for name, entry in self._entries.items():
            if name != LETTERS and not self._unknown(entry):
                self.shapes[name] = self._shape(entry)

    def _unknown(self, entry: OpenTable) -> bool:
        """Nothing says yet which columns the table has: its first records must show them."""
        learned = entry.learned is not None or entry.branch.prefix in self.shared
        return entry.existing is None and not entry.rules.columns and not learned

    def _learned(self, entry: OpenTable) -> Structure | None:
        """What records have shown of the table; a new one of an SQL route has the columns that its route is read by."""
        if entry.branch.routing.by != "sql":
            return entry.learned
        every = self.shapes.get(entry.branch.prefix + EVERY)
        if entry.existing is None and every is not None:
            return stated(item for item in every.payload if payload_field(item).is_column)
        return self.shared.get(entry.branch.prefix)

    def _shape(self, entry: OpenTable) -> RouteSchema:
        state, existing = entry.committer.state, entry.existing
        by = self.partition_by(entry)
        generated = () if state is None or existing is None else set(state.schema.names) - set(existing.names)
        shape = route_schema_of(
            entry.store.uri,
            entry.rules,
            entry.branch.transform,
            entry.branch.explode,
            existing=existing,
            learned=self._learned(entry),
            floors=entry.floors,
            partition_by=tuple(name for name in by if name not in generated),
            generated=generated,
        )
        shape = replace(shape, constraints=constraints_of(entry.store.uri, state, entry.rules))
        return entry.branch.bounded(shape, self._added[entry.name])

    def _share(self, prefix: str, branch: CompiledBranch) -> None:
        """One payload for all tables of an SQL route: the sum of what they have and what records have shown."""
        rules, explode = branch.rules(EVERY), branch.explode
        columns: dict[str, pa.Field] = {}
        for name, entry in self._entries.items():
            if name != LETTERS and entry.branch is branch and entry.existing is not None:
                with disagreement(entry.store.uri, met=True):
                    payload = payload_of(rules, branch.transform, entry.existing, None, explode)
                columns |= {item.name: item for item in columns_of_route(payload, explode)}
        learned = self.shared.get(prefix)
        if not columns and learned is None and not rules.columns:
            return
        existing = pa.schema(list(columns.values())) if columns else None
        shape = branch.shape_of(EVERY, existing=existing, learned=learned)
        self.shapes[prefix + EVERY] = branch.bounded(shape, self._added[prefix + EVERY])

    def _evolve(self, entry: OpenTable, batch: int) -> None:
        shape = self.shapes.get(entry.name)
        have = entry.existing
        if shape is None or have is None or shape.table == have:
            return
        if entry.rules.create == "never":
            _check_declared(entry, have)
        try:
            entry.committer.evolve(shape.table)
        except TableChanged:
            if entry.existing == have:
                raise
            self.shapes[entry.name] = self._shape(entry)  # another writer added such a column first: records must fit
            return self._evolve(entry, batch)
        faults.reach(faults.Point.AFTER_SCHEMA_CHANGE, batch=batch)
        self.shapes[entry.name] = self._shape(entry)

    def layouts(self, batch: int) -> dict[str, FileLayout]:
        """Where each route's files are staged in this batch."""
        return {
            name: self._layout(name, shape, batch)
            for name, shape in self.shapes.items()
            if shape is not None and name in self._entries  # no files are of the payload that an SQL route shares
        }

    def _layout(self, name: str, shape: RouteSchema, batch: int) -> FileLayout:
        entry = self._entries[name]
        adopted, merges = entry.committer.adopts, entry.rules.merges
        return FileLayout(
            entry.store.uri if adopted else self.staging(entry, batch),
            staged(shape.table, merges.keys) if merges else shape.table,
            self.partition_by(entry) if adopted else (),
            entry.rules.compression,
            entry.rules.target_file_size,
        )

    def once(self, batch: int) -> list[tuple[OpenTable, FileLayout]]:
        """The tables that are to have no doubles, and where their files of this batch are."""
        named = {name: entry for name, entry in self._entries.items() if name != LETTERS and entry.rules.deduplicate}
        layouts = self.layouts(batch) if named else {}
        return [(entry, layouts[name]) for name, entry in named.items() if name in layouts]

    def letters(self) -> FileLayout:
        """The dead-letter table's layout."""
        return FileLayout(self._entries[LETTERS].store.uri, self._letters_schema, ("date",))

    def staging(self, entry: OpenTable, batch: int) -> str:
        """Where files wait that Spark will append: never inside the table."""
        return f"{self.spec.state_uri}/{STAGING}/{batch}/{entry.table_id}"

    def partition_by(self, entry: OpenTable) -> tuple[str, ...]:
        """The table's own partitioning rules once it exists."""
        state = entry.committer.state
        return entry.rules.partitions if state is None else tuple(state.partition_by)

    def check_names(self, reports: Iterable[tuple[str, Iterable[tuple[str, str, str]]]]) -> None:
        """UnknownColumn where the spec names what no table, no record and no earlier batch has."""
        told = [(route, {UnknownName(*each) for each in found}) for route, found in reports]
        known = {name for table in self.ledger.known.tables.values() for name in table.names}
        if found := nowhere(told, self.branches, self.shapes, known):
            raise UnknownColumn(
                f"{self.spec.pipeline}: {'; '.join(map(str, found))}.",
                hint="Correct the name, or list it in allow_missing if it may be absent; then run again.",
            )

    # ---- committing ----

    def intents(self, files: Iterable[StagedFile], batch: int) -> tuple[TableIntent, ...]:
        """What the batch will do, table by table; dead letters last."""
        grouped: dict[str, list[StagedFile]] = {}
        for each in files:
            grouped.setdefault(each.table, []).append(each)
        grouped |= {entry.store.uri: [] for entry in self._left_over() if entry.store.uri not in grouped}
        layouts = {**self.layouts(batch), LETTERS: self.letters()}
        by_path = {layout.path: (name, layout) for name, layout in layouts.items()}
        named = sorted((by_path[path][0] == LETTERS, path) for path in grouped)
        self._forget(self._foreseen - {by_path[path][0] for path in grouped})
        return tuple(self._intent(*by_path[path], grouped[path]) for _, path in named)

    def _left_over(self) -> list[OpenTable]:
        """Tables with rows of earlier full refreshes only: they are emptied where no record is theirs now."""
        known = {*self.shapes, LETTERS}
        there = [entry for name, entry in self._entries.items() if name in known and entry.existing is not None]
        return [entry for entry in there if ALL in self._instead(entry, ())]

    def _instead(self, entry: OpenTable, files: Iterable[StagedFile]) -> tuple[str, ...]:
        """What the files take the place of; those of a replay are added to what is there."""
        if self.writer != self.spec.pipeline:
            return ()
        known = self.ledger.known
        before, number = known.tables.get(entry.store.uri), known.full_refresh.number
        if entry.name == LETTERS:
            return stale_letters(self.spec, before, number, entry.store)
        return replaced(entry.rules, before, number, files)

    def _intent(self, name: str, layout: FileLayout, files: list[StagedFile]) -> TableIntent:
        entry = self._entries[name]
        if name != LETTERS:
            check_row_identity(entry.store.uri, entry.rules, self.ledger.known.tables.get(entry.store.uri))
        shape = self.shapes.get(name)
        properties = entry.rules.all_properties if name != LETTERS else {}
        partition_by = ("date",) if name == LETTERS else self.partition_by(entry)
        return TableIntent(
            entry.store.uri,
            entry.table_id,
            entry.committer.state is None,
            to_delta(layout.schema if shape is None else shape.table),
            partition_by,
            properties,
            tuple(files),
            name == LETTERS,
            merging_of(entry.rules) if name != LETTERS else None,
            self._instead(entry, files),
            _clusters(entry, shape) if name != LETTERS else (),
            -1 if entry.committer.state is None else entry.committer.state.version,
            constraints=() if shape is None else tuple(map(str, shape.constraints)),
        )

    def commit(self, table: TableIntent, intent: Intent) -> Receipt:
        """One table's part of a batch; the same part twice changes nothing."""
        entry = self._entry_of(table)
        receipt = entry.committer.commit(table, intent)
        entry.rows, entry.wrote = row_identity(table.merging), True
        if entry.committer.state is not None:
            entry.table_id = entry.committer.state.table_id  # Spark names the tables that it makes
        if table.create and receipt.version == 0:
            faults.reach(faults.Point.AFTER_TABLE_CREATION, batch=intent.batch)
        faults.reach(faults.Point.AFTER_COMMIT, batch=intent.batch)
        if (
            entry.name != LETTERS
            and (shape := self.shapes.get(entry.name)) is not None
            and (shape.table != entry.existing or self._constraints(table) != tuple(map(str, shape.constraints)))
        ):
            self.shapes[entry.name] = self._shape(entry)  # somebody added a column: follow from the next batch on
        return receipt

    def has(self, table: TableIntent, intent: Intent) -> bool:
        """Whether a table already holds its part of a batch."""
        state = self._entry_of(table).committer.state
        return state is not None and state.txns.get(batch_txn(intent.pipeline), 0) >= intent.batch

    def find(self, table: TableIntent, intent: Intent, accepted: bool) -> None:
        """Look for a table's part of an open batch whose txn is gone, and set the txn again where it is there.

        TxnMismatch where nothing tells, unless a person has `accepted` that it is not there.
        """
        entry = self._entry_of(table)
        state = entry.committer.state
        if state is None or self.has(table, intent) or not (table.create or state.table_id == table.table_id):
            return
        found = batch_in_table(entry.store, table, intent, state)
        if found:
            tail = LogWriter.open(entry.store, [batch_txn(intent.pipeline)], lambda _: None)
            tail.append((), intent.txns(), account(intent, table.plan))
            self._entries.pop(entry.name)  # to be opened again, with the txn
        elif found is None and not accepted:
            raise TxnMismatch(
                f"{table.path} has no txn of '{intent.pipeline}', and its log no longer tells whether batch "
                f"{intent.batch} is in it ({_offsets(intent)}).",
                hint="Look for rows of these offsets (column _source) and delete them; then `headrace resume SPEC "
                "--accept-new-table` adds the rows of the batch to the table as it is now.",
            )

    def appeared(self, intent: Intent) -> bool:
        """Whether a table that the batch was to create exists now, and the files of the batch do not fit it.

        Or a constraint appeared that the rows of the batch were not held to.
        """
        for table in intent.tables:
            state = self._entry_of(table).committer.state
            if not table.dead_letters and not self.has(table, intent) and self._constraints(table) != table.constraints:
                return True
            unknown = table.create and table.path not in self.ledger.known.tables
            if unknown and state is not None and not self.has(table, intent) and not staged_for_schema(table, state):
                return True
        return False

    def _constraints(self, table: TableIntent) -> tuple[str, ...]:
        """The constraints that a table has now."""
        entry = self._entry_of(table)
        return tuple(map(str, constraints_of(entry.store.uri, entry.committer.state, entry.rules)))

    def plan_of(self, table: TableIntent, intent: Intent) -> int:
        """By which plan of the batch a table holds its part; that of the part at hand where the log no longer tells."""
        entry = self._entry_of(table)
        version = newest_version(entry.store)
        part = newest_part(entry.store, version, batch_txn(intent.pipeline)) if version is not None else None
        return int(part.account.get("plan", 0)) if part is not None else table.plan

    def _entry_of(self, table: TableIntent) -> OpenTable:
        for entry in self._entries.values():
            if entry.store.uri == table.path:
                return entry
        name = LETTERS if table.dead_letters else self.spec.name_of(table.path)
        if name is None:
            name = f"at {table.path}"  # of an earlier spec: no route of this one leads there
        apart = any(file.table != table.path for file in table.files)
        self._entries[name] = self._open(name, table.path, apart)
        return self._entries[name]

    def written(self) -> Iterator[tuple[Store, TableWriter, TableSpec | None]]:
        """The tables that there are, who writes them, and what the spec says of each; nothing of the letters."""
        for name, entry in self._entries.items():
            if entry.committer.state is not None:
                yield entry.store, entry.committer, None if name == LETTERS else entry.rules

    def tables(self) -> dict[str, KnownTable]:
        """What the ledger should remember of the tables that exist."""
        return {
            entry.store.uri: self._known_as(entry)
            for entry in self._entries.values()
            if entry.committer.state is not None
        }

    def _read_only(self, entry: OpenTable) -> set[str]:
        """Fields that records have, expressions read and the table does not keep: nothing else tells of them later."""
        shape = self.shapes.get(entry.name)
        if shape is None:
            return set()
        return {name for name in shape.payload.names if name in entry.branch.transform.inputs()} - {*shape.table.names}

    def _known_as(self, entry: OpenTable) -> KnownTable:
        assert entry.committer.state is not None  # noqa: S101
        before = self.ledger.known.tables.get(entry.store.uri, KnownTable("", ""))
        return replace(
            before,
            id=entry.committer.state.table_id,
            writer=entry.writer_kind,
            rows=entry.rows or before.rows,
            writers=tuple(sorted({*before.writers, self.writer})) if entry.wrote else before.writers,
            scanned=max(before.scanned, entry.seen),
            names=tuple(sorted({*before.names, *self._read_only(entry)})),
        )


def _clusters(entry: OpenTable, shape: RouteSchema | None) -> tuple[str, ...]:
    """The columns that a table is made to be clustered by; once it is there, it says so itself."""
    if entry.committer.state is not None or shape is None:
        return ()
    if absent := [name for name in entry.rules.cluster_by if name not in shape.table.names]:
        raise ColumnsDisagree(
            f"{entry.store.uri} is to be clustered by '{absent[0]}', which no record has brought.",
            hint="Declare the column, or cluster by another one; then run again.",
        )
    return entry.rules.cluster_by


def _offsets(intent: Intent) -> str:
    read = [f"{each.topic}/{each.partition}: offsets {each.start} to {each.until - 1}" for each in intent.ranges]
    return "; ".join(read) or "it reads no new records"


def _merged(known: Structure | None, seen: Structure) -> Structure:
    return seen if known is None else merge_structures(known, seen)


def _check_declared(entry: OpenTable, have: pa.Schema) -> None:
    if absent := [column.name for column in entry.rules.columns if column.name not in have.names]:
        raise ColumnsDisagree(
            f"{entry.store.uri} lacks the declared {', '.join(map(repr, absent))}, and the spec says create: never.",
            hint="Add it to the table, or take it out of the spec; then run again.",
        )
