"""Generations: what a batch takes the place of, what it says of itself, and which specs can be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.ledger.known_tables import FullRefresh, KnownTable, KnownTables
from headrace.pipeline.overwrite import check_bounded, replaced, stale_dead_letters, with_overwritten
from headrace.storage.store import Store
from headrace.validate.load import examine_text
from headrace.write.append import AppendWriter
from headrace.write.intent import ALL, Intent
from services.in_process_pipeline import Harness
from services.plans import LAKE, spec_of
from services.staging import ids, intent, opened, staged, table_intent

WHOLE = spec_of(table={"mode": "overwrite"}).table
PARTS = spec_of(table={"mode": "overwrite_partitions", "partition_by": ["day"]}).table


def test_what_a_full_refresh_has_overwritten_it_adds_to(tmp_path: Path) -> None:
    files = [staged(Store(str(tmp_path)), [1], "2026-01-01"), staged(Store(str(tmp_path)), [2], "2026-01-02")]
    done = KnownTable("x", "direct", full_refresh=2, overwritten=("day=2026-01-01",))
    assert replaced(WHOLE, None, 1, files) == (ALL,)
    assert replaced(WHOLE, replace(done, overwritten=(ALL,)), 2, files) == ()
    assert replaced(WHOLE, replace(done, overwritten=(ALL,)), 3, files) == (ALL,)
    assert replaced(PARTS, done, 2, files) == ("day=2026-01-02",)
    assert replaced(PARTS, done, 3, files) == ("day=2026-01-01", "day=2026-01-02")
    assert replaced(spec_of().table, done, 3, files) == ()


def test_a_batch_replaces_once_whoever_comes_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "t"))
    made = AppendWriter.open(store, "shop")
    made.commit(table_intent(store, [staged(store, [1, 2])], "x", create=True), intent(1))
    part = replace(table_intent(store, [staged(store, [3])], "x"), replaces=(ALL,))
    assert Intent.from_json(replace(intent(2), tables=(part,)).to_json()).tables == (part,)
    AppendWriter.open(store, "shop").commit(part, intent(2))
    assert AppendWriter.open(store, "shop").commit(part, intent(2)).skipped
    assert ids(store) == [3]
    said = opened(store).history(1)[0]
    assert (said["operationParameters"]["outputMode"], said["isBlindAppend"]) == ("Overwrite", False)
    AppendWriter.open(store, "shop").commit(replace(part, files=()), intent(3))
    assert ids(store) == []


def test_dead_letters_of_earlier_full_refreshes_are_stale_unless_others_have_some(tmp_path: Path) -> None:
    spec = spec_of(pipeline="shop", table={"mode": "overwrite_partitions", "partition_by": ["day"]})
    store = Store(str(tmp_path / "letters"))
    assert stale_dead_letters(spec, None, 1, store) == (ALL,)
    AppendWriter.open(store, "shop").commit(table_intent(store, [staged(store, [1])], "x", create=True), intent(1))
    assert stale_dead_letters(spec, None, 1, store) == (ALL,)
    assert stale_dead_letters(spec, KnownTable("x", "direct", full_refresh=2, overwritten=(ALL,)), 2, store) == ()
    assert stale_dead_letters(spec, KnownTable("x", "direct", full_refresh=2, overwritten=(ALL,)), 3, store) == (ALL,)
    assert stale_dead_letters(spec_of(), None, 1, store) == ()
    AppendWriter.open(store, "other").commit(table_intent(store, [staged(store, [2])], "x"), intent(1, "other"))
    assert stale_dead_letters(spec, None, 1, store) == ()


def test_a_full_refresh_replaces_dead_letters_as_it_does_rows(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"table": {"path": f"{tmp_path}/lake/{{route}}", "mode": "overwrite"}})
    state = Store(harness.spec.state_uri)
    good, bad = {"id": 1, "kind": "a"}, b"{"
    for number, batches in enumerate(([[good, bad], [bad]], [[bad, good], [good]], [[good]]), 1):
        KnownTables.load(state).store_full_refresh(FullRefresh(number, open=True))
        start = len(harness.sent)
        for batch in batches:
            harness.feed(batch)
        sent = enumerate([each for batch in batches for each in batch], start)
        kept = dict(sent)
        assert [row["offset"] for row in harness.dead()] == [at for at, each in kept.items() if each == bad]
        assert sorted(harness.offsets("a")) == [at for at, each in kept.items() if each == good]


def test_what_is_known_of_a_full_refresh_outlives_its_driver(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    known = KnownTables.load(store)
    part = replace(table_intent(store, [], "x"), path="lake/a", replaces=("day=1",))
    tables = with_overwritten({"lake/a": KnownTable("x", "direct")}, 4, replace(intent(1), tables=(part,)))
    known.store(tables=tables)
    known.store_full_refresh(FullRefresh(4, open=True))
    again = KnownTables.load(store)
    assert again.full_refresh == FullRefresh(4, open=True)
    assert again.tables == {"lake/a": KnownTable("x", "direct", full_refresh=4, overwritten=("day=1",))}
    assert with_overwritten(again.tables, 5, replace(intent(1), tables=(part,)))["lake/a"].full_refresh == 5


def test_what_would_never_be_done_is_refused():
    check_bounded(spec_of(table={"mode": "overwrite"}), "latest")
    check_bounded(spec_of(), None)
    with pytest.raises(UsageError, match="each run must be bounded"):
        check_bounded(spec_of(table={"mode": "overwrite"}), None)


@pytest.mark.parametrize(
    ("more", "table", "path"),
    [
        ({}, {"mode": "overwrite_partitions", "partition_by": ["id"]}, None),
        ({}, {"mode": "overwrite_partitions"}, "table.mode"),
        ({}, {"mode": "overwrite", "merge": {"keys": ["id"]}}, "table.merge"),
        ({}, {"mode": "overwrite", "features": ["typeWidening"]}, "table.features"),
        ({"branches": [{"name": "b", "table": {"path": "/lake/b"}}]}, {"mode": "overwrite"}, "branches[0].table.mode"),
        (
            {"route": {"by": "topic"}, "tables": [{"match": "x", "mode": "append"}]},
            {"mode": "overwrite", "path": "/lake/{topic}"},
            "tables[0].mode",
        ),
    ],
)
def test_a_spec_that_cannot_be_is_refused(more: dict[str, Any], table: dict[str, Any], path: str | None) -> None:
    columns = [{"name": name, "type": "bigint"} for name in ("id", "n")]
    whole = {"pipeline": "web", "source": {"generate": {}}, **more}
    text = json.dumps({**whole, "table": {"path": "/lake/web", "columns": columns, **table}})
    _, findings = examine_text(text, LAKE, "web.yaml")
    assert [each.key for each in findings if each.severity == "error"] == ([path] if path else [])
