"""Statistics let readers leave files out; no predicate may lose a row by that, in Spark or in delta-rs's engine."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace.delta.schema import to_delta
from headrace.delta.staged_file import StagedFile
from headrace.spec.types import TIMESTAMP
from headrace.stage.layout import FileLayout
from headrace.stage.stager import Stager
from headrace.storage.store import Store

FILES = 12
ROWS = 8
PREDICATES = 200

MONEY = pa.decimal128(38, 10)
INNER = pa.struct([("text", pa.string()), ("at", TIMESTAMP), ("real", pa.float64()), ("money", MONEY)])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("real", pa.float64()),
        ("small", pa.float32()),
        ("money", MONEY),
        ("price", pa.decimal128(9, 2)),
        ("at", TIMESTAMP),
        ("day", pa.date32()),
        ("byte", pa.int8()),
        ("long", pa.int64()),
        ("flag", pa.bool_()),
        ("bin", pa.binary()),
        ("inner", pa.struct([("n", pa.int32()), ("deep", INNER)])),
        ("list", pa.list_(pa.field("element", pa.int32()))),
        ("map", pa.map_(pa.string(), pa.int32())),
    ]
)
LETTERS = ["a", "z", "é", "\u07ff", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010fffe", "\U0010ffff"]
STEMS = ["", "a" * 31, "a" * 30 + "😀", "é" * 32, "\U0010ffff" * 32, "a" * 32]
REALS = [0.0, -0.0, 1.5, -1.5, 0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan]
LONGS = [-(2**63), 2**63 - 1, 2**53 + 1, -1, 0, 1, 7]


class Maker:
    """Random rows; those of one file lie close together, so that files differ and bounds matter."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next_file()

    def next_file(self) -> None:
        self.nulls = self.rng.choice([0.0, 0.0, 0.2, 1.0])
        self.reals = self.rng.choice([[1.0, 2.0], [0.0], [-0.0], self.rng.sample(REALS, 3)])
        self.start = datetime(1, 1, 1, tzinfo=UTC) + timedelta(seconds=self.rng.randrange(315_537_897_000))
        self.cents = self.rng.randrange(-(10**37), 10**37)
        self.stem = self.rng.choice(STEMS)
        self.flags = self.rng.choice([[True], [False], [True, False]])

    def text(self) -> str:
        return (self.stem + "".join(self.rng.choices(LETTERS, k=self.rng.randrange(6))))[:40]

    def at(self) -> datetime:
        return self.start + timedelta(microseconds=self.rng.randrange(3000))

    def money(self) -> Decimal:
        return Decimal(f"{self.cents + self.rng.randrange(-3, 4)}E-10")

    def maybe(self, value: Any) -> Any:
        return None if self.rng.random() < self.nulls else value

    def filled(self, values: dict[str, Any]) -> dict[str, Any]:
        return {name: self.maybe(value) for name, value in values.items()}

    def row(self) -> dict[str, Any]:
        rng = self.rng
        deep = {"text": self.text(), "at": self.at(), "real": rng.choice(self.reals), "money": self.money()}
        inner = {"n": rng.randrange(9), "deep": self.filled(deep)}
        values = {
            "text": self.text(),
            "real": rng.choice(self.reals),
            "small": rng.choice([0.1, 16777217.0, *self.reals]),
            "money": self.money(),
            "price": Decimal(rng.randrange(-99999, 99999)) / 100,
            "at": self.at(),
            "day": self.start.date() + timedelta(rng.randrange(-1, 1)) if self.start.year > 1 else date(1, 1, 1),
            "byte": rng.randrange(-128, 128),
            "long": rng.choice(LONGS),
            "flag": rng.choice(self.flags),
            "bin": rng.randbytes(3),
            "inner": self.filled(inner),
            "list": [1, self.maybe(2)],
            "map": [("k", self.maybe(1))],
        }
        return self.filled(values)

    def file(self, number: int) -> pa.Table:
        self.next_file()
        rows = [{"id": number * ROWS + place, **self.row()} for place in range(ROWS)]
        return pa.Table.from_pylist(rows, SCHEMA)


def stage_each(table: Path, pieces: list[pa.Table]) -> list[StagedFile]:
    files: list[StagedFile] = []
    for number, piece in enumerate(pieces):
        stager = Stager(Store, f"1-{number}")
        stager.add(FileLayout(str(table), piece.schema), piece)
        files.extend(stager.finish())
    return files


def commit(table: Path, schema: pa.Schema, files: list[StagedFile], *, statistics: bool = True) -> None:
    """Version 0 of a table over these files."""
    metadata = {
        "id": "t",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": to_delta(schema),
        "partitionColumns": [],
        "configuration": {},
        "createdTime": 0,
    }
    actions: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": metadata},
    ]
    for file in files:
        add = {"path": file.path, "partitionValues": {}, "size": file.size, "modificationTime": 0, "dataChange": True}
        actions.append({"add": {**add, "stats": file.stats} if statistics else add})
    log = table / "_delta_log"
    log.mkdir()
    # Not escaped: delta-rs 1.6.6 joins the escapes of U+20000 and beyond to another character.
    lines = (json.dumps(action, ensure_ascii=False) for action in actions)
    (log / f"{0:020}.json").write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def pieces() -> list[pa.Table]:
    maker = Maker(random.Random(20240229))
    return [maker.file(number) for number in range(FILES)]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory, pieces: list[pa.Table]) -> tuple[Path, Path]:
    """One table with statistics, and one with the same files and none."""
    full, bare = tmp_path_factory.mktemp("full"), tmp_path_factory.mktemp("bare")
    files = stage_each(full, pieces)
    commit(full, SCHEMA, files)
    shutil.copytree(full, bare, ignore=shutil.ignore_patterns("_delta_log"), dirs_exist_ok=True)
    commit(bare, SCHEMA, files, statistics=False)
    return full, bare


def spark_instant(at: datetime) -> str:
    return f"TIMESTAMP '{at.isoformat(' ', 'microseconds')}'"


def rust_instant(at: datetime) -> str:
    return f"arrow_cast('{at.isoformat('T', 'microseconds')}', 'Timestamp(Microsecond, Some(\"UTC\"))')"


Instant = Callable[[datetime], str]


def literal(value: Any, kind: pa.DataType, instant: Instant) -> str:
    if isinstance(value, datetime):
        return instant(value)
    if isinstance(value, date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, float):
        return f"CAST('{repr(value).replace('inf', 'Infinity')}' AS {'DOUBLE' if kind == pa.float64() else 'FLOAT'})"
    if isinstance(value, Decimal):
        return f"CAST('{value:f}' AS DECIMAL({kind.precision},{kind.scale}))"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"CAST('{value}' AS BIGINT)"
    return f"'{value}'" if isinstance(value, str) else str(value)


COLUMNS = {
    **{f"{name}": SCHEMA.field(name).type for name in SCHEMA.names if name not in ("inner", "list", "map", "bin")},
    "inner['n']": pa.int32(),
    **{f"inner['deep']['{item.name}']": item.type for item in INNER},
}
NULLABLE = [*COLUMNS, "list", "map", "bin", "inner", "inner['deep']"]


def values_of(rows: pa.Table, column: str) -> list[Any]:
    path = column.replace("']", "").split("['")
    found = rows.column(path[0]).to_pylist()
    for name in path[1:]:
        found = [None if value is None else value[name] for value in found]
    return [value for value in found if value is not None]


def predicates(rows: pa.Table, instant: Instant) -> list[str]:
    """The same ones for every engine: literals are values that occur, so bounds are met exactly."""
    rng = random.Random(7)
    known = {column: values_of(rows, column) for column in COLUMNS}
    return [predicate(rng, known, instant) for _ in range(PREDICATES)]


def predicate(rng: random.Random, known: dict[str, list[Any]], instant: Instant, depth: int = 0) -> str:
    if depth == 0 and rng.random() < 0.25:
        one, two = (predicate(rng, known, instant, 1) for _ in range(2))
        return rng.choice([f"({one}) AND ({two})", f"({one}) OR ({two})", f"NOT ({one})"])
    if rng.random() < 0.15:
        return f"{rng.choice(NULLABLE)} IS {rng.choice(['', 'NOT '])}NULL"
    column = rng.choice([*COLUMNS])
    one, two = (literal(rng.choice(known[column]), COLUMNS[column], instant) for _ in range(2))
    text = rng.choice(known["text"])[: rng.randrange(1, 40)]
    if COLUMNS[column] == pa.string() and rng.random() < 0.3:
        return f"{column} LIKE '{text}%'"
    if COLUMNS[column] == pa.bool_():
        return f"{column} = {one}"
    compared = [f"{column} {sign} {one}" for sign in ("=", "<", "<=", ">", ">=", "<>")]
    return rng.choice([*compared, f"{column} IN ({one}, {two})", f"{column} BETWEEN {one} AND {two}"])


def filtered(asked: list[str]) -> str:
    """Many scans in one query: each leaves out files by its own predicate."""
    selects = (f"SELECT {place} AS place, id FROM {{table}} WHERE {text}" for place, text in enumerate(asked))
    return " UNION ALL ".join(selects)


def projected(asked: list[str]) -> str:
    """The same predicates as plain columns: nothing can be left out by them, not even a row group."""
    return f"SELECT id, {', '.join(f'({text}) AS p{place}' for place, text in enumerate(asked))} FROM {{table}}"


Rows = list[dict[str, Any]]


def found_by(asked: list[str], rows: Rows) -> dict[str, list[int]]:
    return {text: sorted(row["id"] for row in rows if row["place"] == place) for place, text in enumerate(asked)}


def true_for(asked: list[str], rows: Rows) -> dict[str, list[int]]:
    return {text: sorted(row["id"] for row in rows if row[f"p{place}"]) for place, text in enumerate(asked)}


def assert_nothing_hidden(asked: list[str], ask: Callable[[str, Path], Rows], tables: tuple[Path, Path]) -> None:
    full, bare = tables

    def compare(some: list[str]) -> None:
        assert found_by(some, ask(filtered(some), full)) == true_for(some, ask(projected(some), bare))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compare, (asked[start : start + 20] for start in range(0, len(asked), 20))))


def ask_spark(session: Any) -> Callable[[str, Path], Rows]:
    return lambda query, table: [
        row.asDict() for row in session.sql(query.replace("{table}", f"delta.`{table}`")).collect()
    ]


def ask_delta_rs(query: str, table: Path) -> Rows:
    engine = QueryBuilder().register("t", DeltaTable(str(table)))
    return list(pa.table(engine.execute(query.replace("{table}", "t")).read_all()).to_pylist())


def test_spark_finds_every_row(spark: Any, tables: tuple[Path, Path], pieces: list[pa.Table]) -> None:
    asked = predicates(pa.concat_tables(pieces), spark_instant)
    assert_nothing_hidden(asked, ask_spark(spark), tables)


def test_delta_rs_finds_every_row(tables: tuple[Path, Path], pieces: list[pa.Table]) -> None:
    assert_nothing_hidden(predicates(pa.concat_tables(pieces), rust_instant), ask_delta_rs, tables)


def test_nan_and_both_zeros_are_found(spark: Any, tmp_path: Path) -> None:
    files = [[1.0, math.nan], [-0.0, -1.5], [0.0, 1.5]]
    groups = [pa.table({"id": [2 * n, 2 * n + 1], "x": values}) for n, values in enumerate(files)]
    commit(tmp_path, groups[0].schema, stage_each(tmp_path, groups))
    wanted = {"x > CAST(5 AS DOUBLE)": [1], "x = CAST('-0.0' AS DOUBLE)": [2, 4], "x = CAST('0.0' AS DOUBLE)": [2, 4]}
    for ask in (ask_spark(spark), ask_delta_rs):
        assert found_by([*wanted], ask(filtered([*wanted]), tmp_path)) == wanted


def scanned_files(spark: Any, table: Path, text: str) -> int:
    found = spark.sql(f"SELECT id FROM delta.`{table}` WHERE {text}")
    found.collect()
    leaves = found._jdf.queryExecution().executedPlan().collectLeaves()
    return int(leaves.apply(0).metrics().apply("numFiles").value())


def test_spark_does_leave_files_out(spark: Any, tables: tuple[Path, Path], pieces: list[pa.Table]) -> None:
    for column in ("text", "at", "money", "inner['deep']['at']"):
        values = [value for piece in pieces for value in values_of(piece, column)[:1]]
        text = f"{column} = {literal(values[0], COLUMNS[column], spark_instant)}"
        assert scanned_files(spark, tables[0], text) < FILES, text


def test_spark_counts_and_bounds_are_those_of_the_rows(spark: Any, tables: tuple[Path, Path]) -> None:
    # Delta answers some of these from statistics alone.
    for column in ("*", "id", "byte", "long", "day", "real", "small", "price"):
        what = "count(*)" if column == "*" else f"min({column}), max({column}), count({column})"
        full, bare = (str(spark.sql(f"SELECT {what} FROM delta.`{table}`").collect()) for table in tables)
        assert full == bare, column
