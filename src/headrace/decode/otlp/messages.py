"""Message types of OTLP's export requests, from the published descriptors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from headrace.decode.protobuf.schema import Field, Message, MessageBuilder
from headrace.spec.decode import Signal

ANY_VALUE = "opentelemetry.proto.common.v1.AnyValue"
_DEPTH = 64  # more than any of the types has; values of attributes are limited by limits.depth
_NUMBERED = frozenset({"severity_number"})  # enums that are read as numbers
_NESTED = frozenset({"array_value", "kvlist_value"})


@dataclass(frozen=True, slots=True)
class SignalType:
    """Names in the export request of a signal: `resource_spans`, `scope_spans`, `spans`."""

    module: str
    request: str
    resources: str
    scopes: str
    records: str


SIGNAL_TYPES: dict[Signal, SignalType] = {
    "traces": SignalType("trace", "ExportTraceServiceRequest", "resource_spans", "scope_spans", "spans"),
    "metrics": SignalType("metrics", "ExportMetricsServiceRequest", "resource_metrics", "scope_metrics", "metrics"),
    "logs": SignalType("logs", "ExportLogsServiceRequest", "resource_logs", "scope_logs", "log_records"),
}


@cache
def request_message(signal: Signal) -> Message:
    """The export request of a signal; attribute values have no fields."""
    kind = SIGNAL_TYPES[signal]
    service: Any = import_module(f"opentelemetry.proto.collector.{kind.module}.v1.{kind.module}_service_pb2")
    descriptor = getattr(service, kind.request).DESCRIPTOR
    return _with_numbers(MessageBuilder(_DEPTH, frozenset({ANY_VALUE})).message(descriptor))


@cache
def any_value() -> Message:
    """The value of an attribute, in which arrays and lists of key-value pairs are bytes."""
    from opentelemetry.proto.common.v1 import common_pb2

    descriptor = common_pb2.AnyValue.DESCRIPTOR
    nested = frozenset({"opentelemetry.proto.common.v1.ArrayValue", "opentelemetry.proto.common.v1.KeyValueList"})
    whole = MessageBuilder(_DEPTH, nested).message(descriptor)
    fields = (replace(each, kind="bytes", message=None) if each.name in _NESTED else each for each in whole.fields)
    return replace(whole, fields=tuple(fields))


def _with_numbers(message: Message) -> Message:
    return replace(message, fields=tuple(map(_numbered, message.fields)))


def _numbered(field: Field) -> Field:
    if field.name in _NUMBERED:
        return replace(field, kind="int32", names=MappingProxyType({}))
    return field if field.message is None else replace(field, message=_with_numbers(field.message))
