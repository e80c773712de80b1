"""The pages: which values each one shows."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from starlette.responses import RedirectResponse, Response

from headrace.dead_letters.reader import RecordPosition
from headrace.delta.snapshot import load_state
from headrace.errors import HeadraceError, UsageError
from headrace.maintain.journal import Journal
from headrace.serve.console import editor as editing
from headrace.serve.console.batches import BatchLine, BatchStep, batch_lines, batch_path
from headrace.serve.console.changes import OF_TABLES, ChangeKind, ChangeRequest, OperatorChanges
from headrace.serve.console.dead_letters import DryRunLine, dead_letter_page, dry_run_lines, selection_of
from headrace.serve.console.offsets import partition_offsets
from headrace.serve.console.overview import overview_row, overview_rows
from headrace.serve.console.rendering import Page, Visit
from headrace.serve.console.spec_text import spec_text
from headrace.serve.console.state import StoredPipeline, TableLink, row_of
from headrace.serve.console.tables import PagePart, table_page
from headrace.serve.monitor import Monitor
from headrace.serve.pipeline_view import PipelineView
from headrace.storage.store import Store
from headrace.validate.load import loads

_BATCHES, _MAX_BATCHES = 25, 500
_AUDIT_ENTRIES = 200
_SCHEMAS_VALID = 30.0  # seconds


class PageNotFound(Exception):
    """There is no such page."""


@dataclass(frozen=True, slots=True)
class LedgerPart:
    """What the page of a pipeline shows of its state."""

    lines: list[BatchLine]
    row: Mapping[str, Any] | None  # the batch whose path is shown
    path: list[BatchStep]
    links: list[TableLink]
    maintenance: Journal | None


class Pages:
    """Reads the values of each page. Methods may be called from any thread."""

    def __init__(self, monitor: Monitor, *, is_live: bool) -> None:
        """`is_live`: whether the monitor gets the events of running pipelines, not just their state."""
        self._monitor, self._is_live = monitor, is_live
        self.changes: OperatorChanges | None = None  # while pipelines of this process can be changed
        self._schemas: dict[str, tuple[float, dict[str, pa.Schema]]] = {}
        self._lock = threading.Lock()

    @property
    def has_changes(self) -> bool:
        """Whether operators can change something."""
        return self.changes is not None

    def _view(self, visit: Visit) -> PipelineView:
        try:
            return self._monitor.pipeline(visit.param("pipeline"))
        except KeyError:
            raise PageNotFound(f"There is no pipeline '{visit.param('pipeline')}' here.") from None

    def _stored(self, visit: Visit) -> StoredPipeline:
        return StoredPipeline(self._view(visit).spec)

    # ---- read ----

    def overview(self, visit: Visit) -> Page:
        """All pipelines."""
        rows = overview_rows(self._monitor.pipelines())
        return Page("overview.html", "Overview", {"rows": rows, "is_live": self._is_live})

    def help(self, visit: Visit) -> Page:
        """Keys, roles and access."""
        return Page("help.html", "Help", {})

    def pipeline(self, visit: Visit) -> Page:
        """One pipeline: state, rates, batches, tables."""
        view = self._view(visit)
        ledger = PagePart.of(lambda: self._ledger(view, visit)) if visit.part != "now" else PagePart(None)
        values = {"row": overview_row(view), "view": view, "ledger": ledger, "is_live": self._is_live}
        return Page("pipeline.html", view.name, values)

    def _ledger(self, view: PipelineView, visit: Visit) -> LedgerPart:
        stored, count = StoredPipeline(view.spec), min(visit.number("batches") or _BATCHES, _MAX_BATCHES)
        ledger = stored.ledger()
        rows = ledger.rows(count)
        row = row_of(rows, visit.number("batch"))
        activity = next((each for each in view.last_batches if row and each.batch == row["batch"]), None)
        dead = stored.dead_letters().counts_by_step(row["ranges"]) if row and row["dead"] else {}
        path = batch_path(row, dead, activity.phases if activity else {}, view.spec.dead_letters_uri) if row else []
        journal = Journal(stored.store) if view.spec.maintenance is not None else None
        lines = batch_lines(view.last_batches if self._is_live else (), rows)
        return LedgerPart(lines[:count], row, path, stored.links(ledger), journal)

    def spec(self, visit: Visit) -> Page:
        """The spec with its diagnostics."""
        view = self._view(visit)
        return Page("spec.html", f"Spec of {view.name}", {"view": view, "spec": spec_text(view.spec)})

    def offsets(self, visit: Visit) -> Page:
        """The offset ranges of each partition."""
        view = self._view(visit)
        count = min(visit.number("batches") or 100, _MAX_BATCHES)
        ledger = StoredPipeline(view.spec).ledger()
        partitions = partition_offsets(ledger.rows(count), ledger.position(), view.lag)
        values = {"view": view, "partitions": partitions, "count": count}
        return Page("offsets.html", f"Offsets of {view.name}", values)

    def _link(self, stored: StoredPipeline, key: str) -> TableLink:
        for link in stored.links(stored.ledger()):
            if link.key == key:
                return link
        raise PageNotFound(f"The pipeline '{stored.spec.pipeline}' has no table '{key}'.")

    def table(self, visit: Visit) -> Page:
        """One table."""
        stored = self._stored(visit)
        link = self._link(stored, visit.param("table"))
        if link.has_dead_letters and not visit.is_operator:
            return self.forbidden(True)  # its rows are raw records
        page = table_page(stored, link, visit.number("version"))
        return Page("table.html", link.name, {"view": self._view(visit), "table": page})

    def dead_letters(self, visit: Visit) -> Page:
        """Dead letters by reason, with samples."""
        view = self._view(visit)
        reason, table = visit.query.get("reason", ""), visit.query.get("table", "")
        content = dead_letter_page(StoredPipeline(view.spec), selection_of(reason, table), masked=not visit.is_operator)
        values = {"view": view, "content": content, "reason": reason, "table": table}
        return Page("dead_letters.html", f"Dead letters of {view.name}", values)

    def dead_letter_value(self, visit: Visit) -> Response:
        """The raw value of a dead letter, as a file."""
        topic, partition, offset = visit.query.get("topic", ""), visit.number("partition"), visit.number("offset")
        if partition is None or offset is None:
            raise PageNotFound("There is no such dead letter.")
        rows = self._stored(visit).dead_letters().find(RecordPosition(topic, partition, offset))
        if not rows:
            raise PageNotFound(f"There is no dead letter at {topic}/{partition}/{offset}.")
        name = f'attachment; filename="{partition}-{offset}.bin"'
        return Response(
            rows[-1]["value"] or b"", media_type="application/octet-stream", headers={"content-disposition": name}
        )

    def dry_run(self, visit: Visit) -> Page:
        """What a replay with a changed spec would do."""
        view = self._view(visit)
        stored = StoredPipeline(view.spec)
        reason, table = (visit.form.get(name, visit.query.get(name, "")) for name in ("reason", "table"))
        text = visit.form.get("spec") or spec_text(view.spec).text
        refusals = tuple(editing.outside_changes(text, view.spec)) if "spec" in visit.form else ()
        result: PagePart[list[DryRunLine]] = PagePart(None)
        if "spec" in visit.form and not refusals:
            selection = selection_of(reason, table)
            result = PagePart.of(lambda: dry_run_lines(stored, loads(text, view.spec.base, "spec")[0], selection))
        values = {"view": view, "reason": reason, "table": table, "text": text}
        return Page("dry_run.html", "Dry run", {**values, "diagnostics": refusals, "result": result})

    def audit(self, visit: Visit) -> Page:
        """The audit log."""
        view = self._view(visit)
        entries = StoredPipeline(view.spec).audit.newest(_AUDIT_ENTRIES)
        done = {entry.change for entry in entries if entry.phase != "requested"}
        return Page("audit.html", f"Audit log of {view.name}", {"view": view, "entries": entries, "done": done})

    # ---- the editor ----

    def editor(self, visit: Visit) -> Page:
        """A spec, sample records, and what the spec does with them."""
        name = visit.form.get("pipeline", visit.query.get("pipeline", ""))
        view = next((each for each in self._monitor.pipelines() if each.name == name), None)
        edited = view.spec if view else None
        schemas = self._table_schemas(view) if view else {}
        text = visit.form.get("spec") or (spec_text(edited).text if edited else editing.NEW_SPEC)
        records = visit.form.get("records")
        if records is None:
            records = editing.example_records(edited, schemas) if edited else editing.NEW_RECORDS
        result = editing.run_editor(text, records, edited, schemas)
        names = [each.name for each in self._monitor.pipelines()]
        values = {"name": name if view else "", "names": names, "text": text, "records": records, "result": result}
        return Page("editor_result.html" if visit.part else "editor.html", "Editor", values)

    def _table_schemas(self, view: PipelineView) -> dict[str, pa.Schema]:
        """Columns of the pipeline's tables, by URI; read again after a while."""
        with self._lock:
            at, schemas = self._schemas.get(view.name, (0.0, {}))
            if time.monotonic() - at < _SCHEMAS_VALID:
                return schemas
        stored = StoredPipeline(view.spec)
        schemas = {}
        for link in PagePart.of(lambda: stored.links(stored.ledger())).content or ():
            state = PagePart.of(lambda uri=link.uri: load_state(Store(uri, stored.profile))).content  # type: ignore[misc]
            if state is not None and not link.has_dead_letters:
                schemas[link.uri] = state.schema
        with self._lock:
            self._schemas[view.name] = time.monotonic(), schemas
        return schemas

    # ---- changes ----

    def _change_request(self, visit: Visit) -> ChangeRequest:
        stored, kind = self._stored(visit), visit.param("change")
        if kind not in list(ChangeKind):
            raise PageNotFound(f"There is no change '{kind}'.")
        given = {name: visit.form.get(name, visit.query.get(name, "")) for name in ("table", "reason")}
        if kind in OF_TABLES:
            return ChangeRequest(ChangeKind(kind), stored, self._link(stored, given["table"]))
        if kind == ChangeKind.REPLAY:
            return ChangeRequest(ChangeKind.REPLAY, stored, None, given["reason"], given["table"])
        return ChangeRequest(ChangeKind(kind), stored)

    def change(self, visit: Visit, message: str = "") -> Page:
        """The page that asks before a change."""
        request = self._change_request(visit)
        if self.changes is None:
            return self._unchangeable()
        plan = self.changes.plan(request)
        values = {"view": self._view(visit), "plan": plan, "request": request, "message": message}
        return Page("change.html", f"{plan.kind.value.capitalize()} {plan.subject}", values, 400 if message else 200)

    def confirmed_change(self, visit: Visit) -> Page | Response:
        """Carry out a change that is confirmed."""
        request = self._change_request(visit)
        if self.changes is None:
            return self._unchangeable()
        plan = self.changes.plan(request)
        if visit.form.get("confirm", "").strip() != (plan.typed or "yes"):
            return self.change(visit, f"Type {plan.typed} to confirm.")
        try:
            self.changes.carry_out(request, visit)
        except UsageError:
            raise
        except HeadraceError as error:
            return self.failure(502, f"Nothing was changed: {error.message}", error.hint)
        return RedirectResponse(f"/pipelines/{quote(request.stored.spec.pipeline)}/audit", 303)

    def _unchangeable(self) -> Page:
        hint = "Use the console of the process that runs the pipeline (headrace run --console), or the command line."
        return self.failure(409, "This console shows state only, and changes nothing.", hint)

    # ---- errors ----

    def forbidden(self, has_operator: bool) -> Page:
        """The page for visitors whose role does not suffice."""
        hint = "Sign in with the operator token." if has_operator else "Start Headrace with HEADRACE_OPERATOR_TOKEN."
        return self.failure(403, "This requires the operator role.", hint)

    def failure(self, status: int, message: str, hint: str = "") -> Page:
        """A page about an error."""
        return Page("error.html", "Error", {"message": message, "hint": hint}, status)
