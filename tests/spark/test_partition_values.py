"""A partition value comes back unchanged, whoever reads it and whatever its folder had to be called."""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace import Table
from headrace.delta.partition_keys import PartitionKeys
from headrace.delta.schema import to_delta
from headrace.delta.snapshot import active_files
from headrace.spec.types import TIMESTAMP
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store

TEXTS = [
    "a b",
    "a/b",
    "..",
    "../x",
    "50%",
    "%2F",
    "\"#'*:=?\\{[]^",
    "ü😀",
    "\U00020000",
    "\x01\n\x7f",
    "null",
    " ",
    "é" * 120,
    "+&",
]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [*TEXTS, None]),
    "byte": (pa.int8(), [-128, 127, None]),
    "long": (pa.int64(), [-(2**63), 2**63 - 1, None]),
    "flag": (pa.bool_(), [True, False, None]),
    "real": (pa.float64(), [0.1, 1e300, -5e-324, math.inf, -math.inf, None]),
    "small": (pa.float32(), [0.5, 16777216.0, None]),
    "money": (pa.decimal128(38, 10), [Decimal("1E-10"), Decimal("-9999999999999999999999999999.9999999999"), None]),
    "day": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "at": (TIMESTAMP, [datetime(2024, 7, 1, 12, 0, 0, 1, UTC), datetime(1900, 1, 1, tzinfo=UTC), None]),
}


def make_table(table: Path, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("value", kind)])
    stager = Stager(Store, "1-0")
    stager.add(
        FileLayout(str(table), schema, ("value",)), pa.table({"id": range(len(values)), "value": values}, schema=schema)
    )
    metadata = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": to_delta(schema),
        "partitionColumns": ["value"],
        "configuration": {},
        "createdTime": 0,
    }
    actions: list[Any] = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
    actions.extend(
        {
            "add": {
                "path": quote(file.path),
                "partitionValues": dict(file.partition),
                "size": file.size,
                "modificationTime": 0,
                "dataChange": True,
                "stats": file.stats,
            }
        }
        for file in stager.finish()
    )
    (table / "_delta_log").mkdir()
    lines = (json.dumps(action, ensure_ascii=False) for action in actions)
    (table / "_delta_log" / f"{0:020}.json").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {name: tmp_path_factory.mktemp(name) for name in VALUES}
    for name, (kind, values) in VALUES.items():
        make_table(made[name], kind, values)
    return made


def expected(name: str) -> dict[int, Any]:
    return dict(enumerate(VALUES[name][1]))


@pytest.mark.parametrize("name", VALUES)
def test_delta_rs_reads_the_value(tables: dict[str, Path], name: str) -> None:
    table = DeltaTable(str(tables[name]))
    rows = pa.table(QueryBuilder().register("t", table).execute("SELECT id, value FROM t").read_all()).to_pylist()
    assert {row["id"]: row["value"] for row in rows} == expected(name)


# deltalake 1.6.6 spells a negative decimal wrongly for its dataset, and raises.
@pytest.mark.parametrize("name", [name for name in VALUES if name != "money"])
def test_a_dataset_reads_the_value(tables: dict[str, Path], name: str) -> None:
    rows = DeltaTable(str(tables[name])).to_pyarrow_table().to_pylist()
    assert {row["id"]: row["value"] for row in rows} == expected(name)


@pytest.mark.parametrize("name", VALUES)
def test_polars_reads_the_value(tables: dict[str, Path], name: str) -> None:
    rows = pl.scan_delta(str(tables[name])).collect().to_dicts()
    assert {row["id"]: row["value"] for row in rows} == expected(name)


@pytest.mark.parametrize("name", VALUES)
def test_spark_reads_the_value_in_any_zone(spark: Any, tables: dict[str, Path], name: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    what = "unix_micros(value)" if name == "at" else "value"
    rows = session.sql(f"SELECT id, {what} AS value FROM delta.`{tables[name]}`").collect()
    found = {row["id"]: row["value"] for row in rows}
    if name == "at":
        found = {key: None if value is None else _instant(value) for key, value in found.items()}
    assert found == expected(name)


def _instant(micros: int) -> datetime:
    seconds, rest = divmod(micros, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_compaction_by_spark_leaves_partitions_that_are_known_again(spark: Any, tmp_path: Path, zone: str) -> None:
    names = ("at", "real", "small", "money", "day", "flag")
    schema = pa.schema([("id", pa.int64()), *((name, VALUES[name][0]) for name in names)])
    table = Table.get_or_create(tmp_path / "t", schema, names)
    rows = [{"id": at, **{name: VALUES[name][1][at % 2] for name in names}} for at in range(2)]
    for _ in range(2):
        table.bulk_insert(rows)
    store, key = Store(table.path), PartitionKeys.of(schema, names)
    before = {key(file.partition) for file in active_files(store, table.resolve()).values()}
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    session.sql(f"OPTIMIZE delta.`{table.path}`").collect()
    stands = list(active_files(store, table.resolve()).values())
    assert len(stands) == 2
    assert {key(file.partition) for file in stands} == before
    assert sorted(row["id"] for row in table.query().records()) == [0, 0, 1, 1]
    table.bulk_insert(rows)
    assert (done := table.optimize()).partitions == 2, done
