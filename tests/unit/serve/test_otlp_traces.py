"""Traces of batches, received by Headrace's own OTLP receiver."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from headrace.serve.event_poster import EventPoster
from headrace.serve.otlp_traces import batch_trace
from headrace.source.otlp.receiver import OtlpReceiver
from headrace.source.ranges import Range
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.writer import Spool
from headrace.spec.otlp_source import OtlpSpec
from headrace.version import VERSION
from services.monitored import batch, progress, state
from services.otlp_requests import rows_of
from services.wait import eventually

PHASES = {"ledger": 0.05, "stage": 0.3, "commit": 0.1, "intent": 0.02, "check": 0.01}
BATCH = batch(7, read=10, dead=2, seconds=0.5, bytes=1_000, phases=PHASES)


def test_a_trace_has_a_span_for_the_batch_and_one_for_each_phase() -> None:
    before = time.time_ns()
    body = batch_trace(BATCH)
    assert body is not None
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (scope,) = resource.scope_spans
    root, *phases = scope.spans
    assert [span.name for span in scope.spans] == ["batch", "stage", "check", "intent", "commit", "ledger"]
    assert len({span.trace_id for span in scope.spans}) == 1
    assert len({span.span_id for span in scope.spans}) == 6
    assert {span.parent_span_id for span in phases} == {root.span_id}
    assert (len(root.trace_id), len(root.span_id), root.parent_span_id) == (16, 8, b"")
    assert root.end_time_unix_nano - root.start_time_unix_nano == 500_000_000
    assert root.end_time_unix_nano >= before
    starts = [span.start_time_unix_nano - root.start_time_unix_nano for span in phases]
    assert starts == [0, 300_000_000, 310_000_000, 330_000_000, 430_000_000]
    assert phases[-1].end_time_unix_nano <= root.end_time_unix_nano


def test_only_batches_have_a_trace() -> None:
    assert [batch_trace(event) for event in (progress(), state("running"))] == [None, None]


def test_phases_do_not_outlast_the_batch() -> None:
    body = batch_trace({**BATCH, "seconds": 0.1})
    assert body is not None
    spans = ExportTraceServiceRequest.FromString(body).resource_spans[0].scope_spans[0].spans
    assert max(span.end_time_unix_nano for span in spans) == spans[0].end_time_unix_nano
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans)


@pytest.fixture
def receiver(tmp_path: Path) -> OtlpReceiver:
    return OtlpReceiver(OtlpSpec.model_validate({"grpc": False, "http": "localhost:0"}), 16 << 20)


def test_the_otlp_source_receives_the_traces(receiver: OtlpReceiver, tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    spool = Spool.open(folder, "traces")
    receiver.start(spool, lambda _: None)
    url = f"http://localhost:{receiver.http_port}/v1/traces"
    poster = EventPoster("--traces", url, batch_trace, "application/x-protobuf")
    poster.start()
    try:
        for event in (state("running"), BATCH, progress(), {**BATCH, "batch": 8}):
            poster(event)
        ends = eventually(
            lambda: (ends := open_reader(str(folder)).ends()).get("traces") == 2 and ends, 60, "two requests"
        )
    finally:
        poster.stop()
        receiver.stop()
        spool.close()
    (records,) = record_batches(open_reader(str(folder)), Range("traces", 0, 0, ends["traces"]))
    requests = [ExportTraceServiceRequest.FromString(value) for value in records.to_pydict()["value"]]
    rows = [row for request in requests for row in rows_of("traces", request)]
    assert {row["service_name"] for row in rows} == {"headrace"}
    attributes = [row["attributes"] for row in rows if row["name"] == "batch"]
    assert [each["headrace.batch"] for each in attributes] == ["7", "8"]
    assert attributes[0]["headrace.pipeline"] == "shop"
    assert (attributes[0]["headrace.read"], attributes[0]["headrace.dead"]) == ("10", "2")
    assert {each.key: each.value for each in requests[0].resource_spans[0].resource.attributes}[
        "service.version"
    ].string_value == VERSION
    assert str(os.getpid()) in str(requests[0].resource_spans[0].resource)
