"""Changes that operators make: planned for the page that asks first, recorded in the audit log, then carried out."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from headrace.errors import HeadraceError, UsageError, plural
from headrace.ledger.audit import AuditEntry, AuditPhase
from headrace.serve.console.dead_letters import selection_of
from headrace.serve.console.rendering import Visit
from headrace.serve.console.state import StoredPipeline, TableLink
from headrace.serve.console.text import size_text
from headrace.serve.redaction import Redaction
from headrace.serve.supervisor import Supervisor


class ChangeKind(StrEnum):
    """What an operator can do."""

    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    REPLAY = "replay"
    OPTIMIZE = "optimize"
    VACUUM = "vacuum"


OF_TABLES = (ChangeKind.OPTIMIZE, ChangeKind.VACUUM)


@dataclass(frozen=True, slots=True)
class ChangePlan:
    """A change before it is confirmed."""

    kind: ChangeKind
    subject: str
    effect: str
    facts: tuple[tuple[str, str], ...]
    typed: str = ""  # what must be typed to confirm; empty: a button suffices
    command: str = ""  # the same on the command line


@dataclass(frozen=True, slots=True)
class ChangeRequest:
    """A change of a pipeline, or of one of its tables or dead letters."""

    kind: ChangeKind
    stored: StoredPipeline
    table: TableLink | None = None
    reason: str = ""  # of dead letters; empty selects all
    dead_letter_table: str = ""

    @property
    def subject(self) -> str:
        """What is changed."""
        selected = ", ".join(filter(None, (self.reason, self.dead_letter_table)))
        if self.kind is ChangeKind.REPLAY:
            return f"dead letters{f' ({selected})' if selected else ''}"
        return self.table.uri if self.table else "pipeline"


class OperatorChanges:
    """Plans and carries out changes, through the supervisor of this process."""

    def __init__(self, supervisor: Supervisor, redaction: Redaction) -> None:
        self._supervisor, self._redaction = supervisor, redaction

    def plan(self, request: ChangeRequest) -> ChangePlan:
        """What a change would do now."""
        return _PLANS[request.kind](self, request)

    def carry_out(self, request: ChangeRequest, visit: Visit) -> None:
        """Record the request, and carry it out in the background; nothing is changed if it cannot be recorded."""
        role = visit.role.name.lower() if visit.role is not None else ""
        change = uuid.uuid4().hex[:12]

        def record(phase: AuditPhase, state: str) -> None:
            pipeline = request.stored.spec.pipeline
            now, text = datetime.now(UTC), self._redaction.text(state)
            entry = AuditEntry(
                change, now, pipeline, role, visit.address, request.kind.value, request.subject, phase, text
            )
            request.stored.audit.add(entry)

        record(AuditPhase.REQUESTED, self._state_before(request))
        thread = threading.Thread(
            target=self._work, args=(request, record), name=f"console {request.kind}", daemon=True
        )
        thread.start()
        thread.join(1.0)  # most changes are quick: the next page already shows their result

    def _work(self, request: ChangeRequest, record: Callable[[AuditPhase, str], None]) -> None:
        try:
            phase, state = AuditPhase.DONE, _ACTIONS[request.kind](self._supervisor, request)
        except HeadraceError as error:
            phase, state = AuditPhase.FAILED, f"{error.name}: {error.message} {error.hint}".strip()
        except Exception as error:  # the entry must not stay open
            phase, state = AuditPhase.FAILED, f"{type(error).__name__}: {error}"
        with suppress(HeadraceError):
            record(phase, state)

    def _state_before(self, request: ChangeRequest) -> str:
        if request.table is not None:
            return f"version {request.stored.table(request.table).resolve()}"
        if request.kind is ChangeKind.REPLAY:
            return f"{plural(_selected_count(request), 'dead letter')}"
        return _state_text(self._supervisor, request.stored.spec.pipeline)

    # ---- plans ----

    def pipeline_plan(self, request: ChangeRequest) -> ChangePlan:
        """Pause, resume or restart."""
        name, effects = request.stored.spec.pipeline, _PIPELINE_EFFECTS
        facts = (("State now", _state_text(self._supervisor, name)),)
        command = f"headrace {request.kind} {name}"
        return ChangePlan(request.kind, name, effects[request.kind], facts, command=command)

    def replay_plan(self, request: ChangeRequest) -> ChangePlan:
        """Replay dead letters."""
        groups = request.stored.dead_letters().groups(selection_of(request.reason, request.dead_letter_table))
        facts = tuple(
            (f"{each.reason}, {each.table or 'no table yet'}", plural(each.count, "dead letter")) for each in groups
        )
        effect = (
            "The pipeline finishes its current batch and stops. The selected dead letters are processed with its "
            "current spec, exactly once: rows are added to the tables, and what is rejected again stays a dead "
            "letter. Then the pipeline starts again."
        )
        name = request.stored.spec.pipeline
        return ChangePlan(request.kind, name, effect, facts, name, "headrace dead-letters replay SPEC")

    def optimize_plan(self, request: ChangeRequest) -> ChangePlan:
        """Compact a table."""
        assert request.table is not None  # noqa: S101
        statistics = request.stored.table(request.table).statistics()
        facts = (
            ("Files", f"{statistics.files:,} ({size_text(statistics.bytes)})"),
            ("Small files", f"{statistics.small_files:,}"),
        )
        effect = "Small files are rewritten into larger ones. No row changes; the pipeline continues."
        command = f"headrace table optimize {request.table.uri}"
        return ChangePlan(request.kind, request.table.name, effect, facts, command=command)

    def vacuum_plan(self, request: ChangeRequest) -> ChangePlan:
        """Delete unused files of a table: a dry run."""
        assert request.table is not None  # noqa: S101
        result = request.stored.table(request.table).vacuum(dry_run=True)
        facts = (("Files to delete", f"{len(result.files):,} ({size_text(result.bytes)})"),)
        effect = (
            "Files that no version of the last seven days uses are deleted permanently. Older versions can no longer "
            "be queried or restored."
        )
        command = f"headrace table vacuum {request.table.uri}"
        return ChangePlan(request.kind, request.table.name, effect, facts, request.table.name, command)


_PIPELINE_EFFECTS = {
    ChangeKind.PAUSE: "The pipeline pauses after its current batch. It keeps its lease, and reads nothing until it is "
    "resumed.",
    ChangeKind.RESUME: "The pipeline continues where it paused.",
    ChangeKind.RESTART: "The pipeline finishes its current batch, stops and starts again. A failed pipeline starts at "
    "once.",
}
_PLANS: Mapping[ChangeKind, Callable[[OperatorChanges, ChangeRequest], ChangePlan]] = {
    ChangeKind.PAUSE: OperatorChanges.pipeline_plan,
    ChangeKind.RESUME: OperatorChanges.pipeline_plan,
    ChangeKind.RESTART: OperatorChanges.pipeline_plan,
    ChangeKind.REPLAY: OperatorChanges.replay_plan,
    ChangeKind.OPTIMIZE: OperatorChanges.optimize_plan,
    ChangeKind.VACUUM: OperatorChanges.vacuum_plan,
}


def _state_text(supervisor: Supervisor, pipeline: str) -> str:
    state = next((each for each in supervisor.states() if each.pipeline == pipeline), None)
    if state is None:
        raise UsageError(f"This process has no pipeline '{pipeline}'.")
    extra = ", pause requested" if state.is_pausing else ", restart requested" if state.is_restarting else ""
    return f"{state.state.value}{extra}" + (f": {state.reason}" if state.reason else "")


def _selected_count(request: ChangeRequest) -> int:
    selection = selection_of(request.reason, request.dead_letter_table)
    return sum(each.count for each in request.stored.dead_letters().groups(selection))


# ---- actions: each returns the state after the change ----


def _pause(supervisor: Supervisor, request: ChangeRequest) -> str:
    supervisor.pause(request.stored.spec.pipeline)
    return _state_text(supervisor, request.stored.spec.pipeline)


def _resume(supervisor: Supervisor, request: ChangeRequest) -> str:
    supervisor.resume(request.stored.spec.pipeline)
    return _state_text(supervisor, request.stored.spec.pipeline)


def _restart(supervisor: Supervisor, request: ChangeRequest) -> str:
    supervisor.restart(request.stored.spec.pipeline)
    return _state_text(supervisor, request.stored.spec.pipeline)


def _replay(supervisor: Supervisor, request: ChangeRequest) -> str:
    selection = selection_of(request.reason, request.dead_letter_table)
    summary = supervisor.replay(request.stored.spec.pipeline, selection)
    counts = summary.counts
    return (
        f"{plural(counts.read, 'dead letter')}: {counts.routed:,} replayed, {counts.dead:,} still dead, "
        f"{counts.filtered:,} filtered"
    )


def _optimize(supervisor: Supervisor, request: ChangeRequest) -> str:
    result: Any = _table(request).optimize()
    return (
        f"version {result.version}: {plural(result.files_removed, 'file')} ({size_text(result.bytes_removed)}) became "
        f"{result.files_added:,} ({size_text(result.bytes_added)})"
    )


def _vacuum(supervisor: Supervisor, request: ChangeRequest) -> str:
    result: Any = _table(request).vacuum()
    return f"{plural(len(result.files), 'file')} ({size_text(result.bytes)}) deleted"


def _table(request: ChangeRequest) -> Any:
    assert request.table is not None  # noqa: S101
    return request.stored.table(request.table)


_ACTIONS: Mapping[ChangeKind, Callable[[Supervisor, ChangeRequest], str]] = {
    ChangeKind.PAUSE: _pause,
    ChangeKind.RESUME: _resume,
    ChangeKind.RESTART: _restart,
    ChangeKind.REPLAY: _replay,
    ChangeKind.OPTIMIZE: _optimize,
    ChangeKind.VACUUM: _vacuum,
}
