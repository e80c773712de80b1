"""Configurations of Orasi: every switch has an effect or a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.importers.detect import import_file
from headrace.importers.imported import Imported
from headrace.validate.load import examine_imported

HEAD = '[deltalake]\ntable_path = "/lake/telemetry"\ntable_name = "Telemetry Data"\n'


def _imported(text: str, **variables: str) -> Imported:
    imported = import_file("deltalake.toml", text, variables)
    assert imported is not None
    return imported


def _spec(text: str, **variables: str) -> dict[str, Any]:
    """The spec, which must be valid."""
    imported = _imported(text, **variables)
    _, diagnostics = examine_imported(imported, Path())
    assert [str(each) for each in diagnostics if each.severity == "error"] == []
    return imported.drafts[0].plain()


def test_the_five_keys_that_were_without_effect():
    """`parallelism`, `batch_size`, `file_size_max` and `min_file_size` have one; the stream is the fifth."""
    table = "[deltalake.table]\nparallelism = 3\nbatch_size = 500\n"
    storage = "[deltalake.storage]\nfile_size_max = 400000000\nmin_file_size = 1000000\n"
    spec = _spec(HEAD + table + storage)
    assert spec["spark"] == {"cores": 3}
    assert spec["flush"] == {"rows": 500}
    assert (spec["table"]["max_file_size"], spec["table"]["min_file_size"]) == ("400MB", "1MB")
    errors = _imported(f"{HEAD}[deltalake.operations]\nstreaming_enabled = false\n").findings.errors
    assert "there is no stream to import" in str(errors[0])


def test_files_that_are_split_are_twice_the_target():
    imported = _imported(f"{HEAD}[deltalake.storage]\nfile_size_max = 200000000\n")
    assert [each.name for each in imported.findings.not_honoured] == ["deltalake.storage.file_size_max"]


def test_partitions_are_derived():
    spec = _spec(HEAD + 'partition_by = ["service_name", "date", "hour", "year"]\n')
    assert spec["table"]["partition_by"] == [
        "service_name",
        {"date": "timestamp", "as": "date"},
        {"hour": "timestamp", "as": "hour"},
        "year",
    ]
    assert spec["transform"] == [{"set": {"year": 'year("timestamp")'}}]
    spec = _spec(HEAD + 'partition_by = ["service_name"]\npartition_strategy = "hash"\n')
    assert spec["table"]["partition_by"] == [{"hash": "service_name", "buckets": 16, "as": "service_name_bucket"}]


@pytest.mark.parametrize(
    ("keys", "table"),
    [
        ("strict_mode = true", {"strict": True}),
        ("auto_evolution = false", {"contract": {"new_field": "reject"}}),
        ("merge_schema = false", {"contract": {"new_field": "reject"}}),
        ("auto_evolution = true", {"contract": {"new_field": "evolve"}}),
    ],
)
def test_new_fields(keys: str, table: dict[str, Any]):
    spec = _spec(f"{HEAD}[deltalake.schema]\n{keys}\n")
    assert spec["table"] | table == spec["table"]


@pytest.mark.parametrize(
    ("keys", "maintenance", "reported"),
    [
        ("retention_hours = 24", {"retention": "1d"}, []),
        ("optimize_enabled = false", None, ["deltalake.table.vacuum_enabled"]),
        ("optimize_enabled = false\nvacuum_enabled = false", None, []),
    ],
)
def test_maintenance_does_both(keys: str, maintenance: Any, reported: list[str]):
    text = f"{HEAD}[deltalake.table]\n{keys}\n"
    text += "vacuum_enabled = true\n" if reported else ""
    assert _spec(text).get("maintenance") == maintenance
    assert [each.name for each in _imported(text).findings.not_honoured] == reported


def test_variables_override_keys_of_the_bridge():
    variables = {"DELTA_LAKE_STORAGE_PATH": "s3://other-bucket/t", "DELTA_LAKE_PARTITION_COLUMNS": "service_name,date"}
    spec = _spec('[lakehouses.delta_lake]\nstorage_path = "/lake/t"\n', DELTA_LAKE_COMPRESSION="zstd", **variables)
    assert (spec["table"]["path"], spec["table"]["compression"]) == ("s3://other-bucket/t", "zstd")
    assert spec["table"]["partition_by"] == ["service_name", {"date": "timestamp", "as": "date"}]


def test_other_sections_of_the_bridge_are_reported():
    text = "[bridge]\nname = 'b'\n[lakehouses.delta_lake]\nstorage_path = '/lake/t'\n[lakehouses.iceberg]\na = 1\n"
    assert [each.name for each in _imported(text).findings.not_honoured] == ["bridge", "lakehouses.iceberg"]
    assert "unknown key" in str(_imported(f"name = 'b'\n{text}").findings.errors[0])


def test_an_unknown_codec_is_an_error():
    errors = _imported(f'{HEAD}[deltalake.table]\ncompression = "LZO"\n').findings.errors
    assert "compression: unknown value 'LZO'; expected: snappy, gzip, zstd, lz4, none" in str(errors[0])
