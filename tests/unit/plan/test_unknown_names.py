"""A name that nothing has is a typo: it is told, and it stops the first batch instead of filtering every record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UnknownColumn
from headrace.pipeline.preview import preview_records
from headrace.plan.plan import Plan
from headrace.plan.unknown_names import unknown_everywhere
from headrace.recovery.startup import StartupRecovery
from headrace.validate import online
from services.desk import Desk, InProcess, no_spark, ranges_of
from services.plans import envelopes, spec_of

RECORDS = [{"id": 1, "status": 200, "who": {"name": "Ada"}}, {"id": 2, "status": 700, "items": [{"n": 1}]}]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/web"}})


def test_a_typo_in_where_stops_the_first_batch_and_writes_nothing(desk: Desk):
    desk.options["transform"] = [{"where": "staus < 600"}]
    with pytest.raises(
        UnknownColumn, match=r"transform\[0\]\.where: 'staus' does not .* \(did you mean 'status'\?\)\. "
    ) as stop:
        desk.feed(RECORDS)
    assert "allow_missing" in stop.value.hint
    assert not list(desk.folder.rglob("*.parquet"))
    desk.options["transform"] = [{"where": "status < 600"}]
    desk.feed(RECORDS)
    assert [row["id"] for row in desk.rows("lake/web")] == [1]


def test_a_name_that_may_be_missing_is_listed(desk: Desk):
    desk.options |= {"transform": [{"where": "coalesce(keep, true)"}], "allow_missing": ["KEEP"]}
    desk.feed(RECORDS)
    assert len(desk.rows("lake/web")) == 2


@pytest.mark.parametrize(
    ("more", "place", "name", "meant"),
    [
        ({"transform": [{"set": {"a": "id", "b": "a + idd"}}]}, "transform[0].set.b", "idd", "id"),
        ({"transform": [{"drop": ["stattus"]}]}, "transform[0].drop", "stattus", "status"),
        ({"transform": [{"rename": {"stat": "s"}}]}, "transform[0].rename", "stat", "status"),
        ({"transform": [{"mask": {"woh.name": "redact"}}]}, "transform[0].mask", "woh", "who"),
        ({"route": {"by": {"sql": "statu::text"}}}, "route.by.sql", "statu", "status"),
        ({"explode": "itms"}, "explode", "itms", "items"),
        (
            {"table": {"expectations": [{"name": "x", "expect": "idx > 0"}]}},
            "table.expectations[0].expect",
            "idx",
            "id",
        ),
        (
            {"table": {"mode": "upsert", "merge": {"keys": ["id"], "delete_when": "statuss > 600"}}},
            "table.merge.delete_when",
            "statuss",
            "status",
        ),
    ],
)
def test_every_place_that_names_a_column_is_looked_at(more: dict[str, Any], place: str, name: str, meant: str):
    found = _unknown(RECORDS, **more)
    assert [(each.place, each.name) for each in found] == [(place, name)]
    assert found[0].suggestion == meant


@pytest.mark.parametrize(
    "more",
    [
        {"transform": [{"where": "STATUS < 600 AND _topic = 'web' AND now() > _timestamp"}]},
        {"transform": [{"rename": {"status": "code"}}, {"where": "code < 600"}, {"drop": ["code"]}]},
        {"transform": [{"set": {"a": "id", "b": "a + 1"}}, {"where": "b > 0"}]},
        {"transform": [{"jmespath": {"name": "who.name"}}, {"where": "name IS NOT NULL"}]},
        {"explode": {"column": "items", "position": "nth"}, "transform": [{"where": "n > 0 AND nth >= 0"}]},
    ],
)
def test_what_records_steps_and_the_source_give_is_known(more: dict[str, Any]):
    assert _unknown(RECORDS, **more) == []


def test_a_field_that_is_null_in_every_record_is_no_typo(desk: Desk):
    desk.options["transform"] = [{"where": "deleted IS NULL"}]
    desk.feed([{"id": 1, "deleted": None}])
    assert len(desk.rows("lake/web")) == 1


def test_a_field_that_the_contract_leaves_out_is_told_although_records_have_it(desk: Desk):
    desk.feed([{"id": 1}])
    desk.options["table"] = {**desk.options["table"], "contract": {"new_field": "ignore"}}
    desk.options["transform"] = [{"where": "status < 600"}]
    with pytest.raises(UnknownColumn, match="'status'"):
        desk.feed(RECORDS)


def test_a_name_of_the_table_or_of_an_earlier_batch_need_not_come_again(desk: Desk):
    desk.options["transform"] = [{"where": "status < 600 OR who.name = 'x'"}, {"drop": ["status"]}]
    desk.feed(RECORDS)
    desk.feed([{"id": 3}])
    assert len(desk.rows("lake/web")) == 1
    desk.options["transform"] = [{"where": "stauts < 600"}]
    with pytest.raises(UnknownColumn):
        desk.feed([{"id": 4}])


def test_records_of_one_table_may_have_what_those_of_another_lack(desk: Desk):
    desk.options |= {"route": {"by": {"field": "kind"}}, "table": {"path": f"{desk.folder}/lake/{{route}}"}}
    desk.options["transform"] = [{"where": "coalesce(keep, true)"}]
    desk.feed([{"kind": "a", "keep": True}, {"kind": "b"}])
    assert (len(desk.rows("lake/a")), len(desk.rows("lake/b"))) == (1, 1)
    desk.options["pipeline"] = "other"
    with pytest.raises(UnknownColumn):
        desk.feed([{"kind": "c"}, {"kind": "d"}])


def test_only_the_first_batch_with_rows_is_looked_at(desk: Desk):
    desk.options["transform"] = [{"where": "coalesce(keep, true)"}]
    pipeline = InProcess(desk.spec, no_spark, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        for value in (b"no json", {"id": 1, "keep": True}, {"id": 2}):
            start = len(desk.sent)
            desk.send([value])
            records = desk.envelopes(start)
            pipeline.one_batch(records.combine_chunks().to_batches()[0], ranges_of(records))
    assert len(desk.rows("lake/web")) == 2


def test_preview_and_check_online_tell_it(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    desk.options["transform"] = [{"drop": ["id"]}, {"where": "staus < 600"}]
    found = preview_records(desk.spec, envelopes(RECORDS))
    assert found.counts.filtered == 2
    assert any("transform[1].where" in note and "did you mean 'status'" in note for note in found.notes)
    monkeypatch.setattr(
        online, "preview_records", lambda spec, _, count: preview_records(spec, envelopes(RECORDS), count)
    )
    (finding,) = online._names(desk.spec)
    assert (finding.severity, finding.key, finding.suggestion) == ("error", "transform[1].where", "status")
    desk.options["allow_missing"] = ["staus"]
    assert list(online._names(desk.spec)) == []


_FIELDS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([None, 0, "x", [], {}]), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(_FIELDS, min_size=1, max_size=5), st.sampled_from("abcdef"))
def test_a_name_is_unknown_when_no_record_has_it_whatever_its_value(records: list[dict[str, Any]], name: str):
    found = _unknown([{"id": 1}, *records], transform=[{"where": f"{name} IS NULL"}])
    assert bool(found) == (name not in {key for record in records for key in record})


def _unknown(records: list[dict[str, Any]], **content: Any) -> list[Any]:
    plan = Plan(spec_of(**content), unchecked=[""])
    return unknown_everywhere(plan.apply(envelopes(records)).unknown.items(), plan.branches, plan.schemas)
