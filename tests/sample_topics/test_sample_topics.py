"""Sample topics of five systems, by the specs that the documentation shows, into Delta tables without a JVM."""

from __future__ import annotations

import base64
import json
import shutil
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from docs.pages import DOCS, Block, blocks, whole
from headrace.delta.schema import RECORD_SCHEMA
from headrace.spec import Spec
from headrace.validate.load import loads
from services import schemas
from services.in_process_pipeline import ingest
from services.plans import envelope

HERE = Path(__file__).parent
SHOWN: dict[str, Block] = {
    block.mark.split()[1]: block
    for block in blocks("yaml", *(DOCS / "how-to").glob("coming-from-*.md"))
    if " " in block.mark
}
TOPIC = "web_requests"  # of the smallest spec, over which the others are laid


def test_every_topic_has_its_spec_its_records_and_what_is_expected():
    assert set(SHOWN) == {path.stem for path in HERE.glob("*.jsonl")}
    assert set(SHOWN) == {path.stem for path in HERE.glob("*.json")} - {"registry"}


@pytest.mark.parametrize("name", SHOWN)
def test_a_sample_topic_becomes_the_rows_and_dead_letters_expected(name: str, tmp_path: Path):
    spec, records = spec_of(name, tmp_path), records_of(name)
    ingest(spec, records)
    tables, letters = stored(tmp_path / "lake"), letters_of(spec)
    expected = json.loads((HERE / f"{name}.json").read_text())
    assert {table: [plain(row) for _, row in rows] for table, rows in tables.items()} == expected["tables"]
    assert {str(letter["offset"]): letter["reason"] for letter in letters} == expected["letters"]
    values = records["value"].to_pylist()
    assert all(letter["value"] == values[letter["offset"]] for letter in letters)
    found = Counter(letter["offset"] for letter in letters)
    found.update({offset for rows in tables.values() for offset, _ in rows})
    assert found == Counter(set(range(len(values))) - set(expected.get("filtered", ())))


def spec_of(name: str, folder: Path) -> Spec:
    """The spec of the page, over a registry that knows the ids of the samples."""
    for id, answer in json.loads((HERE / "registry.json").read_text()).items():
        schemas.answer(f"/schemas/ids/{id}", answer)
    shutil.copytree(HERE / "schemas", folder / "schemas")
    return loads(whole(SHOWN[name]).replace("http://localhost:8081", schemas.registry_url()), folder)[0]


def records_of(name: str) -> pa.Table:
    """The records of a topic."""
    lines = (HERE / f"{name}.jsonl").read_text().splitlines()
    made = [_envelope(offset, json.loads(line)) for offset, line in enumerate(lines)]
    return pa.Table.from_pylist(made, RECORD_SCHEMA)


def _envelope(offset: int, record: dict[str, Any]) -> dict[str, Any]:
    return envelope(
        offset,
        _bytes(record["value"]),
        topic=TOPIC,
        timestamp=datetime.fromtimestamp(record["timestamp"] / 1000, UTC),
        key=_bytes(record["key"]),
        headers=[{"key": key, "value": _bytes(value)} for key, value in record["headers"]],
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def stored(lake: Path) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Every table's rows with their records' offsets, in that order, by delta-rs."""
    tables = sorted(path for path in lake.iterdir() if path.name != "_headrace")
    return {path.name: _in_order(DeltaTable(path).to_pyarrow_table().to_pylist()) for path in tables}


def _in_order(rows: list[dict[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    return sorted(((row.pop("_source")["offset"], row) for row in rows), key=lambda pair: pair[0])


def letters_of(spec: Spec) -> list[dict[str, Any]]:
    there = DeltaTable.is_deltatable(spec.dead_letters_uri)
    found = DeltaTable(spec.dead_letters_uri).to_pyarrow_table().to_pylist() if there else []
    return sorted(found, key=lambda letter: letter["offset"])


def plain(value: Any) -> Any:
    """A value as the expectations spell it."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, Decimal) else value
