"""Which columns records gave to a table, which of them could only be text, and why: in a run, a preview, a summary."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.cli.run import summary_event, summary_text
from headrace.pipeline.preview import preview_records
from headrace.recovery.startup import StartupRecovery
from headrace.serve.supervised_pipeline import RunResult
from services.in_process_pipeline import THEN, Harness, InProcess, Records, no_spark
from services.plans import envelopes

RECORDS = [{"id": 1, "size": 5}, {"id": 2, "size": "large", "tags": [1, "a"]}]
MIXED = "of several types: integer, string"


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/orders"}})


def told(harness: Harness) -> list[tuple[dict[str, str], dict[str, str]]]:
    return [(each["columns"], each["json_text"]) for each in harness.events if each["event"] == "columns"]


def test_a_run_tells_the_columns_of_a_new_table_and_later_the_new_ones(harness: Harness):
    harness.feed(RECORDS)
    harness.feed(RECORDS)
    harness.feed([{"id": 3, "paid": True}])
    assert told(harness) == [
        (
            {"id": "long", "size": "string", "tags": "string"},
            {"size": MIXED, "tags": "arrays whose elements are of several types"},
        ),
        ({"paid": "boolean"}, {}),
    ]
    first = next(each for each in harness.events if each["event"] == "columns")
    assert first["table"] == f"{harness.folder}/lake/orders"
    assert f"size is stored as JSON text because its values are {MIXED}" in first["text"]


def test_renamed_columns_go_by_the_name_they_have_in_the_table(harness: Harness):
    harness.options["transform"] = [{"rename": {"size": "extent"}}, {"drop": ["tags"]}]
    harness.feed(RECORDS)
    assert told(harness) == [({"id": "long", "extent": "string"}, {"extent": MIXED})]


def test_declared_columns_are_not_inferred(harness: Harness):
    harness.options["table"] = {**harness.options["table"], "columns": [{"name": "id", "type": "long"}]}
    harness.feed([{"id": 1}])
    assert told(harness) == []


def test_a_preview_tells_them_too(harness: Harness):
    [found] = preview_records(harness.spec, envelopes(RECORDS)).inferred
    assert (dict(found.columns)["size"], found.json_text["size"]) == ("string", MIXED)
    harness.feed(RECORDS)
    assert preview_records(harness.spec, envelopes(RECORDS)).inferred == ()


def test_a_preview_does_not_list_declared_columns(harness: Harness):
    columns = {"columns": [{"name": "id", "type": "long"}], "contract": {"new_field": "evolve"}}
    harness.options["table"] = {**harness.options["table"], **columns}
    [inferred] = preview_records(harness.spec, envelopes(RECORDS)).inferred
    assert set(inferred.columns) == {"size", "tags"}
    assert preview_records(harness.spec, envelopes([{"id": 1}])).inferred == ()


def test_declared_columns_of_a_new_route_are_not_inferred(tmp_path: Path):
    columns = {"columns": [{"name": "id", "type": "long"}], "contract": {"new_field": "evolve"}}
    table = {"path": f"{tmp_path}/lake/{{route}}", **columns}
    harness = Harness(tmp_path, {"route": {"by": {"field": "kind"}}, "table": table})
    harness.feed([{"id": 1, "kind": "a", "size": 5}])
    assert told(harness) == [({"kind": "string", "size": "long"}, {})]


def test_the_summary_ends_with_the_columns_that_are_text(harness: Harness):
    harness.send(RECORDS)
    pipeline = InProcess(harness.spec, no_spark, recovery=StartupRecovery())
    with pipeline.take_lease():
        pipeline.open_ledger()
        pipeline.tables.open()
        pipeline.discover_and_stage(Records(harness.envelopes().combine_chunks().to_batches()), 1, THEN)
    event = summary_event(RunResult(pipeline.summary, None))
    assert event["json_text"] == {
        f"{harness.folder}/lake/orders": {"size": MIXED, "tags": "arrays whose elements are of several types"}
    }
    assert f"  {harness.folder}/lake/orders, size: stored as JSON text because its values are {MIXED}" in summary_text(
        event
    )
