"""Dead letters read back: counted, sampled, found, judged; and purged by whole days."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow.fs import PyFileSystem, SubTreeFileSystem

from headrace.dead_letters import reader as letters_module
from headrace.dead_letters.evaluate import evaluate_dead_letters
from headrace.dead_letters.reader import DeadLetters, RecordPosition, Selection, dataset
from headrace.dead_letters.replay import purge
from headrace.delta.schema import DEAD_LETTERS
from headrace.errors import SpecError, UsageError
from headrace.faults import Point
from headrace.ledger.ledger import Ledger
from headrace.plan.accounting import Counts
from headrace.plan.batch_result import BatchResult
from headrace.spec.route_id import RouteId
from headrace.storage.store import Store
from headrace.validate.override import override_spec
from headrace.write import retention
from services.clocks import DAY, clock
from services.in_process_pipeline import THEN, Harness

NOW = datetime(2026, 3, 10, 12, tzinfo=UTC)


def letter(offset: int, **other: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "timestamp": THEN,
        "value": b'{"id": %d}' % offset,
        "table": None,
        "step": "decode",
        "reason": "malformed",
        "detail": "why",
        "pipeline": "shop",
        "spec": "digest",
        "rejected_at": NOW,
        "date": NOW.date(),
        **other,
    }


def stored(harness: Harness, rows: list[dict[str, Any]]) -> DeadLetters:
    """Letters as any writer of Delta may have left them."""
    table = pa.Table.from_pylist(rows, DEAD_LETTERS)
    write_deltalake(harness.spec.dead_letters_uri, table, partition_by=["date"], mode="append")
    return DeadLetters(harness.spec)


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


# ---- reading ----


def test_groups_count_by_reason_step_and_table(harness: Harness):
    old = NOW - timedelta(days=2)
    found = stored(
        harness,
        [letter(n) for n in range(5)]
        + [letter(9, rejected_at=old, date=old.date(), detail="old")]
        + [letter(7, reason="type", table="/lake/a"), letter(8, reason="type", table="/lake/b")],
    )
    groups = [(each.reason, each.table, each.count, each.first, each.last) for each in found.groups(Selection())]
    assert groups == [
        ("malformed", None, 6, old, NOW),
        ("type", "/lake/a", 1, NOW, NOW),
        ("type", "/lake/b", 1, NOW, NOW),
    ]
    assert found.groups(Selection())[0].sample["detail"] == "why"
    assert [each.count for each in found.groups(Selection(since=NOW))] == [5, 1, 1]
    assert [each.table for each in found.groups(Selection(tables=("/lake/b",)))] == ["/lake/b"]
    assert found.groups(Selection(reasons=("tombstone",))) == []


def test_without_a_table_there_are_no_dead_letters(harness: Harness):
    assert harness.dead_letters.groups(Selection()) == []
    assert list(harness.dead_letters.pages(Selection())) == []
    assert harness.dead_letters.find(RecordPosition("orders", 0, 0)) == []
    assert len(harness.dead_letters.sample(Selection(), 3)) == 0


def test_pages_are_small_and_whole(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(letters_module, "_PAGE_ROWS", 100)
    monkeypatch.setattr(letters_module, "_PAGE_BYTES", 20_000)
    found = stored(harness, [letter(n, value=b"v" * (1000 if n < 50 else 10)) for n in range(250)])
    pages = list(found.pages(Selection()))
    assert max(len(page) for page in pages) <= 100
    assert max(page.nbytes for page in pages) <= 25_000
    assert [each for page in pages for each in page["offset"].to_pylist()] == list(range(250))


def test_a_selection_leaves_out_whole_days(harness: Harness):
    """The files of other days are not even opened."""
    old = NOW - timedelta(days=3)
    found = stored(harness, [letter(1), letter(2, rejected_at=old, date=old.date())])
    [gone] = Path(harness.spec.dead_letters_uri).glob(f"date={old.date()}/*.parquet")
    gone.unlink()
    assert [page["offset"].to_pylist() for page in found.pages(Selection(since=NOW - timedelta(hours=1)))] == [[1]]


def test_a_sample_has_something_of_each_kind(harness: Harness):
    found = stored(harness, [letter(n) for n in range(50)] + [letter(60, reason="type"), letter(70, reason="empty")])
    assert sorted(found.sample(Selection(), 4)["reason"].to_pylist()) == ["empty", "malformed", "malformed", "type"]
    assert found.sample(Selection(reasons=("type",)), 4)["offset"].to_pylist() == [60]


def test_dead_letters_of_one_record_for_two_tables_are_two(harness: Harness):
    found = stored(harness, [letter(1, table="/lake/a"), letter(1, table="/lake/b"), letter(2)])
    assert [each["table"] for each in found.find(RecordPosition("orders", 0, 1))] == ["/lake/a", "/lake/b"]
    assert [each["table"] for each in found.find(RecordPosition("orders", 0, 1, "/lake/b"))] == ["/lake/b"]


# ---- judging ----


def test_a_record_that_one_of_two_tables_takes_leaves_a_dead_letter_for_the_other(harness: Harness):
    """Letter 0 has no table yet; 1 is of b, which refuses it again; 2 is of a, which takes it."""
    a, b = (harness.spec.uri_of(RouteId("", name)) for name in "ab")
    meant = pa.Table.from_pylist([letter(0), letter(1, table=b), letter(2, table=a), letter(3)], DEAD_LETTERS)
    refused = [letter(0, table=b, reason="type"), letter(1, table=b, reason="type"), letter(2, table=b, reason="type")]
    rows = {RouteId("", "a"): pa.table({"id": [0, 1, 2]})}
    applied = BatchResult(
        rows,
        pa.Table.from_pylist(refused, DEAD_LETTERS),
        Counts(),
        origins={RouteId("", "a"): np.array([0, 1, 2])},
        dead=np.array([0, 1, 2]),
    )
    plan: Any = SimpleNamespace(spec=harness.spec, apply=lambda envelopes, meant: applied)
    judged = evaluate_dead_letters(plan, meant, 1, NOW)
    assert judged.outcomes["outcome"].to_pylist() == ["replayed", "still_dead", "replayed", "filtered"]
    assert judged.outcomes["into"].to_pylist() == [[a], None, [a], None]
    assert judged.tables[RouteId("", "a")]["id"].to_pylist() == [0, 2]
    assert judged.dead_letters.select(["offset", "table"]).to_pylist() == [{"offset": 0, "table": b}]
    assert (judged.counts.read, judged.counts.routed, judged.counts.dead, judged.counts.filtered) == (4, 2, 1, 1)


def test_dead_letters_come_with_the_reason_of_their_own_record(harness: Harness):
    """Also where a whole batch is dead for reasons that are found in another order."""
    harness.options["tables"] = [{"match": ".", "columns": [{"name": "id", "type": "bigint"}]}]
    harness.feed([{"id": "x", "kind": "a"}, {"id": 10**20, "kind": "a"}, b'{"kind": "a", "id": 1, "id": 2}', b"{"])
    assert [row["reason"] for row in harness.dead()] == ["type", "overflow", "duplicate_key", "malformed"]


def test_a_dead_letter_that_fails_before_an_sql_route_has_no_table(harness: Harness):
    harness.options["route"] = {"by": {"sql": "kind"}}
    harness.feed([{"id": 1, "kind": "a"}, b"{"])
    assert [row["table"] for row in harness.dead()] == [None]


# ---- purging ----


def aged(harness: Harness) -> DeadLetters:
    days = [datetime.now(UTC) - timedelta(days=n) for n in (0, 1, 40, 50)]
    rows = [letter(n, rejected_at=day, date=day.date()) for n, day in enumerate(days)]
    return stored(harness, rows)


def test_a_purge_takes_days_files_and_leaves_a_note(harness: Harness):
    found = aged(harness)
    before = retention.retention_day(timedelta(days=30), datetime.now(UTC))
    planned = retention.purge_preview(found.store, before)
    assert (planned.rows, len(planned.files)) == (2, 2)
    assert purge(harness.spec, before) == planned
    assert [group.count for group in found.groups(Selection())] == [2]
    assert len(list(Path(found.store.root).rglob("*.parquet"))) == 2
    assert DeltaTable(found.store.root).history(1)[0]["operation"] == "DELETE"
    [row] = Ledger.open(Store(harness.spec.state_uri), "shop").rows(1)
    assert row["note"].startswith("purged 2 dead letters")
    assert not purge(harness.spec, before).files
    harness.feed([b"{"])
    assert [group.count for group in found.groups(Selection())] == [3]


def test_a_purge_finishes_an_open_plan_first(harness: Harness):
    harness.options["limits"] = {"record_bytes": 5}
    harness.feed([{"id": 1, "kind": "alpha"}])
    del harness.options["limits"]
    harness.die(Point.AFTER_COMMIT)
    assert purge(harness.spec, datetime.now(UTC).date() + timedelta(days=1)).rows == 1
    assert harness.offsets("alpha") == {0: 1}
    assert harness.dead() == []
    assert [row["outcome"] for row in harness.outcomes()] == ["replayed"]


def test_a_running_pipeline_keeps_the_retention(harness: Harness):
    found = aged(harness)
    with clock(-2 * DAY):
        harness.feed([{"id": 1, "kind": "alpha"}])
    harness.options["dead_letters"] = {"retention": "30d"}
    harness.feed([b"{"])
    assert sum(group.count for group in found.groups(Selection())) == 3
    assert [row["note"][:6] for row in Ledger.open(Store(harness.spec.state_uri), "shop").rows(9)] == ["", "purged", ""]


def test_a_day_is_kept_until_all_of_it_is_old():
    assert retention.retention_day(timedelta(days=30), datetime(2026, 3, 31, 23, 59, tzinfo=UTC)) == date(2026, 3, 1)


# ---- changed specs ----


def test_keys_are_changed_by_their_paths(harness: Harness):
    harness.options["transform"] = [{"where": "id > 1"}]
    spec = override_spec(
        harness.spec,
        ["limits.depth=9", "transform.0.where=id > 2", "transform.1={drop: [note]}", "retry=", "table.strict=true"],
    )
    assert spec.limits.depth == 9
    assert spec.transform[0].where == "id > 2"
    assert spec.transform[1].drop == ("note",)
    assert spec.retry.access_denied == 3
    assert spec.table.strict
    assert override_spec(harness.spec, []) is not None
    assert override_spec(harness.spec, ["transform.0="]).transform == ()
    assert override_spec(harness.spec, ["decode.json.tombstone=skip"]).tombstone == "skip"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ("limits.depth", UsageError, "Use key.path=value"),
        ("limits..depth=1", UsageError, "Use key.path=value"),
        ("transform.3={drop: [a]}", UsageError, "out of range for a list of 1"),
        ("limits.depth={", UsageError, "invalid YAML"),
        ("limits.deph=3", SpecError, "did you mean 'depth'"),
        ("limits.depth=deep", SpecError, "an integer"),
    ],
)
def test_what_is_no_change_is_refused(harness: Harness, change: str, error: type[Exception], said: str):
    harness.options["transform"] = [{"where": "id > 1"}]
    with pytest.raises(error, match=said):
        override_spec(harness.spec, [change])


# ---- columns of one's own ----

TENANT = {"set": {"trace": "CAST(_headers['trace'] AS VARCHAR)", "twice": '"offset" * 2'}}
RISKY = {"set": {"number": "CAST(CAST(value AS VARCHAR) AS BIGINT)", "even": "twice % 4 = 0", "nothing": "NULL"}}


def test_dead_letters_get_columns_and_none_is_lost_by_a_failure(harness: Harness):
    harness.options["dead_letters"] = {"transform": [TENANT, RISKY]}
    harness.feed([{"id": 1, "kind": "alpha"}, b"12", b"{"])
    told = [{name: row[name] for name in ("offset", "twice", "number", "even", "nothing")} for row in harness.dead()]
    assert told == [
        {"offset": 1, "twice": 2, "number": 12, "even": False, "nothing": None},
        {"offset": 2, "twice": 4, "number": None, "even": True, "nothing": None},
    ]


def test_dead_letters_are_transformed_as_kafka_delta_ingest_does(harness: Harness):
    day = {
        "day": "substr(epoch_micros_to_iso8601(timestamp), `0`, `10`)",
        "at": "kafka.offset",
        "no": "substr(nobody, `0`, `1`)",
    }
    value = {"raw": "base64_bytes", "text": "json_string", "both": "[reason, error]", "sent": "kafka.timestamp"}
    harness.options |= {"dead_letters": {"transform": [{"jmespath": day}, {"jmespath": value}]}}
    harness.feed([b"1{", {"id": 5}, b"12", b"NaN", b'"\xff"'])
    first, second, *others = harness.dead()
    assert first["day"] == first["rejected_at"].date().isoformat()
    assert (first["at"], first["no"], first["raw"], first["text"]) == ("0", None, "MXs=", None)
    assert (second["raw"], second["text"]) == (None, '{"id": 5}')
    assert [(each["raw"], each["text"]) for each in others] == [(None, "12"), ("TmFO", None), ("Iv8i", None)]
    assert second["sent"] == str(int(THEN.timestamp() * 1_000_000))
    assert second["both"] == '["unrouted","the field \'kind\' is missing"]'


def test_a_table_of_dead_letters_follows_its_columns(harness: Harness):
    harness.feed([b"{"])
    harness.options["dead_letters"] = {"transform": [{"set": {"twice": '"offset" * 2'}}]}
    harness.feed([b"{"])
    del harness.options["dead_letters"]
    harness.feed([b"{"])
    assert [row["twice"] for row in harness.dead()] == [None, 2, None]
    assert harness.replay().counts.dead == 3


def test_dead_letters_that_are_dropped_are_counted_and_not_stored(harness: Harness):
    harness.options["dead_letters"] = "drop"
    harness.feed([{"id": 1, "kind": "alpha"}, b"{", {"id": 5}])
    assert harness.offsets("alpha") == {0: 1}
    assert harness.dead() == []
    batch = next(event for event in harness.events if event["event"] == "batch")
    assert {name: batch[name] for name in ("read", "routed", "dead")} == {"read": 3, "routed": 1, "dead": 2}
    assert batch["reasons"] == {"malformed": 1, "unrouted": 1}
    assert harness.replay().counts.read == 0


def test_dead_letters_that_are_dropped_have_no_table(harness: Harness):
    harness.options["dead_letters"] = {"drop": True, "retention": "3d", "transform": [TENANT]}
    with pytest.raises(SpecError, match=r"(?s)retention with drop.*transform with drop"):
        _ = harness.spec


def test_a_query_of_a_dead_letter_is_checked(harness: Harness):
    harness.options["dead_letters"] = {"transform": [{"jmespath": {"a": "nothing(", "date": "topic"}}]}
    with pytest.raises(SpecError, match=r"(?s)jmespath.a.*is already a column of the dead letter"):
        _ = harness.spec


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"Value": "1"}, "is already a column of the dead letter"),
        ({"a": "nobody + 1"}, "nobody"),
        ({"a b": "1"}, "a valid Delta column name"),
        ({"a": "(SELECT 1)"}, "set.a"),
    ],
)
def test_what_dead_letters_cannot_get_is_refused(harness: Harness, columns: dict[str, str], said: str):
    harness.options["dead_letters"] = {"transform": [{"set": columns}]}
    with pytest.raises(SpecError, match=said):
        _ = harness.spec


# ---- the end of a process ----


def test_dead_letters_are_read_without_python_in_arrow_s_threads(harness: Harness) -> None:
    found = dataset(aged(harness).store)
    assert found is not None
    assert not isinstance(found.filesystem, PyFileSystem)
    base = found.filesystem.base_fs if isinstance(found.filesystem, SubTreeFileSystem) else found.filesystem
    assert not isinstance(base, PyFileSystem)
    assert found.count_rows() == 4


@pytest.mark.slow
def test_no_process_that_read_dead_letters_aborts_at_its_end(harness: Harness) -> None:
    """Through delta-rs's own file system one in ten does."""
    store = aged(harness).store
    script = f"""
from headrace.dead_letters.reader import dataset
from headrace.storage.store import Store

assert dataset(Store({store.uri!r})).to_table().num_rows == 4
"""
    codes = [subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode for _ in range(60)]
    assert set(codes) == {0}
