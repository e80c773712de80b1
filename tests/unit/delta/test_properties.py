"""Properties of tables: what Spark reads is taken, what it stumbles over is refused by name."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import Table
from headrace.delta.properties import interval
from headrace.errors import UsageError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("interval 7 days", timedelta(days=7)),
        ("7 days", timedelta(days=7)),
        ("INTERVAL 4 WEEKS", timedelta(weeks=4)),
        ("interval 30 days 12 hours", timedelta(days=30, hours=12)),
        (" interval  2   days ", timedelta(days=2)),
        ("interval 1 day -1 hour", timedelta(hours=23)),
        ("interval + 1 day", timedelta(days=1)),
        ("interval 1.5 seconds", timedelta(seconds=1.5)),
        ("interval 100 milliseconds 5 microsecond", timedelta(microseconds=100_005)),
        ("interval 0 days", timedelta()),
        ("interval 1 days 1 days", timedelta(days=2)),
    ],
)
def test_times_that_spark_reads(text: str, meant: timedelta) -> None:
    assert interval(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "interval '30' day", "7 nights", "interval 1 month", "interval 1 year", "interval -1 day", "interval 1.5 days",
        "interval 1day", "interval 1 day, 2 hours", "interval", "", "interval 1 d", "interval 1 day2 hours", "168",
        "interval 99999999999 days", "interval 1.0000000001 seconds", "interval . seconds", "week",
    ],
)  # fmt: skip
def test_times_that_it_does_not(text: str) -> None:
    assert interval(text) is None


WRONG = {
    "delta.deletedFileRetentionDuration": "7 nights",
    "delta.logRetentionDuration": "interval 1 month",
    "delta.setTransactionRetentionDuration": "x",
    "delta.dataSkippingNumIndexedCols": "x",
    "delta.checkpointInterval": "0",
    "delta.appendOnly": "maybe",
    "delta.minReaderVersion": "3",
    "delta.minWriterVersion": 7,
    "delta.parquet.compression.codec": "brotli",
    "delta.targetFileSize": "128mb",
    "delta.isolationLevel": "none",
}


@pytest.mark.parametrize(("name", "value"), WRONG.items())
def test_a_value_that_breaks_the_table_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"Invalid value of the property {name}") as refused:
        Table.get_or_create(tmp_path / "t", {"id": "int"}, properties={name: value})
    assert refused.value.hint
    table = Table.get_or_create(tmp_path / "t", {"id": "int"})
    with pytest.raises(UsageError, match=f"Invalid value of the property {name}"):
        table.set_properties({name: value, "owner": "ann"})
    assert name not in table.set_properties({name: None}).properties, "what is there can be taken away"
    assert table.bulk_insert([{"id": 1}]).rows == 1


def test_values_are_kept_as_text(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"delta.checkpointInterval": 5, "delta.appendOnly": True, "owner": "Ann", "none": None}
    kept = {"delta.checkpointInterval": "5", "delta.appendOnly": "true", "owner": "Ann"}
    assert Table.get_or_create(tmp_path / "a", {"id": "int"}, properties=wanted).metadata().properties == kept
    assert Table.get_or_create(tmp_path / "b", {"id": "int"}).set_properties(wanted).properties == kept
