"""Tables with constraints, generated columns and defaults, made by Spark's own DDL."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.delta.snapshot import load_state
from headrace.faults import Point, armed
from headrace.pipeline.pipeline import Pipeline
from headrace.source.base import SOURCES
from headrace.storage.store import Store
from headrace.transform.sql.constraints import constraints_of, violations
from services.in_process_pipeline import Harness, InProcess, Served
from services.plans import envelopes, spec_of

COLUMNS = (
    "id BIGINT, tiny TINYINT, f FLOAT, d DOUBLE, x DECIMAL(10,2), s STRING, b BOOLEAN, ts TIMESTAMP, "
    "l TIMESTAMP_NTZ, day DATE, who STRUCT<City: STRING, n: INT>"
)
CONDITIONS = [
    "id > 0",
    "id + 1 <> -id",
    "tiny + 100 > 127",
    "tiny * 2 = -2",
    "id % 3 = -1",
    "f = 0.1",
    "f >= 0.1",
    "d > 0.1 AND d < 1e300",
    "d = d",
    "d = -0.0",
    "x > 0 AND x <= 12.345",
    "coalesce(x, 0) = 0",
    "x BETWEEN -1 AND 12.34",
    "x NOT BETWEEN -1 AND id",
    "s IN ('a', \"b\", '')",
    "s NOT IN ('a', NULL)",
    "s LIKE 'a%' OR s LIKE '_'",
    "s NOT LIKE '%b'",
    "length(trim(s)) > 1",
    "s > 'a'",
    "s = '😀'",
    "char_length(s) = 1",
    "b",
    "NOT b",
    "b IS NULL OR b",
    "b = true AND NOT (s IS NULL)",
    "b <=> NULL",
    "id <=> tiny",
    "CASE WHEN b THEN id > 0 WHEN s = 'a' THEN true END",
    "ts >= '2024-01-01'",
    "ts < timestamp '2024-02-29 12:00:00.5'",
    "ts > '2024-02-29T12:00:00+02:00'",
    "l >= '2024-02-29 12:00:00'",
    "day = DATE '2024-02-29'",
    "day > '2023-12-31' AND CAST(ts AS DATE) = day",
    "year(ts) = 2024 AND month(day) = 2 AND dayofmonth(day) = 29",
    "who.city <> '' AND who.N > 1",
    "isnotnull(who.n) OR nvl(tiny, 0) = 0",
    "true",
]
VALUES: dict[str, list[Any]] = {
    "id": [1, 0, -1, 5, None, 9007199254740993],
    "tiny": [1, -1, 27, 28, None],
    "f": [float(np.float32(0.1)), 0.0, None, math.nan],
    "d": [0.1, math.nan, -0.0, math.inf, None],
    "x": [Decimal("12.34"), Decimal("0.00"), Decimal("-1.01"), None],
    "s": ["a", "b", "", " a ", "ab", "😀", None, "a\nb"],
    "b": [True, False, None],
    "ts": [datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(2024, 2, 29, 9, 59, 59, 999999, UTC), None],
    "l": [datetime(2024, 2, 29, 12), None],
    "day": [date(2024, 2, 29), date(1970, 1, 1), None],
    "who": [{"City": "Faro", "n": 2}, {"City": None, "n": None}, None],
}


def _rows(count: int) -> list[dict[str, Any]]:
    """Rows in which every value stands beside many others."""
    steps = product(range(7), repeat=2)
    return [
        {name: values[(nth * (at + 1) + turn + at) % len(values)] for at, (name, values) in enumerate(VALUES.items())}
        for nth, (turn, _) in islice(enumerate(steps), count)
    ]


def test_conditions_mean_here_what_they_mean_to_spark(spark: Any, tmp_path: Path) -> None:
    properties = ", ".join(f"'delta.constraints.c{at:02}' = {_quoted(text)}" for at, text in enumerate(CONDITIONS))
    spark.sql(f"CREATE TABLE delta.`{tmp_path}` ({COLUMNS}) USING delta TBLPROPERTIES ({properties})")
    state = load_state(Store(str(tmp_path)))
    assert state is not None
    table = pa.Table.from_pylist(_rows(49), state.schema)
    frame = spark.createDataFrame([tuple(row[name] for name in VALUES) for row in _rows(49)], COLUMNS)
    frame.createOrReplaceTempView("conditioned")
    told = spark.sql(f"SELECT {', '.join(f'({text}) AS c{at}' for at, text in enumerate(CONDITIONS))} FROM conditioned")
    answers = [[value is not True for value in row] for row in told.collect()]
    found = violations(constraints_of("t", state, spec_of().table), table, envelopes([{}] * len(table)))
    for at, (text, rows) in enumerate(found):
        assert rows.tolist() == [nth for nth, row in enumerate(answers) if row[at]], text


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


DDL = """
    (id BIGINT NOT NULL, amount DECIMAL(10,2), at TIMESTAMP, state STRING DEFAULT 'new', code VARCHAR(3),
     day DATE GENERATED ALWAYS AS (CAST(at AS DATE)))
    USING delta PARTITIONED BY (day)
    TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported',
                   'delta.constraints.paid' = 'amount >= 0 AND id > 0',
                   'delta.constraints.recent' = 'day >= \\'2020-01-01\\'')
"""
AT = "2024-02-29T23:30:00Z"
GOOD = [{"id": 1, "amount": 1.5, "at": AT}, {"id": 2, "amount": 0, "at": AT, "state": None, "day": "1999-01-01"}]
BAD = [
    {"id": 3, "amount": -0.01, "at": AT},
    {"id": 4, "at": AT},
    {"id": -5, "amount": 1, "at": AT},
    {"id": 6, "amount": 1, "at": "2019-12-31T23:59:59Z"},
    {"id": 7, "amount": 1, "at": AT, "code": "four"},
]


def _read(spark: Any, path: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.format("delta").load(str(path)).collect()
    return sorted((row.id, row.amount, row.state, str(row.day)) for row in rows)


def test_rows_that_violate_a_constraint_are_dead_letters_and_the_others_are_written(spark: Any, tmp_path: Path) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/lake/t` {DDL}")
    harness = Harness(
        tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/t"}}, spark=lambda: spark
    )
    harness.feed([*GOOD, *BAD])
    written = [(1, Decimal("1.50"), "new", "2024-02-29"), (2, Decimal("0.00"), None, "2024-02-29")]
    assert _read(spark, tmp_path / "lake/t") == written
    assert [(row["offset"], row["reason"], row["step"]) for row in harness.dead()] == [
        (offset, "constraint", "stage") for offset in range(2, 7)
    ]
    assert harness.dead()[0]["detail"] == "paid: amount >= 0 AND id > 0"
    harness.feed([{"id": 8, "amount": 2, "at": AT}])
    assert len(_read(spark, tmp_path / "lake/t")) == 3


def test_changes_that_violate_a_constraint_are_dead_letters_and_the_others_are_merged(
    spark: Any, tmp_path: Path
) -> None:
    spark.sql(f"CREATE TABLE delta.`{tmp_path}/lake/t` {DDL}")
    merge = {"keys": ["id"], "sequence_by": "at", "delete_when": "state = 'gone'"}
    table = {"path": f"{tmp_path}/lake/t", "mode": "upsert", "merge": merge}
    harness = Harness(tmp_path, {"route": {"by": "fixed"}, "table": table}, spark=lambda: spark)
    harness.feed([*GOOD, *BAD])
    later = "2024-03-01T00:00:00Z"
    harness.feed([{"id": 1, "amount": 7, "at": later}, {"id": 2, "at": later, "state": "gone"}])
    assert _read(spark, tmp_path / "lake/t") == [(1, Decimal("7.00"), "new", "2024-03-01")]
    assert {row["reason"] for row in harness.dead()} == {"constraint"}
    assert len(harness.dead()) == len(BAD)


def test_a_constraint_that_appears_while_a_batch_is_planned_makes_dead_letters(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"delta.`{tmp_path}/lake/t`"
    spark.sql(f"CREATE TABLE {table} (id BIGINT) USING delta TBLPROPERTIES ('delta.constraints.small' = 'id < 1000')")
    harness = Harness(
        tmp_path, {"route": {"by": "fixed"}, "table": {"path": f"{tmp_path}/lake/t"}}, spark=lambda: spark
    )
    monkeypatch.setitem(SOURCES, "kafka", lambda spec: Served(harness))
    monkeypatch.setattr(Pipeline, "stage", InProcess.stage)
    added = f"ALTER TABLE {table} ADD CONSTRAINT positive CHECK (id > 0)"
    with armed(Point.AFTER_STAGING, lambda: spark.sql(added), batch=1):
        harness.feed([{"id": 1}, {"id": -1}])
    assert [row.id for row in spark.read.format("delta").load(f"{tmp_path}/lake/t").collect()] == [1]
    assert [(row["offset"], row["detail"]) for row in harness.dead()] == [(1, "positive: id > 0")]
