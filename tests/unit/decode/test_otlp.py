"""OTLP: rows equal those that the official library's objects have, for all signals, layouts and forms of attributes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2

from headrace.decode.base import Decoded
from headrace.decode.decoders import decoder
from headrace.decode.inference import evolve
from headrace.errors import ContractViolation
from headrace.reasons import Reason
from headrace.spec.decode import SIGNALS, Decode, OtlpFormat, Signal
from services.otlp_requests import add_attribute, any_json, random_request, rows_of


def decoded(values: list[bytes | None], new_field: str = "evolve", **options: Any) -> Decoded:
    """Rows with the columns that the requests ask for."""
    otlp = Decode.model_validate({"otlp": options}).options
    column = pa.array(values, pa.binary())
    asked = decoder("otlp", pa.schema([]), new_field="evolve", options=otlp).decode(column).unknown
    payload = evolve(pa.schema([]), asked or {})
    return decoder("otlp", payload, new_field=new_field, options=otlp).decode(column)  # type: ignore[arg-type]


def comparable(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as texts, in which NaN equals itself and the order of columns does not matter."""
    return [repr(sorted(row.items())) for row in rows]


def as_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Rows in Python, with maps as dictionaries."""
    return [{name: _plain(value) for name, value in row.items()} for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return {key: _plain(each) for key, each in value}
        return [_plain(each) for each in value]
    return value.replace(tzinfo=None).isoformat() if hasattr(value, "isoformat") else value


_MAPS = ("attributes", "metadata", "scope_attributes", "resource_attributes", "filtered_attributes")


def expected(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of the reference; an empty map is an empty list for Arrow."""
    return [_expected(row) for row in rows]


def _expected(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ([] if key in _MAPS and not each else _expected(each)) for key, each in value.items()}
    if isinstance(value, list):
        return [_expected(each) for each in value]
    return value.replace(tzinfo=None).isoformat() if hasattr(value, "isoformat") else value


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=12, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=4), unknown=st.booleans())
def test_rows_equal_the_objects_of_the_official_library(signal: Signal, seeds: list[int], unknown: bool) -> None:
    requests = [random_request(signal, seed, unknown=unknown) for seed in seeds]
    result = decoded([request.SerializeToString() for request in requests], signal=signal)
    rows = [rows_of(signal, request) for request in requests]
    assert not len(result.rejects)
    assert comparable(as_rows(result.rows)) == comparable(expected([row for part in rows for row in part]))
    assert result.index.to_pylist() == [at for at, part in enumerate(rows) for _ in part]


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.floats(0, 1), byte=st.integers(0, 255))
def test_changed_bytes_are_rows_or_a_dead_letter(signal: Signal, seed: int, cut: float, byte: int) -> None:
    raw = bytearray(random_request(signal, seed).SerializeToString() or b"\n")
    raw[int(cut * (len(raw) - 1))] = byte
    result = decoded([bytes(raw), bytes(raw[: int(cut * len(raw))])], signal=signal)
    with_rows = set(result.index.to_pylist())
    assert with_rows.isdisjoint(result.rejects.index)
    assert len(set(result.rejects.index)) == len(result.rejects)


def spans(count: int, attributes: int = 30) -> Any:
    """A request with spans that have many attributes."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    add_attribute(request.resource_spans[0].resource.attributes, "service.name", "shop")
    for nth in range(count):
        span = scope.spans.add(trace_id=nth.to_bytes(16), span_id=nth.to_bytes(8), name=f"span {nth}", kind=2)
        span.start_time_unix_nano, span.end_time_unix_nano = 1_700_000_000_123_456_789, 1_700_000_000_125_956_789
        for at in range(attributes):
            add_attribute(span.attributes, f"key {at}", at if at % 3 else f"value {nth}")
    return request


def test_many_spans_of_few_requests() -> None:
    requests = [spans(count) for count in (0, 1, 700)]
    result = decoded([request.SerializeToString() for request in requests], signal="traces")
    assert comparable(as_rows(result.rows)) == comparable(
        expected([row for request in requests for row in rows_of("traces", request)])
    )


@pytest.mark.parametrize("signal", SIGNALS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_attributes_as_json_keep_their_types(signal: Signal, seed: int) -> None:
    request = random_request(signal, seed)
    result = decoded([request.SerializeToString()], signal=signal, attributes="json")
    resources = next(iter(request.DESCRIPTOR.fields)).name
    texts = [
        {pair.key: any_json(pair.value) for pair in resource.resource.attributes}
        for resource in getattr(request, resources)
    ]
    assert len(result.rows) == len(rows_of(signal, request))
    if len(result.rows):
        seen = [json.loads(text) for text in result.rows["resource_attributes"].to_pylist()]
        assert all(repr(text) in map(repr, texts) for text in seen)


def test_selected_attributes_are_columns() -> None:
    request = spans(2, 3)
    columns = {"service": "service.name", "first": "key 0", "second": "key 1", "none": "absent"}
    rows = decoded([request.SerializeToString()], signal="traces", columns=columns).rows
    assert rows["service"].to_pylist() == ["shop", "shop"]
    assert rows["first"].to_pylist() == ["value 0", "value 1"]
    assert rows["second"].to_pylist() == ["1", "1"]
    assert rows["none"].to_pylist() == [None, None]


@pytest.mark.parametrize("new_field", ["evolve", "ignore", "reject", "stop"])
def test_unselected_columns_are_not_new_fields(new_field: Any) -> None:
    payload = pa.schema([("name", pa.string()), ("start_time", pa.timestamp("us", "UTC"))])
    options = OtlpFormat(signal="traces")
    values = pa.array([spans(2).SerializeToString()], pa.binary())
    result = decoder("otlp", payload, new_field=new_field, options=options).decode(values)
    assert result.rows["name"].to_pylist() == ["span 0", "span 1"]
    assert result.unknown is None or new_field == "evolve"


def test_unknown_fields_follow_the_contract() -> None:
    request = spans(1, 0)
    request.resource_spans[0].scope_spans[0].spans[0].MergeFromString(bytes.fromhex("ba3e03616263"))
    raw = request.SerializeToString()
    name = "resource_spans.scope_spans.spans.#999"
    assert decoded([raw], signal="traces").ignored == {name: 1}
    rejects = decoded([raw], "reject", signal="traces").rejects
    assert list(rejects) == [(0, Reason.NEW_FIELD, f"{name}: the schema does not have this field")]
    with pytest.raises(ContractViolation, match="#999"):
        decoded([raw], "stop", signal="traces")


def test_bad_records_reject_their_request_alone() -> None:
    late, twice, text, cut = spans(2, 0), spans(2, 1), spans(1, 0), spans(3).SerializeToString()[:-1]
    late.resource_spans[0].scope_spans[0].spans[1].end_time_unix_nano = 2**63
    add_attribute(twice.resource_spans[0].scope_spans[0].spans[0].attributes, "key 0", "again")
    latin = text.SerializeToString().replace(b"span 0", b"span \xff")
    values = [late.SerializeToString(), spans(2).SerializeToString(), twice.SerializeToString(), latin, cut, None]
    result = decoded(values, signal="traces")
    assert result.index.to_pylist() == [1, 1]
    assert result.rejects.index == [0, 2, 3, 4, 5]
    assert result.rejects.reason == [
        *(Reason.OVERFLOW, Reason.DUPLICATE_KEY, Reason.ENCODING, Reason.MALFORMED, Reason.TOMBSTONE)
    ]
    assert "9223372036854775808 does not fit long" in result.rejects.detail[0]


def test_counts_above_long_are_dead_letters() -> None:
    request = metrics_service_pb2.ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="sizes")
    metric.histogram.data_points.add(count=2**64 - 1)
    result = decoded([request.SerializeToString()], signal="metrics")
    assert list(result.rejects) == [(0, Reason.OVERFLOW, "count: 18446744073709551615 does not fit long")]


def test_values_nested_too_deeply_are_dead_letters() -> None:
    request = spans(1, 0)
    pair = request.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="deep")
    value = pair.value
    for _ in range(45):
        value = value.array_value.values.add()
    value.int_value = 1
    good = request.SerializeToString()
    for _ in range(30):
        value = value.array_value.values.add()
    result = decoded([good, request.SerializeToString()], signal="traces")
    assert result.rejects.index == [1]
    assert result.rejects.reason[0] in (Reason.TOO_DEEP, Reason.MALFORMED)
    assert as_rows(result.rows)[0]["attributes"] == {"deep": "[" * 45 + "1" + "]" * 45}


def test_requests_without_records_have_no_rows() -> None:
    result = decoded([b"", spans(0).SerializeToString(), spans(1).SerializeToString()], signal="traces")
    assert result.index.to_pylist() == [2]
    assert not len(result.rejects)


def test_a_request_with_too_many_records_is_a_dead_letter() -> None:
    request = trace_service_pb2.ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    scope.spans.extend([scope.spans.add()] * 100_000)
    raw = request.SerializeToString()
    assert decoded([raw], signal="traces").rejects.reason == [Reason.TOO_WIDE]


@pytest.mark.parametrize("layout", ["zerobus", "telemetry"])
@pytest.mark.parametrize("signal", SIGNALS)
def test_other_layouts_have_a_row_for_each_record(signal: Signal, layout: str) -> None:
    requests = [random_request(signal, seed) for seed in range(40)]
    values = [request.SerializeToString() for request in requests]
    flat = decoded(values, signal=signal)
    result = decoded(values, signal=signal, layout=layout)
    again = decoded(values, signal=signal, layout=layout)
    key = "record_id" if layout == "zerobus" else "id"
    ids = result.rows[key].to_pylist()
    assert len(ids) == len(set(ids)) == len(flat.rows)
    assert again.rows[key].to_pylist() == ids
    assert result.index.to_pylist() == flat.index.to_pylist()
    assert result.rows["service_name"].to_pylist() == flat.rows["service_name"].to_pylist()


def test_zerobus_columns() -> None:
    raw = spans(1, 1).SerializeToString()
    row = as_rows(decoded([raw], signal="traces", layout="zerobus").rows)[0]
    assert row["status"] == {"message": "", "code": "STATUS_CODE_UNSET"}
    assert row["resource"] == {"attributes": {"service.name": "shop"}, "dropped_attributes_count": 0}
    assert row["instrumentation_scope"]["name"] == ""
    assert row["time"] == "2023-11-14T22:13:20.123456"
    request = metrics_service_pb2.ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="a").gauge.data_points.add(as_int=3, time_unix_nano=1000)
    scope.metrics.add(name="b").summary.data_points.add(count=2, sum=1.5)
    one, two = as_rows(decoded([request.SerializeToString()], signal="metrics", layout="zerobus").rows)
    assert (one["metric_type"], one["gauge"]["value"], one["summary"]) == ("gauge", 3.0, None)
    assert (two["metric_type"], two["summary"]["sum"], two["gauge"]) == ("summary", 1.5, None)


def test_telemetry_columns() -> None:
    row = as_rows(decoded([spans(1, 1).SerializeToString()], signal="traces", layout="telemetry").rows)[0]
    assert (row["record_type"], row["operation_name"], row["duration_ms"]) == ("trace", "span 0", 2.5)
    assert (row["status_code"], row["service_name"], row["tags"]) == (0, "shop", {"service.name": "shop"})


def test_signals_by_topic() -> None:
    options = OtlpFormat(signal={"web": "traces"})
    values = pa.array([spans(1).SerializeToString()] * 4, pa.binary())
    topics = pa.array(["traces", "web", "otlp_spans", "orders"])
    payload = pa.schema([("name", pa.string())])
    made = decoder("otlp", payload, options=options)
    result = made.decode_of_topics(values, topics)  # type: ignore[attr-defined]
    assert result.index.to_pylist() == [0, 1, 2]
    detail = "no signal is known for the topic 'orders' (decode.otlp.signal)"
    assert list(result.rejects) == [(3, Reason.UNKNOWN_SCHEMA, detail)]
