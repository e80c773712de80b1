"""Records of a batch as Spark sees them: a DataFrame of records, or of ranges that each task reads by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.source.ranges import Range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TaskReader = Callable[[Range], Iterable[pa.RecordBatch]]
"""Reads a range inside a task. Serialized to executors: a module function, or a `partial` of one with plain values."""

SPLIT_RECORDS = 10_000  # minimum for one more task per range


@dataclass(frozen=True)
class RecordFrame:
    """A DataFrame of records; with `parts`, of the indexes of ranges that the task reads with `reader`.

    A task that reads by itself saves two transfers of each record, from Python to the JVM and back.
    """

    frame: DataFrame
    parts: tuple[Range, ...] = ()
    reader: TaskReader | None = None

    @property
    def is_counted(self) -> bool:
        """Whether Spark's metrics count the records, while a batch runs."""
        return self.reader is None

    def in_task(
        self, run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """The function for `mapInArrow` that passes the records to `run`."""
        return run if self.reader is None else partial(_read_and_run, self.parts, self.reader, run)

    def coalesce(self, tasks: int) -> RecordFrame:
        """The same records in at most this number of tasks."""
        return replace(self, frame=self.frame.coalesce(tasks))


def frame_of_ranges(spark: SparkSession, ranges: Sequence[Range], reader: TaskReader) -> RecordFrame:
    """Ranges that tasks read with `reader`, at least one task per core where there are enough records."""
    cores = spark.sparkContext.defaultParallelism
    parts = tuple(part for each in ranges for part in split_range(each, max(1, cores // len(ranges))))
    return RecordFrame(spark.range(0, len(parts), 1, max(1, len(parts))), parts, reader)


def split_range(whole: Range, count: int) -> list[Range]:
    """Up to `count` consecutive ranges of about the same size, each with at least `SPLIT_RECORDS`."""
    records = whole.until - whole.start
    count = max(1, min(count, records // SPLIT_RECORDS))
    bounds = [whole.start + records * index // count for index in range(count + 1)]
    return [replace(whole, start=start, until=until) for start, until in pairwise(bounds)]


def _read_and_run(
    parts: Sequence[Range],
    reader: TaskReader,
    run: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    indexes = (index for batch in batches for index in batch.column(0).to_pylist())
    return run(records for index in indexes for records in reader(parts[index]))
