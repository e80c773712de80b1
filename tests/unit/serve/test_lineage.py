"""OpenLineage events, checked with the schemas of its specification."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from headrace.serve.event_poster import EventPoster
from headrace.serve.lineage import Lineage
from headrace.serve.otlp_traces import batch_trace
from headrace.spec import Spec
from headrace.validate.load import loads
from services.in_process_pipeline import Harness
from services.monitored import batch, partitions, progress, state
from services.wait import eventually
from services.webhook_receiver import Receiver, served

SCHEMAS = Path(__file__).parents[2] / "golden" / "openlineage"
KAFKA = "{kafka: {brokers: 'broker.example:9093,other:9093', tls: true, topics: [orders, clicks]}}"
TABLE = {"version": 1, "rows": 8, "files": 2, "bytes": 100}


@cache
def registry() -> Registry[Any]:
    contents = [json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")]
    assert len(contents) == 4
    return Registry().with_resources((each["$id"], Resource.from_contents(each)) for each in contents)


def validate(event: dict[str, Any]) -> None:
    """Against the schema of run events, and each facet against its own."""
    facets = [*event["job"]["facets"].values(), *event["run"].get("facets", {}).values()]
    facets += [facet for output in event["outputs"] for facet in output["outputFacets"].values()]
    for schema, value in ((event["schemaURL"], event), *((each["_schemaURL"], each) for each in facets)):
        checker = Draft202012Validator.FORMAT_CHECKER
        Draft202012Validator({"$ref": schema}, registry=registry(), format_checker=checker).validate(value)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def spec(source: str = KAFKA, name: str = "shop") -> Spec:
    return loads(f"pipeline: {name}\nsource: {source}\ntable: {{path: /lake/orders}}\n")[0]


def sent(lineage: Lineage, *events: dict[str, Any]) -> list[dict[str, Any]]:
    """The run events; each is valid."""
    bodies = [lineage.run_event(event) for event in events]
    contents = [json.loads(body) for body in bodies if body is not None]
    for content in contents:
        validate(content)
    return contents


def written(event: dict[str, Any]) -> dict[tuple[str, str], dict[str, int]]:
    """Rows, bytes and files by dataset."""
    return {
        (each["namespace"], each["name"]): {
            name: value for name, value in each["outputFacets"]["outputStatistics"].items() if not name.startswith("_")
        }
        for each in event["outputs"]
    }


def test_a_run_reads_topics_and_writes_tables() -> None:
    lineage, clock = Lineage("lake", clock := Clock()), clock
    lineage.add(spec())
    tables = {"/lake/orders": TABLE, "s3://bucket/lake/clicks": TABLE}
    start, first = sent(lineage, state("starting"), state("running"), progress(), batch(1, tables=tables))
    assert (start["eventType"], first["eventType"]) == ("START", "RUNNING")
    assert start["run"]["runId"] == first["run"]["runId"]
    assert (start["job"]["namespace"], start["job"]["name"]) == ("lake", "shop")
    assert start["inputs"] == [
        {"namespace": "kafka://broker.example:9093", "name": name} for name in ("clicks", "orders")
    ]
    statistics = {"rowCount": 8, "size": 100, "fileCount": 2}
    assert written(first) == {("file", "/lake/orders"): statistics, ("s3://bucket", "lake/clicks"): statistics}
    clock.now = 59.0
    assert sent(lineage, batch(2, tables=tables), batch(3, tables={})) == []
    clock.now = 60.0
    (later,) = sent(lineage, batch(4, tables={"/lake/orders": TABLE}))
    assert written(later)["file", "/lake/orders"]["rowCount"] == 16
    sent(lineage, batch(5, tables={"/lake/orders": TABLE}))
    (end,) = sent(lineage, state("stopped"))
    assert (end["eventType"], written(end)["file", "/lake/orders"]["rowCount"]) == ("COMPLETE", 8)
    assert sent(lineage, state("stopped"), batch(6)) == []


@pytest.mark.parametrize("name", ["failed", "restarting"])
def test_an_error_is_a_failed_run_and_a_restart_is_a_new_one(name: str) -> None:
    lineage = Lineage("headrace", Clock())
    lineage.add(spec())
    start, end, again = sent(
        lineage, state("starting"), state(name, "SourceGap: Offsets are gone."), state("starting", "restart requested")
    )
    assert (start["eventType"], end["eventType"], again["eventType"]) == ("START", "FAIL", "START")
    assert start["run"]["runId"] == end["run"]["runId"] != again["run"]["runId"]
    assert end["run"]["facets"]["errorMessage"]["message"] == "SourceGap: Offsets are gone."


def test_a_restart_by_request_continues_the_run_with_the_changed_spec() -> None:
    lineage = Lineage("headrace", Clock())
    lineage.add(spec())
    (start,) = sent(lineage, state("starting"))
    lineage.add(spec("{kafka: {brokers: 'localhost:9092', topics: [more]}}"))
    again, end = sent(lineage, state("starting", "restart requested"), batch(1, tables={"/t": TABLE}), state("stopped"))
    assert start["run"]["runId"] == again["run"]["runId"] == end["run"]["runId"]
    assert [each["name"] for each in again["inputs"]] == ["more"]


def test_inputs_of_other_sources() -> None:
    pattern = "{kafka: {brokers: 'localhost:9092', pattern: '^orders'}}"
    for source, expected in (
        (pattern, [("kafka://localhost:9092", "orders-de")]),
        ("{files: {path: /data/in, format: json_lines}}", [("file", "/data/in")]),
        ("{generate: {records: 10}}", []),
    ):
        lineage = Lineage("headrace", Clock())
        lineage.add(spec(source))
        _, event = sent(lineage, state("starting"), partitions(1, topic="orders-de"), batch(1, tables={"/t": TABLE}))
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == expected, source


def test_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(tmp_path)
    harness.serve(monkeypatch)
    harness.send([{"id": number, "kind": "alpha"} for number in range(10)])
    harness.run()
    lineage = Lineage("headrace", Clock())
    lineage.add(harness.spec)
    events = sent(lineage, *harness.events)
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert events[1]["inputs"] == [{"namespace": "kafka://localhost:9", "name": "orders"}]
    (statistics,) = written(events[1]).values()
    assert (statistics["rowCount"], statistics["fileCount"]) == (10, 1)
    assert statistics["size"] > 0
    assert [batch_trace(event) is not None for event in harness.events].count(True) == 1


def test_unknown_pipelines_and_events_of_the_process_are_ignored() -> None:
    lineage = Lineage("headrace", Clock())
    assert sent(lineage, state("starting"), batch(1), {"event": "warning", "pipeline": None, "text": ""}) == []


def test_the_events_are_posted() -> None:
    lineage, receiver = Lineage("headrace", Clock()), Receiver()
    lineage.add(spec())
    receiver.open.set()
    with served(receiver):
        poster = EventPoster("--lineage", receiver.url, lineage.run_event, "application/json", token="key-of-lineage")
        poster.start()
        for event in (state("starting"), batch(1, tables={"/lake/orders": TABLE}), state("stopped")):
            poster(event)
        eventually(lambda: len(receiver.requests) == 3, 60, lambda: str(receiver.requests))
        poster.stop()
    assert [each["eventType"] for each in receiver.posted()] == ["START", "RUNNING", "COMPLETE"]
    assert receiver.requests[0][1]["Authorization"] == "Bearer key-of-lineage"
