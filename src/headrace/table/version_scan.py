"""The rows of a version, to be scanned."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError

from headrace.delta.scan import Relation, scan_files
from headrace.delta.schema import from_delta
from headrace.delta.snapshot import active_files
from headrace.errors import TableFeature
from headrace.storage.store import Store
from headrace.table.versions import open_version

_SCANNED = frozenset({"columnMapping", "deletionVectors"})  # what a dataset cannot read, and delta-rs's own scan can


def rows_at(store: Store, version: int, asked: Collection[str] = ()) -> Relation:
    """The rows of a version; files are left out by the columns `asked` about. Where a dataset cannot, all are read."""
    table = open_version(store, version)
    schema, protocol = from_delta(table.schema().to_json()), table.protocol()
    if protocol.min_reader_version == 2 or _SCANNED & set(protocol.reader_features or ()):
        return Relation(schema, pa.RecordBatchReader.from_stream(_scanned(store, table)))
    by = tuple(table.metadata().partition_columns)
    return scan_files(store, active_files(store, version).values(), schema, by, asked)


def _scanned(store: Store, table: Any) -> Any:
    try:
        return table.scan()
    except DeltaError as error:
        said = str(error).splitlines()[0].rpartition("failed: ")[2]
        raise TableFeature(f"{store.uri} cannot be read without Spark: {said}.", hint="Read it with Spark.") from error
