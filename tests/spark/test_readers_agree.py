"""What a pipeline without a JVM wrote, read by Spark, Polars and DuckDB: all of them find what went in."""

from __future__ import annotations

from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contract.test_round_trip import in_order, in_words, written
from services.random_rows import WRITERS, columns, rows


@pytest.mark.parametrize("format", WRITERS)
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_every_reader_finds_what_went_in(spark: Any, tmp_path_factory: Any, format: str, data: st.DataObject):
    declared = data.draw(columns(format))
    records = data.draw(st.lists(rows(declared, format), min_size=1, max_size=6))
    table = written(format, declared, records, tmp_path_factory.mktemp("rows"))
    expected = in_words(declared, records)
    for reader in (by_spark, by_polars, by_duckdb):
        assert in_words(declared, in_order(reader(spark, table))) == expected, reader.__name__


def by_spark(spark: Any, table: DeltaTable) -> Any:
    return spark.read.format("delta").load(table.table_uri).toArrow()


def by_polars(spark: Any, table: DeltaTable) -> Any:
    return pl.read_delta(table.table_uri).to_arrow()


def by_duckdb(spark: Any, table: DeltaTable) -> Any:
    return duckdb.from_arrow(table.to_pyarrow_dataset()).to_arrow_table()
