"""kafka-delta-ingest by its rules, over the topic of a harness."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from services.in_process_pipeline import Harness

APP = "web"
KEPT = {"kafka-delta-ingest": APP}


def commit(uri: str | Path, rows: pa.Table, txns: Mapping[str, int]) -> None:
    """Append rows and txns in one commit of delta-rs."""
    transactions = [Transaction(name, version) for name, version in txns.items()]
    properties = CommitProperties(app_transactions=transactions)
    write_deltalake(str(uri), rows, mode="append", commit_properties=properties)


class Ingest:
    """Continues after its txns in the table, and sets them in the commit of the rows."""

    def __init__(self, harness: Harness, table: str = "orders", app_id: str = APP) -> None:
        self.harness, self.app_id = harness, app_id
        self.uri = str(harness.place / "lake" / table)

    def txns(self, partitions: int = 1) -> dict[int, int]:
        """The last offset of each partition, as delta-rs reads it."""
        if not DeltaTable.is_deltatable(self.uri):
            return {}
        table = DeltaTable(self.uri)
        versions = {number: table.transaction_version(f"{self.app_id}-{number}") for number in range(partitions)}
        return {number: version for number, version in versions.items() if version is not None}

    def run(self, until: int | None = None) -> None:
        """Write the records after the last offset; at first, from the first record."""
        start = self.txns().get(0, -1) + 1
        sent = self.harness.sent[start:until]
        rows = pa.Table.from_pylist([json.loads(value or b"{}") for value in sent])
        commit(self.uri, rows, {f"{self.app_id}-0": start + len(sent) - 1})


def one_table(folder: Path, patch: pytest.MonkeyPatch, **table: Any) -> Harness:
    """A pipeline over one topic and one table."""
    harness = Harness(folder, {"route": {}, "table": {"path": f"{folder}/lake/orders", **table}})
    harness.serve(patch)
    return harness


def send(harness: Harness, count: int) -> None:
    """More records, numbered by their offsets."""
    start = len(harness.sent)
    harness.send({"id": number} for number in range(start, start + count))


def ids(harness: Harness, table: str = "orders") -> list[int]:
    """The numbers of the records in a table, sorted."""
    return sorted(row["id"] for row in harness.rows(f"lake/{table}"))


def set_options(harness: Harness, **table: Any) -> None:
    """Change options of the table."""
    harness.options["table"] = {**harness.options["table"], **table}
