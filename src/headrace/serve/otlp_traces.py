"""OpenTelemetry traces: a span for each batch, with one for each of its phases."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from headrace.version import VERSION

PHASES = ("stage", "check", "intent", "commit", "ledger")  # in the order in which they run
_COUNTS = ("read", "routed", "dead", "filtered", "skipped", "bytes")
_NANOSECONDS = 1_000_000_000


def batch_trace(event: Mapping[str, Any]) -> bytes | None:
    """The trace of a `batch` event, which is over now, as an OTLP request; None for other events."""
    if event["event"] != "batch":
        return None
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.extend(
        [
            _attribute("service.name", "headrace"),
            _attribute("service.version", VERSION),
            _attribute("host.name", platform.node()),
            _attribute("process.pid", os.getpid()),
        ]
    )
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "headrace", VERSION
    scope.spans.extend(_spans(event, time.time_ns()))
    body: bytes = request.SerializeToString()
    return body


def _spans(event: Mapping[str, Any], end: int) -> list[Span]:
    """The span of the batch, then its phases: one after the other, repeated ones added up."""
    trace, root = os.urandom(16), os.urandom(8)
    start = end - round(event["seconds"] * _NANOSECONDS)
    batch = Span(trace_id=trace, span_id=root, name="batch", kind=Span.SPAN_KIND_INTERNAL)
    batch.start_time_unix_nano, batch.end_time_unix_nano = start, end
    batch.attributes.extend(
        [
            _attribute("headrace.pipeline", event["pipeline"]),
            _attribute("headrace.batch", event["batch"]),
            _attribute("headrace.runs", event["runs"]),
            _attribute("headrace.tables", len(event["tables"])),
            *(_attribute(f"headrace.{name}", event[name]) for name in _COUNTS),
        ]
    )
    spans, phases = [batch], event["phases"]
    for name in (*PHASES, *(phases.keys() - set(PHASES))):
        if name in phases:
            until = min(end, start + round(phases[name] * _NANOSECONDS))
            span = Span(trace_id=trace, span_id=os.urandom(8), parent_span_id=root, name=name)
            span.kind, span.start_time_unix_nano, span.end_time_unix_nano = Span.SPAN_KIND_INTERNAL, start, until
            spans.append(span)
            start = until
    return spans


def _attribute(key: str, value: str | int) -> KeyValue:
    content = AnyValue(string_value=value) if isinstance(value, str) else AnyValue(int_value=value)
    return KeyValue(key=key, value=content)
