"""How a table's rows are told apart stays as it was: noted with the first batch, held at every start after it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import TableFeature
from headrace.ledger.known_tables import KnownTable, KnownTables
from headrace.pipeline.table_entry import check_row_identity, merging_of, row_identity
from headrace.storage.store import Store
from services.in_process_pipeline import Harness
from services.plans import spec_of


def upsert(*keys: str, **more: Any) -> dict[str, Any]:
    return {"mode": "upsert", "merge": {"keys": list(keys), **more}}


def scd2(*keys: str, by: str = "at", **more: Any) -> dict[str, Any]:
    return {"mode": "scd2", "merge": {"keys": list(keys), "sequence_by": by, **more}}


def known(table: dict[str, Any]) -> KnownTable:
    return KnownTable("id", "spark", rows=row_identity(merging_of(spec_of(table=table).table)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (upsert("id"), scd2("id")),
        (scd2("id"), upsert("id", sequence_by="at")),
        (upsert("id"), upsert("id", "day")),
        (upsert("id"), {}),
        ({"cluster_by": ["id"]}, upsert("id")),
        (scd2("id"), scd2("other")),
        (scd2("id"), scd2("id", by="changed")),
        (scd2("id"), scd2("id", scd2={"valid_from": "since"})),
    ],
)
def test_what_tells_rows_apart_does_not_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    check_row_identity("/lake/web", spec_of(table=before).table, known(before))
    with pytest.raises(TableFeature) as stopped:
        check_row_identity("/lake/web", spec_of(table=after).table, known(before))
    assert "/lake/web has " in stopped.value.message
    assert "table.mode" in stopped.value.hint


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (upsert("id"), upsert("id", sequence_by="at", tombstone_retention="1d")),
        (upsert("id"), upsert("id", update={"ignore_nulls": True})),
        (scd2("id"), scd2("id", scd2={"track": ["total"]})),
        ({}, {"mode": "overwrite"}),
    ],
)
def test_how_changes_are_taken_may_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    check_row_identity("/lake/web", spec_of(table=after).table, known(before))
    check_row_identity("/lake/web", spec_of(table=after).table, KnownTable("id", "spark"))  # of an older state


def test_it_is_noted_with_the_batch_and_held_at_the_next_start(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {})
    harness.feed([{"kind": "a", "id": 1}])
    state = Store(harness.spec.state_uri)
    uri, noted = next(each for each in KnownTables.load(state).tables.items() if each[0].endswith("/a"))
    assert noted.rows == "append-only rows"
    KnownTables.load(state).store(tables={uri: replace(noted, rows="one row per id")})
    with pytest.raises(TableFeature, match="append-only"):
        harness.feed([{"kind": "a", "id": 2}])


@pytest.mark.parametrize("after", [scd2("id"), upsert("id", "at"), {}], ids=["scd2", "other keys", "append"])
def test_a_table_that_merges_is_left_as_it_is_when_the_spec_wants_another(
    tmp_path: Path, after: dict[str, Any]
) -> None:
    def table(said: dict[str, Any]) -> dict[str, Any]:
        return {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/orders", "infer": {"records": 1}, **said}}

    harness = Harness(tmp_path, table(upsert("id", sequence_by="at")))
    harness.feed([{"id": 1, "at": 1}, {"id": 1, "at": 2}])
    harness.options = table(after)
    for _ in range(2):
        with pytest.raises(TableFeature, match="has one row per id, but the spec requires"):
            harness.feed([{"id": 1, "at": 3}])
    harness.options = table(upsert("id", sequence_by="at"))
    harness.feed([{"id": 1, "at": 4}])
    assert [row["at"] for row in harness.rows("lake/orders")] == [4]
