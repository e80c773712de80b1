"""A bare number is no time: 1700000000 may be seconds or milliseconds, so nobody guesses."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ColumnMismatch, UsageError
from headrace.table import Table
from headrace.validate.load import examine_text
from services.plans import envelopes, letters, plan_of, rows

MILLIS = 1_700_000_000_000
MOMENT = datetime.fromtimestamp(MILLIS / 1000, UTC)
BIGINT = {"name": "ms", "type": "bigint"}


def found(**content: Any) -> list[str]:
    kafka = {"brokers": "localhost:9092", "plaintext": True, "topics": ["t"], **content.pop("kafka", {})}
    spec = {"pipeline": "p", "source": {"kafka": kafka}, "table": {"path": "./lake/t"}, **content}
    return [str(each) for each in examine_text(json.dumps(spec), Path("/lake"), "p.yaml")[1]]


@pytest.mark.parametrize("value", [1_700_000_000, MILLIS, 1_700_000_000.5, "1700000000", "-5"])
def test_the_start_of_a_topic(value: Any) -> None:
    [said] = found(kafka={"start": {"timestamp": value}})
    assert "source.kafka.start.timestamp" in said
    assert "RFC 3339 with a time zone, such as 2025-01-31T12:00:00Z; a plain number has no unit" in said


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_defaults_of_columns(kind: str) -> None:
    [said] = found(table={"path": "./t", "columns": [{"name": "at", "type": kind, "default": 1_700_000_000}]})
    assert "table.columns[0].default" in said
    wanted = {"date": "a date YYYY-MM-DD", "timestamp_ntz": "a date and time without zone"}
    assert wanted.get(kind, "declare the column's unit: s, ms, us or ns") in said


def test_a_default_with_its_unit_is_taken() -> None:
    column = {"name": "at", "type": "timestamp", "unit": "s", "default": 1_700_000_000}
    assert not found(table={"path": "./t", "columns": [column]})


@pytest.mark.parametrize(
    ("step", "wrong"),
    [
        ({"set": {"at": "ms"}}, True),
        ({"set": {"at": "1700000000"}}, True),
        ({"set": {"at": "make_timestamptz(ms * 1000)"}}, False),
        ({"jmespath": {"at": "ms"}}, True),
        ({"jmespath": {"at": "`1700000000`"}}, True),
        ({"jmespath": {"at": "now_epoch_seconds()"}}, True),
        ({"jmespath": {"at": "kafka.offset"}}, True),
        ({"jmespath": {"set": {"at": "ms"}, "on_null": "null"}}, True),
        ({"jmespath": {"at": "kafka.timestamp"}}, False),
        ({"jmespath": {"at": "epoch_millis_to_micro(ms)"}}, False),
        ({"jmespath": {"at": "epoch_millis_to_iso8601(ms)"}}, False),
        ({"jmespath": {"at": "unknown"}}, False),
    ],
)
def test_expressions_for_columns_of_times(step: dict[str, Any], wrong: bool) -> None:
    columns = [BIGINT, {"name": "at", "type": "timestamp"}]
    said = found(transform=[step], table={"path": "./t", "columns": columns})
    assert bool(said) == wrong
    if wrong:
        assert "transform[0]" in said[0]
        assert "'at' is timestamp" in said[0]


@pytest.mark.parametrize("kind", ["timestamp_ntz", "date"])
def test_expressions_for_times_that_have_no_unit(kind: str) -> None:
    columns = [BIGINT, {"name": "at", "type": kind}]
    [said] = found(transform=[{"jmespath": {"at": "ms"}}], table={"path": "./t", "columns": columns})
    assert f"column 'at' is {kind} without a unit" in said


@pytest.mark.parametrize(
    ("kind", "expression"),
    [("bigint", "'12'"), ("string", "ms"), ("boolean", "ms"), ("timestamp", "DATE '2026-01-01'")],
)
def test_a_step_makes_the_declared_type(kind: str, expression: str) -> None:
    """What the transform makes is never cast in silence: text is no number, a number no text."""
    columns = [BIGINT, {"name": "x", "type": kind}]
    [said] = found(transform=[{"set": {"x": expression}}], table={"path": "./t", "columns": columns})
    assert "transform[0].set.x" in said


def test_a_field_of_another_type_than_declared_stops_the_first_batch() -> None:
    """Nobody declared the field, so only its records tell."""
    columns = [{"name": "x", "type": "bigint"}]
    plan = plan_of(transform=[{"set": {"x": "other"}}], table={"columns": columns, "contract": {"new_field": "evolve"}})
    with pytest.raises(ColumnMismatch, match="column 'x' is declared as long, but the transform returns string"):
        plan.apply(envelopes([{"other": "12"}]))


def test_numbers_of_jmespath_become_times_by_their_unit_only() -> None:
    def applied(expression: str, **more: Any) -> tuple[list[Any], list[str]]:
        column = {"name": "at", "type": "timestamp", **more}
        plan = plan_of(transform=[{"jmespath": {"at": expression}}], table={"columns": [BIGINT, column]})
        made = plan.apply(envelopes([{"ms": MILLIS, "o": {"ms": MILLIS}}]))
        return [row["at"] for row in rows(made)], [reason for *_, reason in letters(made)]

    assert applied("o.ms") == ([], ["transform"])
    for expression in ("ms", "o.ms"):
        assert applied(expression, unit="ms") == ([MOMENT], [])
    assert applied("epoch_millis_to_micro(ms)") == ([MOMENT], [])
    assert applied("epoch_millis_to_micro(ms)", unit="ms") == ([MOMENT], [])


def test_a_time_that_jmespath_makes_of_a_kept_number() -> None:
    columns = [
        {"name": name, "type": kind} for name, kind in {"ms": "bigint", "sku": "string", "at": "timestamp"}.items()
    ]
    explode = {"column": "items", "keep": {"ms": "sent.ms"}}
    for expression, count in {"sent.ms": 1, "ms": 0, "epoch_millis_to_iso8601(sent.ms)": 0}.items():
        steps = [{"jmespath": {"at": expression}}]
        said = found(explode=explode, transform=steps, table={"path": "./lake/t", "columns": columns})
        assert [("transform[0].jmespath.at" in each, "a plain number" in each) for each in said] == [
            (True, True)
        ] * count


@pytest.mark.parametrize("given", ["1700000000", 1_700_000_000])
def test_versions_by_time(tmp_path: Path, given: Any) -> None:
    table = Table.get_or_create(tmp_path / "t", {"id": "bigint"})
    with pytest.raises(UsageError, match="a plain number has no unit"):
        table.resolve(timestamp=given)
