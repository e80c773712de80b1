"""Tables of a running pipeline: where a batch is staged for them, and what it commits to each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from headrace.decode.inference import Structure
from headrace.delta.schema import from_delta, to_delta
from headrace.delta.staged_file import StagedFile
from headrace.errors import ColumnMismatch
from headrace.ledger.known_tables import KnownTable
from headrace.ledger.ledger import Ledger
from headrace.pipeline.open_tables import OpenTables
from headrace.pipeline.overwrite import replaced, stale_dead_letters
from headrace.pipeline.route_discovery import RouteDiscovery
from headrace.pipeline.route_schemas import RouteSchemas
from headrace.pipeline.table_commits import TableCommits
from headrace.pipeline.table_entry import OpenTable, TableOpener, check_row_identity, merging_of
from headrace.plan.inferred_columns import InferredColumns
from headrace.plan.plan import Plan
from headrace.plan.route_schema import Offsets, RouteSchema
from headrace.plan.unknown_names import Reports
from headrace.source.ranges import Range
from headrace.spec import Spec, TableSpec
from headrace.spec.route_id import RouteId
from headrace.stage.change_schema import staged_schema
from headrace.stage.layout import FileLayout
from headrace.storage.store import Profile, Store
from headrace.write.intent import ALL, TableIntent
from headrace.write.table_writer import TableWriter

STAGING = "staging"  # the folder of the state for files that are merged, or appended by Spark
_DEAD_LETTER_PARTITIONS = ("date",)


class PipelineTables:
    """The tables of a pipeline and the schemas of their routes, as one batch after the other sees them."""

    def __init__(
        self,
        spec: Spec,
        profile: Profile,
        ledger: Ledger,
        spark_table: Callable[[Store], TableWriter],
        writer: str = "",  # the name in the txns of the commits; the pipeline's own by default
    ) -> None:
        self.spec, self.writer, self.ledger = spec, writer or spec.pipeline, ledger
        plan = Plan(spec, {})
        self._dead_letters_schema = plan.dead_letter_columns.schema
        opener = TableOpener(ledger, spark_table, spec, self.writer)
        self._tables = OpenTables(spec, profile, plan.branches, opener)
        self._schemas = RouteSchemas(self._tables)
        self._checked: frozenset[str] = frozenset()  # branches whose names were checked in this run
        self._discovery = RouteDiscovery(self._tables, self._schemas)
        self.commits = TableCommits(ledger, self._tables, self._schemas)

    @property
    def schemas(self) -> dict[RouteId, RouteSchema | None]:
        """The schema of every route; None for a route beyond the limit of tables."""
        return self._schemas.by_route

    def open(self) -> None:
        """Open the tables that are known before the first record: those of fixed routes and of the ledger."""
        dead_letters = self._tables.dead_letters
        existing = dead_letters.existing
        if existing is not None and not set(self._dead_letters_schema.names) <= set(existing.names):
            dead_letters.writer.evolve(self._dead_letters_schema)
        for name, branch in self._tables.branches.items():
            if branch.routing.by == "fixed":
                self._tables.open(RouteId(name))
        self._tables.open_known()
        self._schemas.refresh()

    # ---- schemas ----

    def write_only_to(self, uri: str, floors: Offsets) -> None:
        """Let all other tables skip records up to these offsets; not for dead letters, which any table may cause."""
        if self._tables.dead_letters.store.uri != uri:
            for entry in self._tables:
                entry.floors = {**entry.taken_over, **floors} if entry.store.uri != uri else entry.taken_over
            self._schemas.refresh()

    def keep_planned(self, parts: Iterable[TableIntent]) -> None:
        """Plan with the columns of these parts of a batch: their tables already have them, so no record may move."""
        for part in parts:
            self._tables.of(part).planned = from_delta(part.schema) if not part.dead_letters else None
        self._schemas.refresh()

    def begin_batch(self, batch: int) -> None:
        """Open tables that another writer has created, reset the limits of a batch, and evolve the tables."""
        if self._tables.reopen_created():
            self._schemas.refresh()
        self._discovery.begin_batch()
        self._schemas.begin_batch()
        self._schemas.evolve_tables(batch)

    def add_discovered(self, discovered: Mapping[RouteId, Structure], batch: int) -> list[InferredColumns]:
        """Open the tables of new routes, and evolve tables for new fields before anything is staged for them."""
        before = dict(self.schemas)
        self._discovery.add(discovered)
        self._schemas.evolve_tables(batch)
        return list(self._discovery.new_columns(before, discovered))

    def are_declared(self, routes: Iterable[RouteId]) -> bool:
        """Whether files are valid that were staged for tables as the spec declares them."""
        return self._schemas.are_declared(routes)

    def check_names(self, reports: Reports) -> None:
        """UnknownColumn where the spec names a column that no table, no record and no earlier batch has."""
        names = {name for table in self.ledger.known.tables.values() for name in table.names}
        reports = list(reports)
        self._schemas.check_names(reports, names)
        self._checked |= {route_id.branch for route_id, _ in reports}

    # ---- staging ----

    def layouts(self, batch: int) -> dict[RouteId, FileLayout]:
        """Where the files of each route are staged in this batch; none for the payload that an SQL route shares."""
        tables = self._tables.by_route
        return {
            route_id: self._layout(tables[route_id], schema, batch)
            for route_id, schema in self.schemas.items()
            if schema is not None and route_id in tables
        }

    def dead_letter_layout(self) -> FileLayout:
        """Where dead letters are staged."""
        return FileLayout(self._tables.dead_letters.store.uri, self._dead_letters_schema, _DEAD_LETTER_PARTITIONS)

    def deduplicated(self, batch: int) -> list[tuple[OpenTable, FileLayout]]:
        """The tables that drop duplicates, and where their files of this batch are staged."""
        entries = {route_id: entry for route_id, entry in self._tables.by_route.items() if entry.rules.deduplicate}
        layouts = self.layouts(batch) if entries else {}
        return [(entry, layouts[route_id]) for route_id, entry in entries.items() if route_id in layouts]

    def _layout(self, entry: OpenTable, schema: RouteSchema, batch: int) -> FileLayout:
        direct, merges = entry.writer.commits_directly, entry.rules.merges
        return FileLayout(
            entry.store.uri if direct else f"{self.spec.state_uri}/{STAGING}/{batch}/{entry.table_id}",
            staged_schema(schema.table, merges.keys) if merges else schema.table,
            entry.partition_by if direct else (),
            entry.rules.compression,
            entry.rules.target_file_size,
        )

    # ---- intents ----

    def intents(self, files: Iterable[StagedFile], batch: int, read: Sequence[Range] = ()) -> tuple[TableIntent, ...]:
        """What the batch commits, table by table, dead letters last; `read`: the positions after it."""
        dead_letters, by_folder = self._tables.dead_letters, dict[str, list[StagedFile]]()
        for file in files:
            by_folder.setdefault(file.table, []).append(file)
        layouts = self.layouts(batch)
        tables = {layout.path: (self._tables.by_route[route_id], layout) for route_id, layout in layouts.items()}
        tables[dead_letters.store.uri] = dead_letters, self.dead_letter_layout()
        by_folder |= {uri: [] for uri in self._stale_tables() if uri not in by_folder}
        order = sorted(by_folder, key=lambda folder: (tables[folder][0] is dead_letters, folder))
        routes = (tables[folder][0].route_id for folder in order)
        self._discovery.close_unused(route_id for route_id in routes if route_id is not None)
        return tuple(self._intent(*tables[folder], by_folder[folder], read) for folder in order)

    def _stale_tables(self) -> list[str]:
        """Tables that only have rows of earlier full refreshes: overwritten even where no record is routed to them."""
        routed = [entry for route_id, entry in self._tables.by_route.items() if route_id in self.schemas]
        existing = [entry for entry in (*routed, self._tables.dead_letters) if entry.existing is not None]
        return [entry.store.uri for entry in existing if ALL in self._replaces(entry, ())]

    def _replaces(self, entry: OpenTable, files: Iterable[StagedFile]) -> tuple[str, ...]:
        """The partitions that the files overwrite; files of a replay are appended."""
        if self.writer != self.spec.pipeline:
            return ()
        known = self.ledger.known
        table, number = known.tables.get(entry.store.uri), known.full_refresh.number
        if entry.dead_letters:
            return stale_dead_letters(self.spec, table, number, entry.store)
        return replaced(entry.rules, table, number, files)

    def _intent(
        self, entry: OpenTable, layout: FileLayout, files: list[StagedFile], read: Sequence[Range]
    ) -> TableIntent:
        state, schema = entry.writer.state, self._schemas.of(entry)
        intent = TableIntent(
            entry.store.uri,
            entry.table_id,
            state is None,
            to_delta(layout.schema if schema is None else schema.table),
            _DEAD_LETTER_PARTITIONS,
            {},
            tuple(files),
            entry.dead_letters,
            replaces=self._replaces(entry, files),
            version=-1 if state is None else state.version,
        )
        if schema is None:
            return intent
        check_row_identity(entry.store.uri, entry.rules, self.ledger.known.tables.get(entry.store.uri))
        return replace(
            intent,
            partition_by=entry.partition_by,
            properties=entry.rules.all_properties,
            merging=merging_of(entry.rules),
            cluster_by=_cluster_by(entry, schema),
            constraints=tuple(map(str, schema.constraints)),
            foreign=entry.foreign.changes(entry.foreign_versions, read, self.ledger.known.start or {}),
        )

    # ---- the tables themselves ----

    def follow_logs(self) -> None:
        """Read the commits of other writers, so that the next start has fewer of them to scan."""
        self._tables.follow_logs()

    def written(self) -> Iterator[tuple[Store, TableWriter, TableSpec | None]]:
        """The tables that exist, their writers, and their options in the spec; None for the dead letters."""
        for entry in self._tables:
            if entry.writer.state is not None:
                yield entry.store, entry.writer, None if entry.dead_letters else entry.rules

    def _names_read(self, entry: OpenTable) -> set[str]:
        """Names of the spec that records had and the table does not show: later records may lack them."""
        keys = entry.branch.transform.keys_read() if entry.branch.name in self._checked else frozenset[str]()
        return self._schemas.read_only_fields(entry) | keys

    def known_tables(self) -> dict[str, KnownTable]:
        """The tables that exist, as the ledger is to know them."""
        return {entry.store.uri: self._known(entry) for entry in self._tables if entry.writer.state is not None}

    def _known(self, entry: OpenTable) -> KnownTable:
        before = self.ledger.known.tables.get(entry.store.uri, KnownTable("", ""))
        return replace(
            before,
            id=before.id if entry.writer.state is None else entry.writer.state.table_id,
            writer=entry.writer_kind,
            rows=entry.rows or before.rows,
            writers=tuple(sorted({*before.writers, self.writer})) if entry.committed else before.writers,
            scanned=max(before.scanned, entry.scanned),
            names=tuple(sorted({*before.names, *self._names_read(entry)})),
        )


def _cluster_by(entry: OpenTable, schema: RouteSchema) -> tuple[str, ...]:
    """The columns that a new table is clustered by; an existing table has its own."""
    if entry.writer.state is not None:
        return ()
    if absent := [name for name in entry.rules.cluster_by if name not in schema.table.names]:
        raise ColumnMismatch(
            f"{entry.store.uri} cannot be clustered by '{absent[0]}': neither the spec nor a record has this column.",
            hint="Declare the column or cluster by another one, then run again.",
        )
    return entry.rules.cluster_by
