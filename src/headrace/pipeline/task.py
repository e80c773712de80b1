"""Spark task: reads records, writes Parquet files, returns one manifest and no rows."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, lru_cache
from io import BytesIO
from math import ceil
from typing import Any

import duckdb
import pyarrow as pa

from headrace import faults
from headrace.decode.inference import Structure
from headrace.decode.inference import merge_inferred as merge_structures
from headrace.decode.schema_paths import with_schema_files
from headrace.errors import EnvironmentMismatch, HeadraceError, error_from_dict
from headrace.pipeline.manifest import Manifest
from headrace.plan.accounting import Counts
from headrace.plan.plan import Plan
from headrace.plan.route_schema import RouteSchema
from headrace.plan.unknown_names import UnknownName
from headrace.runtime.heap import keep_freed_memory
from headrace.source.base import restore_null_headers
from headrace.source.ranges import Range
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.spec.secrets import BadReference, Secret
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Profile, Store
from headrace.version import VERSION

MANY = 8  # routes
GATHERED_ROWS = 250_000
GATHERED_BYTES = 128 * 1024 * 1024
MANIFEST = pa.schema([pa.field("manifest", pa.string())])

TASK_RECORDS, TASK_BYTES = 25_000, 8 * 1024 * 1024  # minimum for one more task, and one more file in each table
TASK_PARTITIONS = 16  # read by one task, sequentially


@dataclass(frozen=True)
class TaskInput:
    """Input of a task; the same for every batch until a route schema changes."""

    spec: Spec
    schemas: Mapping[RouteId, RouteSchema | None]
    layouts: Mapping[RouteId, FileLayout]  # where each route's files go
    dead_letters: FileLayout
    profile: Profile = field(repr=False)
    unchecked: frozenset[str] = frozenset()  # branches whose column names are to be checked against records
    schema_files: Mapping[str, bytes] = field(default_factory=dict)  # by path on the driver

    def to_bytes(self) -> bytes:
        """Serialize for the task, with the values of secrets."""
        stream = BytesIO()
        _TaskPickler(stream).dump(self)
        return stream.getvalue()


class _TaskPickler(pickle.Pickler):
    """Pickler that resolves secrets: an executor has neither the environment nor the files of the driver."""

    def reducer_override(self, value: Any) -> Any:
        """Serialize a secret with its value; one that cannot be resolved is reported where it is used."""
        if not isinstance(value, Secret):
            return NotImplemented
        try:
            return Secret, (value.reference, value.base, value.reveal())
        except BadReference:
            return NotImplemented


@cache
def versions() -> Mapping[str, str]:
    """Versions that the driver and all tasks must agree on: the results of a batch depend on them."""
    return {"Headrace": VERSION, "PyArrow": pa.__version__, "DuckDB": duckdb.__version__}


def tasks_for(ranges: Sequence[Range], mean_bytes: float) -> int:
    """Number of tasks for these ranges; Spark would start one per partition, however small."""
    records = sum(each.until - each.start for each in ranges)
    worth = (records / TASK_RECORDS, records * mean_bytes / TASK_BYTES, len(ranges) / TASK_PARTITIONS)
    return max(1, *map(ceil, worth))


def run_task(
    expected: Mapping[str, str], serialized: bytes, batch: int, now: datetime, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The body of `mapInArrow`; `expected`: the versions of the driver."""
    if expected == versions():
        manifest = _manifest(serialized, batch, now, batches)
    else:  # what another version has serialized may not be readable
        manifest = Manifest(error=_mismatch(expected).to_dict())
    yield pa.RecordBatch.from_pydict({"manifest": [manifest.to_json()]}, schema=MANIFEST)


def _mismatch(expected: Mapping[str, str]) -> EnvironmentMismatch:
    own = versions()
    wrong = [f"{name} {own.get(name)} (driver: {each})" for name, each in expected.items() if own.get(name) != each]
    return EnvironmentMismatch(
        f"The executor on {socket.gethostname()} has other versions than the driver: {', '.join(wrong)}.",
        hint="Run `headrace setup --pack` again, or install the versions of the driver on all nodes.",
    )


def raise_task_error(manifests: Iterable[Manifest]) -> None:
    """Raise the error that ended a task, with its class, message, hint and facts."""
    for manifest in manifests:
        if manifest.error is not None:
            raise error_from_dict(manifest.error)


def _manifest(serialized: bytes, batch: int, now: datetime, batches: Iterable[pa.RecordBatch]) -> Manifest:
    task_input, plan, stores = _compiled(serialized)
    plan.now = lambda: now
    limits = task_input.spec.limits
    name = f"{batch:08d}-{_task_number():05d}"
    stager = Stager(stores, name, open_writers=limits.open_writers, partition_values=limits.partition_values)
    try:
        return _stage_all(task_input, plan, stager, batches)
    except HeadraceError as error:
        stager.abandon()
        return Manifest(error=error.to_dict())
    except BaseException:
        stager.abandon()
        raise


def _stage_all(task_input: TaskInput, plan: Plan, stager: Stager, batches: Iterable[pa.RecordBatch]) -> Manifest:
    counts, discovered, assumed = Counts(), dict[RouteId, Structure](), set[RouteId]()
    unknown = dict[RouteId, frozenset[UnknownName]]()
    layouts = dict(task_input.layouts)
    records = map(restore_null_headers, batches)
    for applied in (part for each in gathered(records, lambda: plan.routes) for part in plan.parts(each)):
        layouts |= {name: _layout(plan, name) for name in applied.assumed - assumed}
        assumed |= applied.assumed
        for name, structure in applied.discovered.items():
            known = discovered.get(name)
            discovered[name] = merge_structures(known, structure) if known else structure
        counts = counts + applied.counts
        unknown |= {name: unknown.get(name, names) & names for name, names in applied.unknown.items()}
        if discovered:
            continue  # the driver runs the batch again with the new schemas: from here on, only discover
        for name, rows in applied.tables.items():
            stager.add(layouts[name], rows)
        if len(applied.dead_letters) and not task_input.spec.dead_letters.drop:
            stager.add(task_input.dead_letters, applied.dead_letters)
        faults.reach(faults.Point.DURING_STAGING)
    if discovered:
        stager.abandon()
        return Manifest(counts=counts, discovered=discovered, assumed=tuple(assumed))
    return Manifest(stager.finish(), counts, assumed=tuple(assumed), unknown=unknown)


def _layout(plan: Plan, route_id: RouteId) -> FileLayout:
    """File layout of a new table that the spec declares completely."""
    schema = plan.schemas[route_id]
    assert schema is not None  # noqa: S101
    rules = plan.spec.table_for(route_id)
    return FileLayout(schema.uri, schema.table, schema.partition_by, rules.compression, rules.target_file_size)


def gathered(batches: Iterable[pa.RecordBatch], routes: Callable[[], int]) -> Iterator[pa.Table]:
    """Batches, combined where there are many routes: decoding a few records of a route costs nearly as much as many.

    `routes`: their current number, as the first batch may be the one that has them.
    """
    waiting, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= GATHERED_ROWS or size >= GATHERED_BYTES or routes() <= MANY:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


@lru_cache(maxsize=4)
def _compiled(serialized: bytes) -> tuple[TaskInput, Plan, Any]:
    """The compiled plan, cached in the worker between batches."""
    keep_freed_memory()
    task_input: TaskInput = pickle.loads(serialized)  # noqa: S301 (our own bytes, from our own driver)
    spec = with_schema_files(task_input.spec, task_input.schema_files)
    stores: dict[str, Store] = {}

    def store_for(uri: str) -> Store:
        if uri not in stores:
            stores[uri] = Store(uri, task_input.profile)
        return stores[uri]

    return (
        task_input,
        Plan(spec, task_input.schemas, assumes=True, unchecked=task_input.unchecked),
        store_for,
    )


def _task_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else int(context.partitionId())
