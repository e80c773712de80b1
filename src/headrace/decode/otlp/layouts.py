"""Table layouts: the columns of spans, log records and data points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Numbers
from headrace.decode.otlp.columns import (
    OtlpColumns,
    attribute_json,
    attribute_map,
    attribute_values,
    lists_with_duplicates,
)
from headrace.decode.otlp.records import METRIC_KINDS, Columns, Enclosing, SignalRecords
from headrace.reasons import Reason
from headrace.spec.decode import Attributes, OtlpLayout, Signal
from headrace.spec.types import TIMESTAMP

_SERVICE = "service.name"
_MAX_LONG = (1 << 63) - 1
_STATUS = pa.array(["STATUS_CODE_UNSET", "STATUS_CODE_OK", "STATUS_CODE_ERROR"])
_LOG_TIMES = ("time_unix_nano", "observed_time_unix_nano")


@dataclass(frozen=True)
class LayoutOptions:
    """How attributes become columns, and the layout."""

    layout: OtlpLayout = "flat"
    attributes: Attributes = "map"
    columns: Mapping[str, str] | None = None  # attribute by column


class LayoutBuilder:
    """Builds the columns of one signal; records whose values do not fit are rejected by the reader."""

    def __init__(self, reader: OtlpColumns, records: SignalRecords, options: LayoutOptions, ids: Sequence[str]) -> None:
        self.reader, self.records, self.options = reader, records, options
        self.ids = ids  # an id of each request, for layouts whose rows have one
        self.service = self._of_resource("attributes", lambda pairs: attribute_values(pairs, _SERVICE))

    def build(self, signal: Signal) -> pa.Table:
        """The columns of a signal."""
        layouts = {"flat": self._flat, "zerobus": self._zerobus, "telemetry": self._telemetry}
        columns = {**layouts[self.options.layout](signal), **self._selected()}
        return pa.table(columns)

    # ---- the layout of this project ----

    def _flat(self, signal: Signal) -> Columns:
        own = {"traces": self._flat_span, "logs": self._flat_log, "metrics": self._flat_point}[signal]()
        return {**own, **self._flat_context()}

    def _flat_span(self) -> Columns:
        own = self.records.columns
        begin, end = self._long(own["start_time_unix_nano"], "start_time"), self._long(own["end_time_unix_nano"], "end")
        return {
            "trace_id": own["trace_id"],
            "span_id": own["span_id"],
            "parent_span_id": own["parent_span_id"],
            "trace_state": own["trace_state"],
            "flags": _wide(own["flags"]),
            "name": own["name"],
            "kind": own["kind"],
            "start_time": moments(begin),
            "end_time": moments(end),
            "start_time_unix_nano": begin,
            "end_time_unix_nano": end,
            "status_code": _inner(own["status"], "code", "STATUS_CODE_UNSET"),
            "status_message": _inner(own["status"], "message", ""),
            "service_name": self.service,
            "attributes": self._attributes(own["attributes"], self.records.requests, "attributes"),
            "dropped_attributes_count": _wide(own["dropped_attributes_count"]),
            "events": self._events(own["events"], with_time=True),
            "dropped_events_count": _wide(own["dropped_events_count"]),
            "links": self._links(own["links"]),
            "dropped_links_count": _wide(own["dropped_links_count"]),
        }

    def _flat_log(self) -> Columns:
        own = self.records.columns
        time, observed = (self._long(own[name], name) for name in _LOG_TIMES)
        return {
            "time": moments(time),
            "observed_time": moments(observed),
            "time_unix_nano": time,
            "observed_time_unix_nano": observed,
            "severity_number": _wide(own["severity_number"]),
            "severity_text": own["severity_text"],
            "event_name": own["event_name"],
            "body": _inner(own["body"], "text", None),
            "trace_id": own["trace_id"],
            "span_id": own["span_id"],
            "flags": _wide(own["flags"]),
            "service_name": self.service,
            "attributes": self._attributes(own["attributes"], self.records.requests, "attributes"),
            "dropped_attributes_count": _wide(own["dropped_attributes_count"]),
        }

    def _flat_point(self) -> Columns:
        own = self._point_columns()
        start, time = own["start_time_unix_nano"], own["time_unix_nano"]
        return {
            **self._metric(),
            "type": own["type"],
            "aggregation_temporality": own["aggregation_temporality"],
            "is_monotonic": own["is_monotonic"],
            "start_time": moments(start),
            "time": moments(time),
            "start_time_unix_nano": start,
            "time_unix_nano": time,
            "service_name": self.service,
            "attributes": own["attributes"],
            "flags": own["flags"],
            **{name: own[name] for name in _POINT_VALUES},
            "exemplars": own["exemplars"],
            "metadata": self._metadata(),
        }

    def _flat_context(self) -> Columns:
        scopes = self.records.scopes
        return {
            "scope_name": scopes.take(scopes.columns["name"]),
            "scope_version": scopes.take(scopes.columns["version"]),
            "scope_attributes": self._enclosing_attributes(scopes, "scope.attributes"),
            "scope_dropped_attributes_count": scopes.take(_wide(scopes.columns["dropped_attributes_count"])),
            "scope_schema_url": scopes.take(scopes.columns["schema_url"]),
            "resource_attributes": self._enclosing_attributes(self.records.resources, "resource.attributes"),
            "resource_dropped_attributes_count": self._of_resource("dropped_attributes_count", _wide),
            "resource_schema_url": self._of_resource("schema_url"),
        }

    # ---- the layout of Lakeflow Zerobus ----

    def _zerobus(self, signal: Signal) -> Columns:
        own = {"traces": self._zerobus_span, "logs": self._zerobus_log, "metrics": self._zerobus_point}[signal]()
        time = own.pop("time")
        context = self._flat_context()
        url = {"traces": "span_schema_url", "logs": "log_schema_url", "metrics": "metric_schema_url"}[signal]
        return {
            "record_id": self._record_ids(),
            "time": time,
            "service_name": self.service,
            **own,
            "resource": _struct(
                attributes=context["resource_attributes"],
                dropped_attributes_count=context["resource_dropped_attributes_count"],
            ),
            "resource_schema_url": context["resource_schema_url"],
            "instrumentation_scope": _struct(
                name=context["scope_name"],
                version=context["scope_version"],
                attributes=context["scope_attributes"],
                dropped_attributes_count=context["scope_dropped_attributes_count"],
            ),
            url: context["scope_schema_url"],
        }

    def _zerobus_span(self) -> Columns:
        flat, own = self._flat_span(), self.records.columns
        names = (
            "trace_id",
            "span_id",
            "trace_state",
            "parent_span_id",
            "flags",
            "name",
            "kind",
            "start_time_unix_nano",
        )
        counted = ("end_time_unix_nano", "attributes", "dropped_attributes_count")
        return {
            "time": flat["start_time"],
            **{name: flat[name] for name in (*names, *counted)},
            "events": self._events(own["events"], with_time=False),
            **{name: flat[name] for name in ("dropped_events_count", "links", "dropped_links_count")},
            "status": _struct(message=flat["status_message"], code=flat["status_code"]),
        }

    def _zerobus_log(self) -> Columns:
        flat = self._flat_log()
        names = ("event_name", "trace_id", "span_id", *_LOG_TIMES, "severity_text", "body", "attributes")
        number = flat["severity_number"].cast(pa.string())
        more = {name: flat[name] for name in ("dropped_attributes_count", "flags")}
        return {"time": flat["time"], **{name: flat[name] for name in names}, "severity_number": number, **more}

    def _zerobus_point(self) -> Columns:
        own = self._point_columns()
        own["value"] = pc.coalesce(own["value"], own["value_int"].cast(pa.float64(), safe=False))
        for side in ("positive", "negative"):
            offset, counts = own[f"{side}_offset"], own[f"{side}_bucket_counts"]
            own[f"{side}_bucket"] = _struct(offset=offset, bucket_counts=counts)
        kinds = {kind: _only(own, kind, _ZEROBUS_POINTS[kind]) for kind in METRIC_KINDS}
        metric = {**self._metric(), "metric_type": own["type"], **kinds, "metadata": self._metadata()}
        return {"time": moments(own["time_unix_nano"]), **metric}

    # ---- the layout of an OpenTelemetry bridge ----

    def _telemetry(self, signal: Signal) -> Columns:
        own = {"traces": self._telemetry_span, "logs": self._telemetry_log, "metrics": self._telemetry_point}[signal]()
        record_type = {"traces": "trace", "logs": "log", "metrics": "metric"}[signal]
        resource = self._enclosing_attributes(self.records.resources, "resource.attributes")
        return {
            "id": self._record_ids(),
            "timestamp": own.pop("timestamp"),
            "record_type": pa.repeat(record_type, len(self.records)),
            "service_name": self.service,
            **own,
            "attributes": self._attributes(self.records.columns["attributes"], self.records.requests, "attributes"),
            "tags": resource,
            "region": self._of_resource("attributes", lambda pairs: attribute_values(pairs, "cloud.region")),
        }

    def _telemetry_span(self) -> Columns:
        own = self.records.columns
        begin, end = (self._long(own[name], name) for name in ("start_time_unix_nano", "end_time_unix_nano"))
        code = _inner(own["status"], "code", "STATUS_CODE_UNSET")
        return {
            "timestamp": moments(begin),
            "trace_id": own["trace_id"],
            "span_id": own["span_id"],
            "parent_span_id": own["parent_span_id"],
            "operation_name": own["name"],
            "duration_ms": pc.divide(pc.subtract(end, begin).cast(pa.float64(), safe=False), 1e6),
            "status_code": pc.index_in(code, _STATUS).cast(pa.int64()),
        }

    def _telemetry_log(self) -> Columns:
        own = self.records.columns
        time, observed = (self._long(own[name], name) for name in _LOG_TIMES)
        return {
            "timestamp": pc.coalesce(moments(time), moments(observed)),
            "trace_id": own["trace_id"],
            "span_id": own["span_id"],
            "severity_text": own["severity_text"],
            "body": _inner(own["body"], "text", None),
        }

    def _telemetry_point(self) -> Columns:
        own, metric = self._point_columns(), self._metric()
        value = pc.coalesce(own["value"], own["value_int"].cast(pa.float64(), safe=False), own["sum"])
        return {
            "timestamp": moments(own["time_unix_nano"]),
            "metric_name": metric["name"],
            "metric_value": value,
            "metric_unit": metric["unit"],
        }

    # ---- parts of several layouts ----

    def _record_ids(self) -> pa.Array:
        """A unique id of each record: that of its request, and its position in it."""
        requests = self.records.requests
        first = np.searchsorted(requests, requests)
        prefixes = pa.array(self.ids, pa.string()).take(pa.array(requests))
        return pc.binary_join_element_wise(prefixes, pa.array(np.arange(len(requests)) - first).cast(pa.string()), "-")

    def _of_resource(self, name: str, convert: object = None) -> pa.Array:
        resources = self.records.resources
        values = resources.columns[name]
        return resources.take(convert(values) if callable(convert) else values)

    def _enclosing_attributes(self, enclosing: Enclosing, where: str) -> pa.Array:
        pairs = enclosing.columns["attributes"]
        if len(twice := lists_with_duplicates(pairs)):
            self._reject_duplicates(self.records.requests[np.isin(enclosing.at, twice)], where)
        return enclosing.take(self._converted(pairs))

    def _attributes(self, pairs: pa.ListArray, requests: Numbers, where: str) -> pa.Array:
        """Attributes of records or of what is inside of them; a record with a duplicate key is rejected."""
        if len(twice := lists_with_duplicates(pairs)):
            self._reject_duplicates(requests[twice], where)
        return self._converted(pairs)

    def _converted(self, pairs: pa.ListArray) -> pa.Array:
        return attribute_json(pairs) if self.options.attributes == "json" else attribute_map(pairs)

    def _reject_duplicates(self, requests: Numbers, where: str) -> None:
        self.reader.reject(requests, Reason.DUPLICATE_KEY, f"{where}: a key occurs twice")

    def _selected(self) -> Columns:
        """Selected attributes as columns of text: of the record, otherwise of its scope, otherwise of its resource."""
        own, scopes, resources = self.records.columns["attributes"], self.records.scopes, self.records.resources
        return {
            column: pc.coalesce(
                attribute_values(own, key),
                scopes.take(attribute_values(scopes.columns["attributes"], key)),
                resources.take(attribute_values(resources.columns["attributes"], key)),
            )
            for column, key in (self.options.columns or {}).items()
        }

    def _long(self, values: pa.Array, where: str, requests: Numbers | None = None) -> pa.Array:
        """Unsigned integers as long; records with a number above its maximum are rejected."""
        over = pc.fill_null(pc.greater(values, pa.scalar(_MAX_LONG, pa.uint64())), False)
        if pc.any(over).as_py():
            at = np.flatnonzero(over.to_numpy(zero_copy_only=False))
            rows = (self.records.requests if requests is None else requests)[at]
            self.reader.reject(rows, Reason.OVERFLOW, f"{where}: {values[int(at[0])]} does not fit long")
        return values.cast(pa.int64(), safe=False)

    def _long_list(self, lists: pa.ListArray, where: str) -> pa.ListArray:
        return _relisted(lists, self._long(lists.values, where, self._requests_within(lists)))

    def _requests_within(self, lists: pa.ListArray) -> Numbers:
        """The request of each element of lists."""
        return np.repeat(self.records.requests, np.diff(lists.offsets.to_numpy()))

    def _events(self, events: pa.ListArray, *, with_time: bool) -> pa.ListArray:
        own, requests = events.values, self._requests_within(events)
        time = self._long(own.field("time_unix_nano"), "events.time_unix_nano", requests)
        return _relisted(
            events,
            _struct(
                **({"time": moments(time)} if with_time else {}),
                time_unix_nano=time,
                name=own.field("name"),
                attributes=self._attributes(own.field("attributes"), requests, "events.attributes"),
                dropped_attributes_count=_wide(own.field("dropped_attributes_count")),
            ),
        )

    def _links(self, links: pa.ListArray) -> pa.ListArray:
        own, requests = links.values, self._requests_within(links)
        return _relisted(
            links,
            _struct(
                trace_id=own.field("trace_id"),
                span_id=own.field("span_id"),
                trace_state=own.field("trace_state"),
                attributes=self._attributes(own.field("attributes"), requests, "links.attributes"),
                dropped_attributes_count=_wide(own.field("dropped_attributes_count")),
                flags=_wide(own.field("flags")),
            ),
        )

    def _metric(self) -> Columns:
        metrics = self.records.metrics
        assert metrics is not None  # noqa: S101
        return {name: metrics.take(metrics.columns[name]) for name in ("name", "description", "unit")}

    def _metadata(self) -> pa.Array:
        metrics = self.records.metrics
        assert metrics is not None  # noqa: S101
        pairs = metrics.columns["metadata"]
        if len(twice := lists_with_duplicates(pairs)):
            self._reject_duplicates(self.records.requests[np.isin(metrics.at, twice)], "metadata")
        return metrics.take(self._converted(pairs))

    def _point_columns(self) -> Columns:
        """Columns of data points in their types; those that no data point has are NULL."""
        own, count = dict(self.records.columns), len(self.records)
        for name, kind in _POINT_TYPES.items():
            column = own.get(name)
            if column is None or pa.types.is_null(column.type):
                own[name] = pa.nulls(count, kind)
        longs = ("start_time_unix_nano", "time_unix_nano", "count", "zero_count")
        lists = ("bucket_counts", "positive_bucket_counts", "negative_bucket_counts")
        return {
            **{name: _wide(own[name]) for name in ("flags", "scale", "positive_offset", "negative_offset")},
            **{name: self._long(own[name], name) for name in longs},
            **{name: self._long_list(own[name], name) for name in lists},
            **{name: own[name] for name in ("type", "aggregation_temporality", "is_monotonic", "sum", "min", "max")},
            "value": own["as_double"],
            "value_int": own["as_int"],
            "zero_threshold": own["zero_threshold"],
            "explicit_bounds": _relisted(own["explicit_bounds"], own["explicit_bounds"].values),
            "quantile_values": _quantiles(own["quantile_values"]),
            "attributes": self._attributes(own["attributes"], self.records.requests, "attributes"),
            "exemplars": self._exemplars(own["exemplars"]),
        }

    def _exemplars(self, exemplars: pa.ListArray) -> pa.ListArray:
        own, requests = exemplars.values, self._requests_within(exemplars)
        time = self._long(own.field("time_unix_nano"), "exemplars.time_unix_nano", requests)
        return _relisted(
            exemplars,
            _struct(
                time=moments(time),
                time_unix_nano=time,
                value=own.field("as_double"),
                value_int=own.field("as_int"),
                trace_id=own.field("trace_id"),
                span_id=own.field("span_id"),
                filtered_attributes=self._attributes(
                    own.field("filtered_attributes"), requests, "exemplars.filtered_attributes"
                ),
            ),
        )


# Values of a data point in the flat layout.
_POINT_VALUES = (
    *("value", "value_int", "count", "sum", "min", "max", "bucket_counts", "explicit_bounds"),
    *("scale", "zero_count", "zero_threshold", "positive_offset", "positive_bucket_counts"),
    *("negative_offset", "negative_bucket_counts", "quantile_values"),
)
_ALL_POINTS = ("start_time_unix_nano", "time_unix_nano", "attributes", "flags")
_ZEROBUS_POINTS = {
    "gauge": (*_ALL_POINTS, "value", "exemplars"),
    "sum": (*_ALL_POINTS, "value", "exemplars", "aggregation_temporality", "is_monotonic"),
    "histogram": (
        *(*_ALL_POINTS, "count", "sum", "bucket_counts", "explicit_bounds", "exemplars", "min", "max"),
        "aggregation_temporality",
    ),
    "exponential_histogram": (
        *(*_ALL_POINTS, "count", "sum", "scale", "zero_count", "positive_bucket", "negative_bucket"),
        *("exemplars", "min", "max", "zero_threshold", "aggregation_temporality"),
    ),
    "summary": (*_ALL_POINTS, "count", "sum", "quantile_values"),
}
_QUANTILE = pa.struct([pa.field("quantile", pa.float64()), pa.field("value", pa.float64())])
_PAIRS = pa.list_(
    pa.struct([("key", pa.string()), ("value", pa.struct([("text", pa.string()), ("json", pa.bool_())]))])
)
_EXEMPLAR = pa.struct(
    [
        *[("filtered_attributes", _PAIRS), ("time_unix_nano", pa.uint64())],
        *[("as_double", pa.float64()), ("as_int", pa.int64()), ("span_id", pa.string()), ("trace_id", pa.string())],
    ]
)
_POINT_TYPES: Mapping[str, pa.DataType] = {
    **{"flags": pa.uint32(), "scale": pa.int32(), "positive_offset": pa.int32(), "negative_offset": pa.int32()},
    **dict.fromkeys(("start_time_unix_nano", "time_unix_nano", "count", "zero_count"), pa.uint64()),
    **dict.fromkeys(("bucket_counts", "positive_bucket_counts", "negative_bucket_counts"), pa.list_(pa.uint64())),
    **{"aggregation_temporality": pa.string(), "is_monotonic": pa.bool_(), "as_int": pa.int64()},
    **dict.fromkeys(("as_double", "sum", "min", "max", "zero_threshold"), pa.float64()),
    **{"explicit_bounds": pa.list_(pa.float64()), "quantile_values": pa.list_(_QUANTILE)},
    "exemplars": pa.list_(_EXEMPLAR),
}


def moments(nanoseconds: pa.Array) -> pa.Array:
    """Timestamps of nanoseconds since 1970, cut to microseconds; 0 is NULL, as OTLP has it for unknown times."""
    counts = pc.fill_null(nanoseconds, 0).to_numpy(zero_copy_only=False)
    return pa.array(counts // 1000, pa.int64(), mask=counts == 0).view(TIMESTAMP)


def _wide(values: pa.Array) -> pa.Array:
    return values.cast(pa.int64())


def _inner(messages: pa.StructArray, name: str, default: str | None) -> pa.Array:
    """A text field of messages; the default where the message is absent."""
    column = messages.flatten()[messages.type.get_field_index(name)]
    return column if default is None or not column.null_count else pc.fill_null(column, default)


def _struct(**columns: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(columns.values()), list(columns))


def _only(columns: Columns, kind: str, names: Sequence[str]) -> pa.StructArray:
    """The fields of data points of one kind, NULL for others."""
    others = pc.not_equal(columns["type"], kind).to_numpy(zero_copy_only=False)
    whole = _struct(**{name: columns[name] for name in names})
    return whole.take(pa.array(np.arange(len(whole)), mask=others))  # NULL lists and maps have no elements then


def _relisted(lists: pa.ListArray, values: pa.Array) -> pa.ListArray:
    """Lists with other elements; a NULL list is kept."""
    mask = lists.is_null() if lists.null_count else None
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(lists.offsets, values, type=kind, mask=mask)


def _quantiles(lists: pa.ListArray) -> pa.ListArray:
    own = lists.values
    return _relisted(lists, _struct(quantile=own.field("quantile"), value=own.field("value")))
