"""A name that nothing has is a typo: it is told, and it stops the first batch instead of filtering every record."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.errors import UnknownColumn
from headrace.pipeline.preview import preview_records
from headrace.plan.message_keys import holds_key
from headrace.plan.plan import Plan
from headrace.plan.unknown_names import unknown_everywhere
from headrace.recovery.startup import StartupRecovery
from headrace.validate import online
from services.in_process_pipeline import Harness, InProcess, no_spark, ranges_of
from services.pipelines import HEADRACE
from services.plans import envelopes, spec_of

RECORDS = [{"id": 1, "status": 200, "who": {"name": "Ada"}}, {"id": 2, "status": 700, "items": [{"n": 1}]}]


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/web"}})


def test_a_typo_in_where_stops_the_first_batch_and_writes_nothing(harness: Harness):
    harness.options["transform"] = [{"where": "staus < 600"}]
    with pytest.raises(
        UnknownColumn, match=r"transform\[0\]\.where: 'staus' does not .* \(did you mean 'status'\?\)\. "
    ) as stop:
        harness.feed(RECORDS)
    assert "allow_missing" in stop.value.hint
    assert not list(harness.folder.rglob("*.parquet"))
    harness.options["transform"] = [{"where": "status < 600"}]
    harness.feed(RECORDS)
    assert [row["id"] for row in harness.rows("lake/web")] == [1]


def test_a_name_that_may_be_missing_is_listed(harness: Harness):
    harness.options |= {"transform": [{"where": "coalesce(keep, true)"}], "allow_missing": ["KEEP"]}
    harness.feed(RECORDS)
    assert len(harness.rows("lake/web")) == 2


@pytest.mark.parametrize(
    ("more", "place", "name", "meant"),
    [
        ({"transform": [{"set": {"a": "id", "b": "a + idd"}}]}, "transform[0].set.b", "idd", "id"),
        ({"transform": [{"drop": ["stattus"]}]}, "transform[0].drop", "stattus", "status"),
        ({"transform": [{"rename": {"stat": "s"}}]}, "transform[0].rename", "stat", "status"),
        ({"transform": [{"mask": {"woh.name": "redact"}}]}, "transform[0].mask", "woh", "who"),
        ({"transform": [{"mask": {"who.nme": "redact"}}]}, "transform[0].mask", "who.nme", "who.name"),
        (
            {"branches": [{"name": "b", "transform": [{"where": "staus < 1"}], "table": {"path": "/lake/b"}}]},
            "branches[0].transform[0].where",
            "staus",
            "status",
        ),
        (
            {
                "source": {"kafka": {"brokers": "localhost:9", "topics": ["web"]}},
                "branches": [{"name": "b", "table": {"path": "/lake/b"}}],
                "topics": [
                    {"name": "t", "topic": "web", "transform": [{"where": "staus < 1"}], "table": {"path": "/lake/t"}}
                ],
            },
            "topics[0].transform[0].where",
            "staus",
            "status",
        ),
        ({"route": {"by": {"sql": "statu::text"}}}, "route.by.sql", "statu", "status"),
        ({"explode": "itms"}, "explode", "itms", "items"),
        ({"transform": [{"jmespath": {"a": "substr(who.nme, `0`, `1`)"}}]}, "transform[0].jmespath.a", "nme", "name"),
        ({"transform": [{"jmespath": {"a": "staus || id"}}]}, "transform[0].jmespath.a", "staus", "status"),
        ({"transform": [{"jmespath": {"set": {"a": "STATUS"}}}]}, "transform[0].jmespath.a", "STATUS", "status"),
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
        {"transform": [{"jmespath": {"n": "items[].n", "a": "{b: id}.b", "at": "kafka.offset", "items": "null"}}]},
        {"transform": [{"jmespath": {"n": "who.name"}}], "table": {"columns": [{"name": "n", "type": "string"}]}},
        {"transform": [{"jmespath": {"set": {"n": "who.nme"}, "allow_missing": True}}]},
        {"transform": [{"jmespath": {"n": "who.nme"}}], "allow_missing": ["nme"]},
        {"explode": "items", "transform": [{"jmespath": {"first": "items[0].n", "code": "status"}}]},
        {"explode": {"column": "items", "position": "nth"}, "transform": [{"where": "n > 0 AND nth >= 0"}]},
        {"transform": [{"mask": {"who.NAME": "redact"}}, {"rename": {"who": "w"}}, {"mask": {"w.name": "redact"}}]},
    ],
)
def test_what_records_steps_and_the_source_give_is_known(more: dict[str, Any]):
    assert _unknown(RECORDS, **more) == []


def test_a_field_that_is_null_in_every_record_is_no_typo(harness: Harness):
    harness.options["transform"] = [{"where": "deleted IS NULL"}]
    harness.feed([{"id": 1, "deleted": None}])
    assert len(harness.rows("lake/web")) == 1


def test_a_field_that_the_contract_leaves_out_is_reported_although_records_have_it(harness: Harness):
    harness.feed([{"id": 1}])
    harness.options["table"] = {**harness.options["table"], "contract": {"new_field": "ignore"}}
    harness.options["transform"] = [{"where": "status < 600"}]
    with pytest.raises(UnknownColumn, match="'status'"):
        harness.feed(RECORDS)


def test_a_name_of_the_table_or_of_an_earlier_batch_need_not_come_again(harness: Harness):
    harness.options["transform"] = [{"where": "status < 600 OR who.name = 'x'"}, {"drop": ["status"]}]
    harness.feed(RECORDS)
    harness.feed([{"id": 3}])
    assert len(harness.rows("lake/web")) == 1
    harness.options["transform"] = [{"where": "stauts < 600"}]
    with pytest.raises(UnknownColumn):
        harness.feed([{"id": 4}])


def test_a_key_that_jmespath_reads_need_not_come_again(harness: Harness):
    harness.options["transform"] = [{"jmespath": {"name": "who.name"}}, {"drop": ["who"]}]
    harness.feed(RECORDS)
    harness.feed([{"id": 3}])
    assert sorted(str(row.get("name")) for row in harness.rows("lake/web")) == ["Ada", "None", "None"]
    harness.options["transform"] = [{"jmespath": {"name": "who.nme"}}]
    with pytest.raises(UnknownColumn, match=r"transform\[0\]\.jmespath\.name: 'nme' does not exist") as stop:
        harness.feed([{"id": 4}])
    assert "allow_missing" in stop.value.hint
    harness.options["allow_missing"] = ["nme"]
    harness.feed([{"id": 5}])
    assert 5 in [row["id"] for row in harness.rows("lake/web")]


_WRITER = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "who", "type": {"type": "record", "name": "Who", "fields": [{"name": "name", "type": "string"}]}},
        {"name": "tags", "type": {"type": "array", "items": {"type": "map", "values": "long"}}},
    ],
}


@pytest.mark.parametrize("columns", [[], [{"name": "id", "type": "bigint"}]])
@pytest.mark.parametrize(
    ("query", "unknown"), [("who.name", []), ("who.nme", ["nme"]), ("tags[0].a", []), ("b", ["b"])]
)
def test_keys_of_avro_records_are_looked_up_in_their_schema_and_maps(
    columns: list[dict[str, str]], query: str, unknown: list[str]
):
    value = io.BytesIO()
    fastavro.writer(value, _WRITER, [{"id": 1, "who": {"name": "Ada"}, "tags": [{"a": 1}]}])
    table = {"table": {"columns": [*columns, {"name": "x", "type": "string"}]}} if columns else {}
    found = _unknown(
        [value.getvalue()], decode={"avro": {"container": True}}, transform=[{"jmespath": {"x": query}}], **table
    )
    assert [each.name for each in found] == unknown


@given(st.text(min_size=1, max_size=8), st.booleans())
def test_a_key_is_found_however_json_writes_it(key: str, ascii_only: bool):
    assume(all(not 0xD800 <= ord(char) < 0xE000 for char in key))
    text = json.dumps({"a": [{key: 1}]}, ensure_ascii=ascii_only)
    for spelled in (text, text.replace("/", "\\/")):
        assert holds_key("json", pa.array([b"{}", spelled.encode()]), key)
        assert not holds_key("json", pa.array([spelled.encode()]), key + "x")


def test_records_of_one_table_may_have_what_those_of_another_lack(harness: Harness):
    harness.options |= {"route": {"by": {"field": "kind"}}, "table": {"path": f"{harness.folder}/lake/{{route}}"}}
    harness.options["transform"] = [{"where": "coalesce(keep, true)"}]
    harness.feed([{"kind": "a", "keep": True}, {"kind": "b"}])
    assert (len(harness.rows("lake/a")), len(harness.rows("lake/b"))) == (1, 1)
    harness.options["pipeline"] = "other"
    with pytest.raises(UnknownColumn):
        harness.feed([{"kind": "c"}, {"kind": "d"}])


def test_only_the_first_batch_with_rows_is_looked_at(harness: Harness):
    harness.options["transform"] = [{"where": "coalesce(keep, true)"}]
    pipeline = InProcess(harness.spec, no_spark, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        for value in (b"no json", {"id": 1, "keep": True}, {"id": 2}):
            start = len(harness.sent)
            harness.send([value])
            records = harness.envelopes(start)
            pipeline.one_batch(records.combine_chunks().to_batches()[0], ranges_of(records))
    assert len(harness.rows("lake/web")) == 2


def test_preview_and_check_online_tell_it(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    harness.options["transform"] = [{"drop": ["id"]}, {"where": "staus < 600"}]
    found = preview_records(harness.spec, envelopes(RECORDS))
    assert found.counts.filtered == 2
    assert any("transform[1].where" in note and "did you mean 'status'" in note for note in found.notes)
    monkeypatch.setattr(
        online, "preview_records", lambda spec, _, count: preview_records(spec, envelopes(RECORDS), count)
    )
    (finding,) = online._names(harness.spec)
    assert (finding.severity, finding.key, finding.suggestion) == ("error", "transform[1].where", "status")
    harness.options["allow_missing"] = ["staus"]
    assert list(online._names(harness.spec)) == []


def test_the_command_tells_it_of_a_source_that_it_reads(tmp_path: Path):
    """Nothing else is printed: DuckDB would report connections of threads that have ended."""
    text = "pipeline: web\nsource: {generate: {records: 50}}\ntransform: [{where: staus < 600}]\n"
    (tmp_path / "web.yaml").write_text(f"{text}table: {{path: ./lake/web}}\n")
    command = [HEADRACE, "check", "--online", "web.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    finding, summary = done.stdout.splitlines()
    assert (done.returncode, done.stderr, summary) == (1, "", "1 error, 0 warnings")
    assert finding.startswith("error: web.yaml:3:21 transform[0].where: no 'staus' in the latest 100 records")
    assert finding.endswith("did you mean 'status'?")


_FIELDS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from([None, 0, "x", [], {}]), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(_FIELDS, min_size=1, max_size=5), st.sampled_from("abcdef"))
def test_a_name_is_unknown_when_no_record_has_it_whatever_its_value(records: list[dict[str, Any]], name: str):
    found = _unknown([{"id": 1}, *records], transform=[{"where": f"{name} IS NULL"}])
    assert bool(found) == (name not in {key for record in records for key in record})


def _unknown(records: list[dict[str, Any]], **content: Any) -> list[Any]:
    spec = spec_of(**content)
    plan = Plan(spec, unchecked=spec.branch_specs())
    return unknown_everywhere(plan.apply(envelopes(records)).unknown.items(), plan.branches, plan.schemas)
