"""`headrace reset`: a pipeline starts over; what goes is shown first, and never while it runs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace import Table
from headrace.cli import main
from headrace.ledger.audit import AuditEntry, AuditLog, AuditPhase
from headrace.source.spool.writer import Spool
from headrace.storage.lease import Lease
from headrace.storage.store import Store
from services.in_process_pipeline import Harness

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """A pipeline with two tables and a dead letter, beside a table of somebody else."""
    harness = Harness(tmp_path)
    harness.feed([{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "beta"}, b"bad"])
    harness.write_spec()
    write_deltalake(tmp_path / "lake" / "foreign", pa.table({"id": [1]}))
    return harness


@pytest.fixture
def cli(harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(harness.folder)

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "reset", "shop.yaml", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def there(harness: Harness) -> set[str]:
    return {str(path.relative_to(harness.folder)) for path in harness.folder.rglob("*") if path.is_file()}


def without_lease(paths: set[str]) -> set[str]:
    return {path for path in paths if "/lease/" not in path}


def test_a_pipeline_starts_over(cli: Run, harness: Harness):
    code, out, _ = cli("--tables", "--yes")
    assert code == 0
    lake = harness.folder / "lake"
    for line in (f"table {lake}/alpha: 1 row, ", f"table {lake}/beta: 1 row, ", f"state {lake}/_headrace/shop: "):
        assert line in out
    assert f"dead letters {lake}/_headrace/shop/dead_letters: 1 row, " in out
    assert {path for path in there(harness) if not path.startswith("lake/foreign/")} == {"shop.yaml"}
    harness.sent.clear()
    harness.feed([{"id": 1, "kind": "alpha"}, b"bad"])
    assert [row["id"] for row in harness.rows("lake/alpha")] == [1]
    assert len(harness.dead()) == 1
    assert cli("--dry-run", "--json")[0] == 0


def test_acknowledged_records_in_a_spool_are_kept(cli: Run, harness: Harness):
    spool = harness.folder / "lake" / "_headrace" / "shop" / "spool"
    with closing(Spool.open(spool, "shop")) as opened:
        opened.add_topics(["orders"])
        before = {path.name: path.read_bytes() for path in spool.rglob("*") if path.is_file()}
        assert cli("--tables", "--yes")[0] == 0
    assert {path.name: path.read_bytes() for path in spool.rglob("*") if path.is_file()} == before
    assert {path.parts[3] for path in map(Path, there(harness)) if path.parts[:3] == ("lake", "_headrace", "shop")} == {
        "spool"
    }


def test_the_audit_log_is_kept(cli: Run, harness: Harness):
    log = AuditLog(Store(harness.spec.state_uri))
    at = datetime(2026, 1, 31, tzinfo=UTC)
    entry = AuditEntry("c", at, "shop", "operator", "::1", "pause", "pipeline", AuditPhase.DONE, "paused")
    log.add(entry)
    assert cli("--tables", "--yes")[0] == 0
    assert log.newest(2) == [entry]


def test_tables_that_hold_its_records_are_deleted_only_when_that_is_said(cli: Run, harness: Harness):
    before = without_lease(there(harness))
    code, _, err = cli("--yes")
    assert code == 2
    assert "lake/alpha" in err
    assert "--tables" in err
    assert without_lease(there(harness)) == before
    for name in ("alpha", "beta"):
        Table(harness.folder / "lake" / name).drop()
    assert cli("--yes")[0] == 0
    harness.feed([{"id": 5, "kind": "alpha"}])
    assert [row["id"] for row in harness.rows("lake/alpha")] == [5]


def test_nothing_goes_where_the_answer_is_no_or_nobody_is_asked(cli: Run, harness: Harness):
    before = without_lease(there(harness))
    code, out, _ = cli("--tables", stdin="n\n")
    assert code == 0
    assert out.endswith("shop: nothing was deleted\n")
    code, out, _ = cli("--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "shop: nothing was deleted")
    assert cli("--tables", "--json")[0] == 2
    assert without_lease(there(harness)) == before
    code, out, _ = cli("--tables", "--json", "--yes")
    said = json.loads(out)
    assert (code, said["removed"], [each["what"] for each in said["removals"]]) == (
        0,
        True,
        ["table", "table", "dead letters", "state"],
    )
    code, out, _ = cli("--yes")
    assert (code, out) == (0, "shop: nothing to delete\n")
    assert not (harness.folder / "lake/_headrace/shop/lease").exists() or not any(
        (harness.folder / "lake/_headrace/shop/lease").iterdir()
    )


def test_a_running_pipeline_is_left_alone(cli: Run, harness: Harness):
    before = there(harness)
    with Lease.take(Store(f"{harness.folder}/lake/_headrace/shop")):
        code, _, err = cli("--tables", "--yes")
    assert code == 3
    assert "LeaseHeld" in err
    assert before <= there(harness)


def test_a_table_that_others_write_as_well_is_not_deleted(cli: Run, harness: Harness):
    other = Harness(harness.folder, {"pipeline": "other"}, topic="others")
    other.feed([{"id": 9, "kind": "alpha"}])
    code, _, err = cli("--tables", "--yes")
    assert code == 2
    assert "also written by other" in err
    assert len(harness.rows("lake/alpha")) == 2


def test_a_reset_that_was_cut_short_is_run_again(cli: Run, harness: Harness, monkeypatch: pytest.MonkeyPatch):
    delete = Store.delete

    def dying(self: Store, paths: object) -> None:
        delete(self, paths)  # type: ignore[arg-type]
        if self.uri.endswith("/alpha"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "delete", dying)
        assert cli("--tables", "--yes")[0] != 0
    assert not harness.rows("lake/alpha")
    assert harness.rows("lake/beta")
    assert cli("--tables", "--yes")[0] == 0
    assert {path for path in there(harness) if not path.startswith("lake/foreign/")} == {"shop.yaml"}
