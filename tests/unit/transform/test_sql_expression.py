"""What an expression may be: the allow-list holds against DuckDB's own catalogue and against hostile texts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.engine import duck
from headrace.errors import UsageError
from headrace.transform.sql import allow_list
from headrace.transform.sql.expression import ROW, bind_parameters, check_sql, columns_in
from headrace.transform.sql.parser import DEEPEST, LONGEST, parse_sql, write

COLUMNS = ("a", "b", "l", "j", "status")

# (text, a word of the finding)
HOSTILE = [
    ("", "empty"),
    (" \n\t", "empty"),
    ("a; DROP TABLE x", "statement"),
    ("1; SET threads = 64", "statement"),
    ("1; COPY (SELECT 1) TO '/tmp/out'", "statement"),
    ("a;", "not an SQL expression"),
    ("a) FROM x WHERE (1 = 1", "not an SQL expression"),
    ("a) + (b", "not an SQL expression"),
    ("1 FROM x", "query"),
    ("a UNION SELECT 1", "query"),
    ("a ORDER BY 1", "query"),
    ("a LIMIT 1", "query"),
    ("a WINDOW w AS ()", "not an SQL expression"),
    ("DISTINCT a", "query"),
    ("a, b", "more than one"),
    ("a AS b", "name"),
    ("(SELECT 1)", "subquery"),
    ("EXISTS (SELECT 1)", "subquery"),
    ("a IN (SELECT 1)", "subquery"),
    ("a = ANY(l)", "subquery"),
    ("(FROM duckdb_settings())", "subquery"),
    ("count(*)", "aggregate"),
    ("sum(a)", "aggregate"),
    ("sum(a) FILTER (WHERE a > 1)", "not allowed"),
    ("row_number() OVER ()", "window"),
    ("*", "star"),
    ("COLUMNS('.*')", "star"),
    ("$1", "parameter"),
    ("?", "parameter"),
    ("#1", "positional"),
    ("random()", "not deterministic"),
    ("uuid()", "not deterministic"),
    ("setseed(0.5)", "setseed"),
    ("nextval('s')", "nextval"),
    ("getenv('HOME')", "getenv"),
    ("current_setting('threads')", "current_setting"),
    ("getvariable('x')", "getvariable"),
    ("read_text('/etc/passwd')", "read_text"),
    ("pg_sleep(100)", "pg_sleep"),
    ("sleep_ms(100000)", "sleep_ms"),
    ("write_log('x')", "write_log"),
    ("duckdb_settings()", "duckdb_settings"),
    ("json_serialize_sql('SELECT 1')", "json_serialize_sql"),
    ("repeat('x', 1000000000)", "unbounded"),
    ("range(1000000000)", "unbounded"),
    ("format('{:1000000000}', 1)", "unbounded"),
    ("lpad(a, 1000000000, 'x')", "length"),
    ("rpad(a, b, 'x')", "length"),
    ("replace(a, 'x', a)", "literal"),
    ("replace(a, 'x', '" + "x" * 200 + "')", "longer"),
    ("replace(replace(a, 'x', '" + "x" * 20 + "'), 'x', '" + "x" * 20 + "')", "longer"),
    ("array_to_string(l, a)", "literal"),
    ("unnest(l)", "explode"),
    ("error('x')", "error"),
    ("age(a)", "clock"),
    ("system.main.upper(a)", "qualified"),
    ("a.upper()", "qualified"),
    ("a::regclass", "regclass"),
    ("a::main.integer", "integer"),
    ("a::ENUM('x')", "enum"),
    ("a COLLATE nocase", "collation"),
    ("DEFAULT", "DEFAULT"),
    ("grouping(a)", "GROUPING"),
    ("list_transform(l, x -> x + 1)", "lambda x"),
    (f"list_transform(l, lambda {ROW}: {ROW})", ROW),
    ("[[[z FOR z IN y] FOR y IN x] FOR x IN l]", "lambdas"),
    ("j -> 'a' ->> 'b'", "parentheses"),
    ("'a\0b'", "NUL"),
    (r"e'a\x00b'", "Null character"),
    ("'\ud800'", "cannot parse"),
    ("(" * 3000 + "a" + ")" * 3000, "deeper"),
    ("upper(" * 200 + "a" + ")" * 200, "deeper"),
    ("- " * 4000 + "a", "deeper"),
    ("+".join(["a"] * 500), "deeper"),
    ("a" * (LONGEST + 1), "longer"),
    ("--", "not an SQL expression"),
    ("a /*", "not an SQL expression"),
    ("'unclosed", "not an SQL expression"),
    ("current_user", "unknown column 'current_user'"),
    ("statsu", "did you mean 'status'"),
    ("uper(a)", "did you mean 'upper'"),
]


@pytest.mark.parametrize(("text", "word"), HOSTILE, ids=[repr(text[:40]) for text, _ in HOSTILE])
def test_hostile_texts_are_refused_in_plain_words(text: str, word: str) -> None:
    findings = check_sql(text, COLUMNS)
    assert findings
    assert any(word in finding for finding in findings), findings


GOOD = [
    "a",
    "a + 1 -- why",
    "/* x */ a",
    "CASE WHEN a > 1 THEN 'x' ELSE b END",
    "coalesce(a, b, 'none')",
    "a BETWEEN 1 AND 2 AND b NOT IN ('x', 'y') OR a IS NULL",
    "a::decimal(10,2)",
    "TRY_CAST(a AS timestamptz)",
    "TRY(a::int)",
    "b LIKE 'x%' OR b ILIKE 'Y_' OR b ~ '[0-9]+' OR b SIMILAR TO 'z+'",
    "l[1] + l[-1]",
    "l[2:3]",
    "list_transform(l, lambda x: x + a)",
    "[x * 2 FOR x IN l IF x > a]",
    "(j -> 'a') ->> 'b'",
    "j ->> '$.a.b'",
    "{'x': a, 'y': [b]}",
    "MAP {'k': a}",
    "_headers['trace']",
    "decode(_key)",
    "strftime(_timestamp, '%Y-%m-%d')",
    "now() - INTERVAL 3 DAYS",
    "current_date",
    "extract(year FROM _timestamp)",
    "_timestamp AT TIME ZONE 'Europe/Berlin'",
    "date '2024-01-01'",
    "md5(b) || sha256(b)",
    "regexp_replace(b, '[^a-z]', '_', 'g')",
    "replace(replace(replace(b, '&', '&amp;'), '<', '&lt;'), '>', '&gt;')",
    "lpad(b, 10, '0')",
    "position('x' IN b)",
    "trim(BOTH 'x' FROM b)",
    "STATUS < 600",
    "j.deep.er",
]


@pytest.mark.parametrize("text", GOOD)
def test_what_people_write_passes(text: str) -> None:
    assert check_sql(text, COLUMNS) == ()


def test_without_columns_any_name_may_be_one() -> None:
    assert check_sql("upper(anything)") == ()


def test_columns_are_the_names_read() -> None:
    assert columns_in("a.b + list_sum(list_transform(l, lambda x: x + c)) + _offset") == {"a", "l", "c", "_offset"}
    assert columns_in("now() > current_timestamp AND today() = current_date") == frozenset()


def test_names_are_bound_and_the_clock_is_given() -> None:
    sql = bind_parameters("A.x + now() + list_transform(l, lambda y: y + gone)", {"A": "p0", "l": "p1"}.get, "clock")
    assert sql == f"(({ROW}.p0.x + {ROW}.clock) + list_transform({ROW}.p1, (lambda y: NULL)))"


def test_a_lambda_hides_a_column_of_its_name() -> None:
    assert bind_parameters("list_transform(l, lambda a: a + b)", str.upper, "clock") == (
        f"list_transform({ROW}.L, (lambda a: (a + {ROW}.B)))"
    )


def test_bound_refuses_what_check_refuses() -> None:
    with pytest.raises(UsageError, match="subquery"):
        bind_parameters("(SELECT 1)", str, "clock")


def test_depth_just_below_the_limit_passes() -> None:
    assert check_sql("+".join(["a"] * (DEEPEST - 1))) == ()


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40))
def test_a_quoted_name_is_read_back_as_itself(name: str) -> None:
    assert columns_in(duck.quote(name) + "." + duck.quote(name)) == {name}
    assert parse_sql(write(parse_sql(duck.quote(name))))["column_names"] == [name]


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_a_quoted_text_is_data(text: str) -> None:
    assert check_sql(duck.literal(text)) == ()
    answer = duck.query(f"SELECT {bind_parameters(duck.literal(text), str, 'clock')} AS v")
    assert answer["v"].to_pylist() == [text]


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_raises(text: str) -> None:
    assert isinstance(check_sql(text, COLUMNS), tuple)


def _catalogue() -> dict[str, set[tuple[str, str | None]]]:
    rows = duck.query(
        "SELECT function_name AS n, function_type AS t, stability AS s FROM duckdb_functions()"
    ).to_pylist()
    found: dict[str, set[tuple[str, str | None]]] = {}
    for row in rows:
        found.setdefault(row["n"].lower(), set()).add((row["t"], row["s"]))
    return found


def test_every_allowed_function_exists_and_always_answers_the_same() -> None:
    catalogue = _catalogue()
    for name in allow_list.NAMES - set(allow_list.CLOCK):
        kinds = catalogue[name]
        assert kinds & {("scalar", "CONSISTENT"), ("macro", None)}, name
        assert not {stability for _, stability in kinds} & {"VOLATILE", "CONSISTENT_WITHIN_QUERY"}, name


def test_every_allowed_operator_and_type_exists() -> None:
    catalogue = _catalogue()
    assert [symbol for symbol in allow_list.SYMBOLS if symbol not in catalogue] == []
    types = duck.query("SELECT DISTINCT lower(type_name) AS n FROM duckdb_types()")["n"].to_pylist()
    assert [name for name in allow_list.TYPES if name not in types] == []


def test_the_documented_list_is_the_list_of_the_code() -> None:
    page = Path(__file__).parents[3] / "docs" / "reference" / "expressions.md"
    assert allow_list.allow_list_reference() in page.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("at", ["at"]),
        ("at + 1", ["at"]),
        ("lower(group) || 'order'", ["group"]),
        ("x IN (Order)", ["Order"]),
        ("order.x", ["order"]),
        ("a = end", ["end"]),
        ("at > 3 and order < 2", ["at", "order"]),
        ("é = at AND at > 1", ["at"]),
    ],
)
def test_a_column_named_like_a_word_of_sql_is_told_how_to_be_quoted(text: str, words: list[str]):
    (found,) = check_sql(text)
    assert found.endswith("quote it: " + " and ".join(f'"{word}"' for word in words))
    for word in words:
        text = re.sub(rf"(?<!')\b{word}\b(?!')", f'"{word}"', text)
    assert check_sql(text) == ()


@pytest.mark.parametrize(
    "text", ["a +", "a at b", "lower(x", "SELECT 1", "x AND", "case when x then y", "a; b", "a) + (b"]
)
def test_what_quoting_does_not_fix_gets_no_such_advice(text: str):
    (found,) = check_sql(text)
    assert "quote" not in found
