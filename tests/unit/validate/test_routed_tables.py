"""`check --online` looks at every table whose route is known before a record is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.spec import Diagnostic
from headrace.validate.online import online
from services.in_process_pipeline import Harness

EXPIRING = "delta.setTransactionRetentionDuration"
ID = {"name": "id", "type": "bigint"}


def _create(folder: Path, name: str, **properties: str) -> None:
    DeltaTable.create(str(folder / "lake" / name), pa.schema([("id", pa.string())]), configuration=properties)


def _harness(folder: Path, patch: pytest.MonkeyPatch, by: Any, path: str = "lake/{route}", **table: Any) -> Harness:
    table = {"path": f"{folder}/{path}", "columns": [ID], **table}
    harness = Harness(folder, {"route": {"by": by}, "table": table})
    harness.serve(patch)
    return harness


def _errors(harness: Harness) -> list[Diagnostic]:
    return [diagnostic for diagnostic in online(harness.spec) if diagnostic.severity == "error"]


@pytest.mark.parametrize(("by", "path"), [("fixed", "lake/orders"), ("topic", "lake/{route}")])
def test_the_table_of_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, path: str):
    _create(tmp_path, "orders", **{EXPIRING: "interval 1 days"})
    expiring, column = _errors(_harness(tmp_path, monkeypatch, by, path))
    assert (expiring.key, column.key) == ("table.path", "table")
    assert f"{tmp_path}/lake/orders has the property {EXPIRING}" in expiring.message
    assert "ColumnMismatch" in column.message
    assert "'id'" in column.message


@pytest.mark.parametrize("route", [{"exclude": "^orders$"}, {"include": "^other$"}])
def test_a_topic_without_a_route_has_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, route: dict[str, str]):
    _create(tmp_path, "orders")
    harness = _harness(tmp_path, monkeypatch, "topic")
    harness.options["route"] |= route
    assert _errors(harness) == []


def test_tables_that_the_pipeline_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    harness = _harness(tmp_path, monkeypatch, {"field": "kind"}, columns=[{"name": "id", "type": "string"}])
    harness.feed([{"kind": kind, "id": "1"} for kind in "abc"])
    assert _errors(harness) == []
    DeltaTable(str(tmp_path / "lake/a")).alter.set_table_properties({EXPIRING: "interval 1 days"}, False)
    harness.options["tables"] = [{"match": "^b$", "columns": [ID]}]
    expiring, column = _errors(harness)
    assert f"{tmp_path}/lake/a has the property {EXPIRING}" in expiring.message
    assert f"{tmp_path}/lake/b" in column.message
    assert "ColumnMismatch" in column.message


def test_each_route_has_the_options_of_its_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _create(tmp_path, "orders")
    harness = _harness(tmp_path, monkeypatch, "topic")
    other = {"name": "note", "type": "string"}
    harness.options["tables"] = [{"match": "orders", "columns": [other], "only_declared": True}]
    found = [each for each in online(harness.spec) if each.key == "table.only_declared"]
    assert [each.message.partition(" of ")[0] for each in found] == ["only_declared: no record sets id"]
