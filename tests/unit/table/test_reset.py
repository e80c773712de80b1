"""`headrace reset`: a pipeline starts over; what goes is shown first, and never while it runs."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace import Table
from headrace.cli import main
from headrace.pipeline.lease import Lease
from headrace.storage.store import Store
from services.desk import Desk

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A pipeline with two tables and a dead letter, beside a table of somebody else."""
    desk = Desk(tmp_path)
    desk.feed([{"id": 1, "kind": "alpha"}, {"id": 2, "kind": "beta"}, b"bad"])
    desk.write_spec()
    write_deltalake(tmp_path / "lake" / "foreign", pa.table({"id": [1]}))
    return desk


@pytest.fixture
def cli(desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(desk.folder)

    def run(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", "reset", "shop.yaml", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def there(desk: Desk) -> set[str]:
    return {str(path.relative_to(desk.folder)) for path in desk.folder.rglob("*") if path.is_file()}


def without_lease(paths: set[str]) -> set[str]:
    return {path for path in paths if "/lease/" not in path}


def test_a_pipeline_starts_over(cli: Run, desk: Desk):
    code, out, _ = cli("--tables", "--yes")
    assert code == 0
    lake = desk.folder / "lake"
    for line in (f"table {lake}/alpha: 1 row, ", f"table {lake}/beta: 1 row, ", f"state {lake}/_headrace/shop: "):
        assert line in out
    assert f"dead letters {lake}/_headrace/shop/dead_letters: 1 row, " in out
    assert {path for path in there(desk) if not path.startswith("lake/foreign/")} == {"shop.yaml"}
    desk.sent.clear()
    desk.feed([{"id": 1, "kind": "alpha"}, b"bad"])
    assert [row["id"] for row in desk.rows("lake/alpha")] == [1]
    assert len(desk.dead()) == 1
    assert cli("--dry-run", "--json")[0] == 0


def test_tables_that_hold_its_records_are_deleted_only_when_that_is_said(cli: Run, desk: Desk):
    before = without_lease(there(desk))
    code, _, err = cli("--yes")
    assert code == 2
    assert "lake/alpha" in err
    assert "--tables" in err
    assert without_lease(there(desk)) == before
    for name in ("alpha", "beta"):
        Table(desk.folder / "lake" / name).drop()
    assert cli("--yes")[0] == 0
    desk.feed([{"id": 5, "kind": "alpha"}])
    assert [row["id"] for row in desk.rows("lake/alpha")] == [5]


def test_nothing_goes_where_the_answer_is_no_or_nobody_is_asked(cli: Run, desk: Desk):
    before = without_lease(there(desk))
    code, out, _ = cli("--tables", stdin="n\n")
    assert code == 0
    assert out.endswith("shop: nothing was deleted\n")
    code, out, _ = cli("--dry-run")
    assert (code, out.splitlines()[-1]) == (0, "shop: nothing was deleted")
    assert cli("--tables", "--json")[0] == 2
    assert without_lease(there(desk)) == before
    code, out, _ = cli("--tables", "--json", "--yes")
    said = json.loads(out)
    assert (code, said["removed"], [each["what"] for each in said["removals"]]) == (
        0,
        True,
        ["table", "table", "dead letters", "state"],
    )
    code, out, _ = cli("--yes")
    assert (code, out) == (0, "shop: nothing to delete\n")
    assert not (desk.folder / "lake/_headrace/shop/lease").exists() or not any(
        (desk.folder / "lake/_headrace/shop/lease").iterdir()
    )


def test_a_running_pipeline_is_left_alone(cli: Run, desk: Desk):
    before = there(desk)
    with Lease.take(Store(f"{desk.folder}/lake/_headrace/shop")):
        code, _, err = cli("--tables", "--yes")
    assert code == 3
    assert "LeaseHeld" in err
    assert before <= there(desk)


def test_a_table_that_others_write_as_well_is_not_deleted(cli: Run, desk: Desk):
    other = Desk(desk.folder, {"pipeline": "other"}, topic="others")
    other.feed([{"id": 9, "kind": "alpha"}])
    code, _, err = cli("--tables", "--yes")
    assert code == 2
    assert "also written by other" in err
    assert len(desk.rows("lake/alpha")) == 2


def test_a_reset_that_was_cut_short_is_run_again(cli: Run, desk: Desk, monkeypatch: pytest.MonkeyPatch):
    delete = Store.delete

    def dying(self: Store, paths: object) -> None:
        delete(self, paths)  # type: ignore[arg-type]
        if self.uri.endswith("/alpha"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "delete", dying)
        assert cli("--tables", "--yes")[0] != 0
    assert not desk.rows("lake/alpha")
    assert desk.rows("lake/beta")
    assert cli("--tables", "--yes")[0] == 0
    assert {path for path in there(desk) if not path.startswith("lake/foreign/")} == {"shop.yaml"}
