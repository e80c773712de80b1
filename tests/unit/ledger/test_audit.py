"""The audit log."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from headrace.ledger.audit import AuditEntry, AuditLog, AuditPhase
from headrace.storage.store import Store

THEN = datetime(2026, 1, 31, 12, tzinfo=UTC)


def entry(number: int, phase: AuditPhase = AuditPhase.REQUESTED) -> AuditEntry:
    at = THEN + timedelta(milliseconds=number)
    return AuditEntry(f"c{number}", at, "shop", "operator", "::1", "pause", "pipeline", phase, "№ running")


def test_entries_are_read_newest_first(tmp_path: Path) -> None:
    log = AuditLog(Store(str(tmp_path)))
    assert log.newest(10) == []
    for number in (2, 0, 1):
        log.add(entry(number))
    assert log.newest(10) == [entry(2), entry(1), entry(0)]
    assert log.newest(2) == [entry(2), entry(1)]


def test_entries_of_the_same_moment_are_all_kept(tmp_path: Path) -> None:
    log = AuditLog(Store(str(tmp_path)))
    for _ in range(3):
        log.add(entry(0))
    assert len(log.newest(10)) == 3


def test_an_entry_is_a_line_of_json() -> None:
    text = entry(0, AuditPhase.DONE).to_json()
    assert "\n" not in text
    assert AuditEntry.from_json(text) == entry(0, AuditPhase.DONE)
