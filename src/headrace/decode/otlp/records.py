"""Spans, log records and metric data points of export requests as flat columns, with their resource and scope."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Numbers
from headrace.decode.nested import list_elements, struct_field
from headrace.decode.otlp.messages import SIGNAL_TYPES
from headrace.spec.decode import Signal

Columns = dict[str, pa.Array]

# The field of a metric by its kind, as the column `type` has it.
METRIC_KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
_BUCKETS = pa.struct([pa.field("offset", pa.int32()), pa.field("bucket_counts", pa.list_(pa.uint64()))])


@dataclass(frozen=True, slots=True)
class Enclosing:
    """The resources, scopes or metrics of records."""

    columns: Columns
    at: Numbers  # the resource, scope or metric of each record

    def take(self, values: pa.Array) -> pa.Array:
        """Values for each record."""
        return values.take(pa.array(self.at))

    def within(self, inner: Enclosing) -> Enclosing:
        """The same for what is inside of an inner enclosure."""
        return Enclosing(self.columns, self.at[inner.at])


@dataclass(frozen=True, slots=True)
class SignalRecords:
    """Spans, log records or data points in the order of the requests."""

    columns: Columns
    requests: Numbers  # the request of each record
    resources: Enclosing
    scopes: Enclosing
    metrics: Enclosing | None = None

    def __len__(self) -> int:
        return len(self.requests)


def records_of(signal: Signal, requests: pa.Table) -> SignalRecords:
    """The records of export requests."""
    names = SIGNAL_TYPES[signal]
    resource_list = requests[names.resources].combine_chunks()
    resources, request_of = list_elements(resource_list)
    scopes, resource_of = list_elements(struct_field(resources, names.scopes))
    records, scope_of = list_elements(struct_field(scopes, names.records))
    scope = Enclosing(_with_inner(scopes, "scope"), scope_of)
    resource = Enclosing(_with_inner(resources, "resource"), resource_of).within(scope)
    owners = request_of[resource.at]
    if signal == "metrics":
        return _data_points(records, owners, resource, scope)
    return SignalRecords(_fields(records), owners, resource, scope)


def _field(records: pa.StructArray, name: str) -> pa.Array:
    return records.flatten()[records.type.get_field_index(name)]


def _fields(records: pa.StructArray) -> Columns:
    return dict(zip([item.name for item in records.type], records.flatten(), strict=True))


def _with_inner(parents: pa.StructArray, inner: str) -> Columns:
    """The fields of `resource` or `scope`, with their defaults if it is absent, and the schema URL beside it."""
    messages = struct_field(parents, inner)
    columns = {name: _with_default(column) for name, column in _fields(messages).items()}
    return {**columns, "schema_url": struct_field(parents, "schema_url")}


def _with_default(column: pa.Array) -> pa.Array:
    if not column.null_count:
        return column
    if pa.types.is_list(column.type):
        items, owners = list_elements(column)
        offsets = np.append(0, np.cumsum(np.bincount(owners, minlength=len(column)))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), items)
    return pc.fill_null(column, "" if pa.types.is_string(column.type) else 0)


# ---- metrics ----


def _data_points(metrics: pa.StructArray, owners: Numbers, resource: Enclosing, scope: Enclosing) -> SignalRecords:
    """Data points of all kinds, in the order of their metrics; a field that a kind does not have is NULL."""
    parts = [part for kind in METRIC_KINDS if len(part := _points_of_kind(metrics, kind))]
    points = pa.concat_tables(parts or [_points_of_kind(metrics, METRIC_KINDS[0])], promote_options="default")
    if len(parts) > 1:
        points = points.take(pa.array(np.argsort(points["metric"].to_numpy(), kind="stable")))
    columns = {name: _whole(points[name]) for name in points.column_names}
    metric = Enclosing(_fields(metrics), columns.pop("metric").to_numpy())
    return SignalRecords(
        columns, owners[metric.at], resource.within(metric), scope.within(metric), Enclosing(metric.columns, metric.at)
    )


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _points_of_kind(metrics: pa.StructArray, kind: str) -> pa.Table:
    data = _field(metrics, kind)
    points, owners = list_elements(struct_field(data, "data_points"))
    columns = _fields(points)
    for name in ("positive", "negative"):
        if (buckets := columns.pop(name, None)) is not None:
            columns[f"{name}_offset"] = struct_field(buckets, "offset")
            columns[f"{name}_bucket_counts"] = struct_field(buckets, "bucket_counts")
    for name in ("aggregation_temporality", "is_monotonic"):
        if data.type.get_field_index(name) >= 0:
            columns[name] = _field(data, name).take(pa.array(owners))
    return pa.table({**columns, "type": pa.repeat(kind, len(owners)), "metric": pa.array(owners)})
