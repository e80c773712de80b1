"""Whole commands in cold processes: what a user waits for, from exec to exit."""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.columns import SOURCE
from bench.peers import kafka_options
from bench.processes import ProcessReading, run
from bench.records import KINDS
from bench.runs import Bench, Figures

PEERS = (
    ("headrace", "declared"),
    ("headrace", "inferred"),
    ("textbook", "declared"),
    ("arrow", "declared"),
    ("pandas", "declared"),
)
KIND = "bare"  # about 270 bytes, no headers, null keys
SMALL = 2_000
Command = tuple[list[str], Path]  # and the table that it writes


def cold(bench: Bench) -> list[Figures]:
    """Each peer in each turn, on a large and a small topic; an unmeasured turn first fills the page cache."""
    _turn(bench, SMALL)
    figures = []
    for count in (bench.scale.records, SMALL):
        turns = [_turn(bench, count) for _ in range(bench.scale.turns)]
        figures += [_figures(peer, label, count, [turn[peer, label] for turn in turns]) for peer, label in PEERS]
    return figures


def _turn(bench: Bench, count: int) -> dict[tuple[str, str], ProcessReading]:
    topic = bench.topics.filled(KIND, count)
    readings = {}
    for peer, label in PEERS:
        folder = Path(tempfile.mkdtemp(prefix="cold-", dir=bench.folder))
        command, table = command_of(peer, label, bench.topics.bootstrap, topic, folder)
        readings[peer, label] = run(command, folder, table, bench.scale.timeout)
        if (rows := row_count(table)) != count:
            raise AssertionError(f"{peer}, {label}: {rows} rows instead of {count}")
    return readings


def command_of(peer: str, label: str, bootstrap: str, topic: str, folder: Path) -> Command:
    """Command of a peer that drains a topic."""
    if peer == "headrace":
        spec = smallest_spec(bootstrap, topic, declared=label == "declared")
        return [*headrace_run(folder, spec), "--until", "latest", "--json"], folder / "lake" / "events"
    if peer == "textbook":
        return textbook_script(bootstrap, topic, folder, {"availableNow": True})
    names = [*KINDS[KIND].columns, SOURCE.name]
    order = {"peer": peer, "bootstrap": bootstrap, "topic": topic, "names": names, "folder": str(folder)}
    return [sys.executable, "-m", "bench.consumers", json.dumps(order)], folder / "lake"


def smallest_spec(bootstrap: str, topic: str, *, declared: bool) -> dict[str, Any]:
    """Spec with source and table only, and with columns if they are declared."""
    columns = [{"name": name, "type": kind} for name, kind in KINDS[KIND].columns.items()]
    return {
        "pipeline": "bench",
        "source": {"kafka": {"brokers": bootstrap, "topics": [topic]}},
        "table": {"path": "./lake/events", **({"columns": columns} if declared else {})},
    }


def headrace_run(folder: Path, spec: dict[str, Any]) -> list[str]:
    """`headrace run SPEC`, with the installed command."""
    file = folder / "spec.yaml"
    file.write_text(json.dumps(spec))
    return [str(Path(sys.executable).parent / "headrace"), "run", str(file)]


def textbook_script(bootstrap: str, topic: str, folder: Path, trigger: dict[str, Any]) -> Command:
    """The plain script, with the jars and source options of Headrace."""
    from headrace.runtime import jars

    table = folder / "lake"
    order = {
        "class_path": os.pathsep.join(map(str, jars.ensure("spark"))),
        "options": {**kafka_options({"bootstrap": bootstrap}, topic), "includeHeaders": "false"},
        "schema": ", ".join(f"{name} {kind}" for name, kind in KINDS[KIND].columns.items()),
        "trigger": trigger,
        "folder": str(folder),
        "table": str(table),
    }
    return [sys.executable, str(Path(__file__).with_name("textbook_script.py")), json.dumps(order)], table


def row_count(table: Path) -> int:
    """Rows in the files of the current version."""
    from deltalake import DeltaTable
    from pyarrow import parquet

    paths = DeltaTable(str(table)).file_uris()
    return sum(int(parquet.read_metadata(path.removeprefix("file://")).num_rows) for path in paths)


def _figures(peer: str, label: str, records: int, readings: Sequence[ProcessReading]) -> Figures:
    gaps = [each.max_gap for each in readings if each.max_gap is not None]
    return {
        "peer": peer,
        "label": label,
        "records": records,
        "seconds": round(statistics.median(each.seconds for each in readings), 2),
        "cpu": round(statistics.median(each.cpu for each in readings), 2),
        "first_commit": round(statistics.median(each.first_commit for each in readings), 2),
        "commits": round(statistics.median(len(each.commits) for each in readings)),
        "max_gap": round(statistics.median(gaps), 2) if gaps else None,
        "peak_mib": round(max(each.peak_bytes for each in readings) / 2**20),
        "turns": [{"seconds": round(each.seconds, 3), "cpu": round(each.cpu, 2)} for each in readings],
    }
