"""SQL over tables: aggregates and joins, one SELECT, and nothing else within reach."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace import Table
from headrace.errors import TableDamaged, TableNotFound, UsageError
from headrace.storage.store import Store
from headrace.table.sql import select_tables
from services.vectors import vectored


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two tables."""
    monkeypatch.chdir(tmp_path)
    orders = {"id": [1, 2, 3], "country": ["DE", "DE", "FR"], "amount": [Decimal("1.50"), Decimal("2.25"), None]}
    write_deltalake("lake/orders", pa.table(orders), partition_by=["country"])
    write_deltalake("lake/my visits", pa.table({"id": [1, 1, 9]}))
    return tmp_path


def rows(query: str, **names: str) -> list[dict[str, Any]]:
    answer = select_tables(query, Table, names)
    return pa.Table.from_batches(answer.batches, answer.schema).to_pylist()


def test_aggregates(lake: Path):
    assert rows("SELECT country, sum(amount) AS total, count(*) AS n FROM 'lake/orders' GROUP BY ALL ORDER BY 1") == [
        {"country": "DE", "total": Decimal("3.75"), "n": 2},
        {"country": "FR", "total": None, "n": 1},
    ]


def test_joins_common_table_expressions_and_a_table_named_twice(lake: Path):
    assert rows("SELECT count(*) AS n FROM 'lake/orders' JOIN 'lake/my visits' USING (id)") == [{"n": 2}]
    assert rows('WITH x AS (SELECT * FROM "lake/orders") SELECT a.id, b.id FROM x a, x b ORDER BY ALL LIMIT 1') == [
        {"id": 1, "id_1": 1}
    ]
    assert rows(
        "SELECT (SELECT max(id) FROM orders) AS m, id FROM ORDERS o WHERE id IN (FROM visits)",
        **{"orders": str(lake / "lake/orders"), "Visits": "lake/my visits"},
    ) == [{"m": 3, "id": 1}]
    assert rows("SELECT sum(range) AS s FROM range(4)") == [{"s": 6}]


def test_a_table_with_deletion_vectors_named_twice(tmp_path: Path):
    write_deltalake(tmp_path / "t", pa.table({"id": list(range(10))}))
    vectored(Store(str(tmp_path / "t")), [2, 5])
    path = tmp_path / "t"
    assert rows(f"SELECT count(*) AS n FROM '{path}' a JOIN '{path}' b USING (id)") == [{"n": 8}]


def test_softly_deleted_rows_are_left_out(lake: Path):
    Table("lake/my visits").delete("id = 9", hard=False)
    assert rows("SELECT count(*) AS n FROM 'lake/my visits'") == [{"n": 2}]


@pytest.mark.parametrize(
    ("query", "error", "said"),
    [
        ("DROP TABLE x", UsageError, "only SELECT statements"),
        ("COPY (SELECT 1) TO 'x.csv'", UsageError, "only SELECT statements"),
        ("ATTACH 'x.db'", UsageError, "only SELECT statements"),
        ("INSTALL delta", UsageError, "only SELECT statements"),
        ("SET lock_configuration = false", UsageError, "only SELECT statements"),
        ("SELECT 1; SELECT 2", UsageError, "2 statements"),
        ("SELEC 1", UsageError, 'syntax error at or near "SELEC"'),
        ("", UsageError, "0 statements"),
        ("SELECT * FROM read_csv('FILE')", UsageError, r"read_csv\(…\)"),
        ("SELECT * FROM read_text('FILE')", UsageError, r"read_text\(…\)"),
        ("SELECT (SELECT content FROM read_text('FILE'))", UsageError, r"read_text\(…\)"),
        ("WITH x AS (FROM glob('*')) SELECT * FROM x", UsageError, r"glob\(…\)"),
        ("SELECT * FROM query('SELECT 1')", UsageError, r"query\(…\)"),
        ("SELECT * FROM duckdb_settings()", UsageError, r"duckdb_settings\(…\)"),
        ("SELECT * FROM information_schema.tables", UsageError, "have no schema"),
        ("SELECT * FROM 'FILE'", TableNotFound, "No Delta table"),
        ("SELECT * FROM orders", TableNotFound, "--table orders=PATH"),
        ("SELECT nope FROM 'lake/orders'", UsageError, '"nope" not found'),
        ("SELECT CAST(country AS INT) FROM 'lake/orders'", UsageError, "Could not convert"),
    ],
)
def test_what_a_query_may_not(lake: Path, query: str, error: type[Exception], said: str):
    secret = lake / "secret.csv"
    secret.write_text("word\ntop secret\n")
    with pytest.raises(error, match=said) as refused:
        rows(query.replace("FILE", str(secret)))
    assert type(refused.value) is error
    assert "top secret" not in str(refused.value)
    assert {path.name for path in lake.iterdir()} == {"lake", "secret.csv"}


def test_a_file_that_is_gone_is_said_to_be(lake: Path):
    for file in (lake / "lake" / "my visits").glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableDamaged, match="repair PATH --dry-run"):
        rows("SELECT count(id) FROM 'lake/my visits'")
