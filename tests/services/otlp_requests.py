"""Random OTLP export requests, made and read with the official library, for comparison with the decoder."""

from __future__ import annotations

import base64
import json
import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as F
from opentelemetry.proto.common.v1 import common_pb2

from headrace.decode.otlp.records import METRIC_KINDS
from headrace.source.otlp.json_request import request_type

TEXTS = ("", "a", "GET /x", 'quo"te', "back\\slash", "line\nbreak\t", "ünïcode 🐟", "x" * 300)
DOUBLES = (0.0, -0.0, 1.5, -2.25e300, 5e-324, 0.1, 1e16, 123456789.125, math.nan, math.inf, -math.inf)
INTEGERS = (0, 1, -1, 7, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63))
UNKNOWN = bytes.fromhex("ba3e03616263" + "a8" + "4601")  # fields 999 (text) and 1125 (varint)


def random_request(signal: Any, seed: int, *, unknown: bool = False) -> Any:
    """An export request with most fields set to values of all kinds."""
    return _message(request_type(signal), random.Random(seed), 0, unknown)


def _message(kind: Any, rnd: random.Random, depth: int, unknown: bool) -> Any:
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if field.name in ("string_value_strindex", "key_strindex") or rnd.random() < 0.25:
            continue
        if field.containing_oneof is not None and rnd.random() < 0.5:
            continue
        if field.is_repeated:
            count = rnd.choice((0, 1, 2, 3)) if depth < 12 else 0
            values = [_value(field, rnd, depth, unknown) for _ in range(count)]
            if field.message_type is not None and field.message_type.name == "KeyValue":
                for nth, pair in enumerate(values):
                    pair.key += str(nth)
            getattr(message, field.name).extend(values)
        elif field.message_type is not None:
            if depth < 14:
                getattr(message, field.name).CopyFrom(_value(field, rnd, depth, unknown))
        else:
            setattr(message, field.name, _value(field, rnd, depth, unknown))
    if unknown and rnd.random() < 0.3:
        message.MergeFromString(UNKNOWN)
    return message


def _value(field: Any, rnd: random.Random, depth: int, unknown: bool) -> Any:
    if field.message_type is not None:
        return _message(field.message_type._concrete_class, rnd, depth + 1, unknown)
    if field.type == F.TYPE_STRING:
        return rnd.choice(TEXTS)
    if field.type == F.TYPE_BYTES:
        size = {"trace_id": 16}.get(field.name, 8) if field.name.endswith("_id") else rnd.randrange(5)
        return rnd.choice((b"", rnd.randbytes(size)))
    if field.type == F.TYPE_DOUBLE:
        return rnd.choice(DOUBLES)
    if field.type == F.TYPE_BOOL:
        return rnd.random() < 0.5
    if field.type == F.TYPE_ENUM:
        return rnd.choice([*(each.number for each in field.enum_type.values), 77])
    low, high = _RANGES[field.type]
    return rnd.choice([each for each in (*INTEGERS, high) if low <= each <= high])


_RANGES = {
    F.TYPE_INT64: (-(2**63), 2**63 - 1),
    F.TYPE_SFIXED64: (-(2**63), 2**63 - 1),
    F.TYPE_FIXED64: (0, 2**63 - 1),  # more does not fit a long
    F.TYPE_UINT32: (0, 2**32 - 1),
    F.TYPE_FIXED32: (0, 2**32 - 1),
    F.TYPE_SINT32: (-(2**31), 2**31 - 1),
    F.TYPE_INT32: (-(2**31), 2**31 - 1),
    F.TYPE_UINT64: (0, 2**63 - 1),
}


# ---- the rows of a request, object by object ----


def any_json(value: Any) -> Any:
    """An attribute value in Python's types for JSON."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [any_json(each) for each in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: any_json(pair.value) for pair in value.kvlist_value.values}
    plain = getattr(value, kind)
    if kind == "bytes_value":
        return base64.b64encode(plain).decode()
    if kind == "double_value" and not math.isfinite(plain):
        return "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"
    return plain


def any_text(value: Any) -> str | None:
    """An attribute value as text: strings as they are, others as JSON."""
    plain = any_json(value)
    if plain is None or isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def texts(pairs: Any) -> dict[str, str | None]:
    """Attributes as a map."""
    return {pair.key: any_text(pair.value) for pair in pairs}


def moment(nanoseconds: int) -> datetime | None:
    """A time, cut to microseconds; beyond Python's years as None."""
    if not nanoseconds:
        return None
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=nanoseconds // 1000)


def _enum(message: Any, name: str) -> str:
    number = getattr(message, name)
    known = message.DESCRIPTOR.fields_by_name[name].enum_type.values_by_number
    return known[number].name if number in known else str(number)


def _service(resource: Any) -> str | None:
    return next((any_text(pair.value) for pair in resource.attributes if pair.key == "service.name"), None)


def rows_of(signal: str, request: Any) -> list[dict[str, Any]]:
    """The rows of the flat layout."""
    resources, scopes, records = {
        "traces": ("resource_spans", "scope_spans", "spans"),
        "metrics": ("resource_metrics", "scope_metrics", "metrics"),
        "logs": ("resource_logs", "scope_logs", "log_records"),
    }[signal]
    rows = []
    for resource in getattr(request, resources):
        for scope in getattr(resource, scopes):
            context = {
                "service_name": _service(resource.resource),
                "scope_name": scope.scope.name,
                "scope_version": scope.scope.version,
                "scope_attributes": texts(scope.scope.attributes),
                "scope_dropped_attributes_count": scope.scope.dropped_attributes_count,
                "scope_schema_url": scope.schema_url,
                "resource_attributes": texts(resource.resource.attributes),
                "resource_dropped_attributes_count": resource.resource.dropped_attributes_count,
                "resource_schema_url": resource.schema_url,
            }
            for record in getattr(scope, records):
                rows += [{**row, **context} for row in _RECORDS[signal](record)]
    return rows


def _span(span: Any) -> list[dict[str, Any]]:
    return [
        {
            "trace_id": span.trace_id.hex() or None,
            "span_id": span.span_id.hex() or None,
            "parent_span_id": span.parent_span_id.hex() or None,
            "trace_state": span.trace_state,
            "flags": span.flags,
            "name": span.name,
            "kind": _enum(span, "kind"),
            "start_time": moment(span.start_time_unix_nano),
            "end_time": moment(span.end_time_unix_nano),
            "start_time_unix_nano": span.start_time_unix_nano,
            "end_time_unix_nano": span.end_time_unix_nano,
            "status_code": _enum(span.status, "code"),
            "status_message": span.status.message,
            "attributes": texts(span.attributes),
            "dropped_attributes_count": span.dropped_attributes_count,
            "events": [
                {
                    "time": moment(event.time_unix_nano),
                    "time_unix_nano": event.time_unix_nano,
                    "name": event.name,
                    "attributes": texts(event.attributes),
                    "dropped_attributes_count": event.dropped_attributes_count,
                }
                for event in span.events
            ],
            "dropped_events_count": span.dropped_events_count,
            "links": [
                {
                    "trace_id": link.trace_id.hex() or None,
                    "span_id": link.span_id.hex() or None,
                    "trace_state": link.trace_state,
                    "attributes": texts(link.attributes),
                    "dropped_attributes_count": link.dropped_attributes_count,
                    "flags": link.flags,
                }
                for link in span.links
            ],
            "dropped_links_count": span.dropped_links_count,
        }
    ]


def _log(log: Any) -> list[dict[str, Any]]:
    return [
        {
            "time": moment(log.time_unix_nano),
            "observed_time": moment(log.observed_time_unix_nano),
            "time_unix_nano": log.time_unix_nano,
            "observed_time_unix_nano": log.observed_time_unix_nano,
            "severity_number": log.severity_number,
            "severity_text": log.severity_text,
            "event_name": log.event_name,
            "body": any_text(log.body) if log.HasField("body") else None,
            "trace_id": log.trace_id.hex() or None,
            "span_id": log.span_id.hex() or None,
            "flags": log.flags,
            "attributes": texts(log.attributes),
            "dropped_attributes_count": log.dropped_attributes_count,
        }
    ]


def _points(metric: Any) -> list[dict[str, Any]]:
    kind = metric.WhichOneof("data")
    if kind is None:
        return []
    data = getattr(metric, kind)
    common = {
        "name": metric.name,
        "description": metric.description,
        "unit": metric.unit,
        "metadata": texts(metric.metadata),
        "type": kind,
        "aggregation_temporality": _enum(data, "aggregation_temporality")
        if hasattr(data, "aggregation_temporality")
        else None,
        "is_monotonic": getattr(data, "is_monotonic", None),
    }
    assert kind in METRIC_KINDS
    return [{**common, **_point(point)} for point in data.data_points]


def _point(point: Any) -> dict[str, Any]:
    own = {field.name for field in point.DESCRIPTOR.fields}
    set_ = {field.name for field, _ in point.ListFields()}

    def optional(name: str) -> Any:
        explicit = name in own and point.DESCRIPTOR.fields_by_name[name].has_presence
        return getattr(point, name) if name in own and (name in set_ or not explicit) else None

    def listed(name: str) -> list[Any] | None:
        return list(getattr(point, name)) if name in own else None

    row = {
        "start_time": moment(point.start_time_unix_nano),
        "time": moment(point.time_unix_nano),
        "start_time_unix_nano": point.start_time_unix_nano,
        "time_unix_nano": point.time_unix_nano,
        "attributes": texts(point.attributes),
        "flags": point.flags,
        "value": optional("as_double"),
        "value_int": optional("as_int"),
        **{name: optional(name) for name in ("count", "sum", "min", "max", "scale", "zero_count", "zero_threshold")},
        **{name: listed(name) for name in ("bucket_counts", "explicit_bounds")},
        "quantile_values": [{"quantile": each.quantile, "value": each.value} for each in point.quantile_values]
        if "quantile_values" in own
        else None,
        "exemplars": [_exemplar(each) for each in point.exemplars] if "exemplars" in own else None,
    }
    for side in ("positive", "negative"):
        there = side in set_
        row[f"{side}_offset"] = getattr(point, side).offset if there else None
        row[f"{side}_bucket_counts"] = list(getattr(point, side).bucket_counts) if there else None
    return row


def _exemplar(exemplar: Any) -> dict[str, Any]:
    kind = exemplar.WhichOneof("value")
    return {
        "time": moment(exemplar.time_unix_nano),
        "time_unix_nano": exemplar.time_unix_nano,
        "value": exemplar.as_double if kind == "as_double" else None,
        "value_int": exemplar.as_int if kind == "as_int" else None,
        "trace_id": exemplar.trace_id.hex() or None,
        "span_id": exemplar.span_id.hex() or None,
        "filtered_attributes": texts(exemplar.filtered_attributes),
    }


_RECORDS = {"traces": _span, "logs": _log, "metrics": _points}


def add_attribute(pairs: Any, key: str, value: str | int | float | bool) -> None:
    """Add an attribute."""
    kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
    pairs.append(common_pb2.KeyValue(key=key, value=common_pb2.AnyValue(**{kind: value})))
