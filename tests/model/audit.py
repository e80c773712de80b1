"""The oracle: the invariants, checked on what is in the store by nothing but the Delta log and the ledger's rows."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.batch import Intent
from headrace.commit.marks import batch_mark
from model.driver import FILTERED, NAME, ROUTES
from model.world import AnyStore, Violation, World, commits

TABLES = ("A", "B", "C", "dead")
FOREIGN = "foreign"


def holds(fact: bool, say: str) -> None:
    """Violation unless the fact holds."""
    if not fact:
        raise Violation(say)


def watch(world: World) -> None:
    """From now on check each commit when it lands: it was begun, and it is what was begun (I1, I3, I7)."""

    def on_commit(root: str, data: bytes) -> None:
        place, _, name = root.partition("/")
        lines = [json.loads(line) for line in data.splitlines()]
        marks = {line["txn"]["appId"]: line["txn"]["version"] for line in lines if "txn" in line}
        if place != "lake" or batch_mark(NAME) not in marks:
            return
        begun = world.store("state").raw(f"begun/{marks[batch_mark(NAME)]:012}")
        holds(begun is not None, f"{name} got a batch that nobody has begun: {marks}")
        intent = Intent.from_json((begun or b"").decode())
        files = {file.path for table in intent.tables if table.path == name for file in table.files}
        added = {line["add"]["path"] for line in lines if "add" in line}
        holds(added == files, f"{name} got {added}; batch {intent.batch} was begun with {files}")
        holds(marks == intent.marks(), f"{name} got the marks {marks} of ranges {intent.ranges}")

    world.on_commit = on_commit


def ledger_rows(world: World) -> list[dict[str, Any]]:
    """Every row of the ledger, in the order of its log."""
    store = world.store("state").child("ledger")
    found: list[dict[str, Any]] = []
    for path in added(store):
        data = store.raw(path)
        holds(data is not None, f"the ledger names {path}, which is not there")
        found.append(_row(data or b""))
    return found


@lru_cache(maxsize=100)
def _row(data: bytes) -> dict[str, Any]:
    (row,) = pq.ParquetFile(pa.BufferReader(data)).read().to_pylist()
    return dict(row)


def added(store: AnyStore) -> list[str]:
    """The files a table's log adds, in order."""
    lines = (json.loads(line) for _, data in commits(store) for line in data.splitlines())
    return [line["add"]["path"] for line in lines if "add" in line]


def audit(world: World) -> None:
    """All invariants of a world in which no batch is open."""
    rows = ledger_rows(world)
    holds([row["batch"] for row in rows] == list(range(1, len(rows) + 1)), "batches are booked once, in order")
    for row in rows:
        parts = row["routed"] + row["dead"] + row["filtered"] + row["held"]
        holds(row["read"] == parts, f"the account of batch {row['batch']} does not add up")
    _ranges_meet(world, rows)
    expected = _expected(world, rows)
    for name in TABLES:
        store = world.store("lake").child(name)
        _marks_grow(store, name)
        _same(name, Counter(_contents(store)), expected[name])


def _expected(world: World, rows: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Where each record of the booked ranges belongs, by the spec that its batch was begun with."""
    expected: dict[str, Counter[str]] = {name: Counter() for name in (*TABLES, FILTERED)}
    for row in rows:
        read = 0
        for item in row["ranges"] if row["spec"] else ():
            records = world.ever[item["topic_id"]].partitions[item["partition"]]
            for offset in range(item["from"], item["until"]):
                target = ROUTES[int(row["spec"])][records[offset]]
                expected[target][f"{item['topic_id']}/{item['partition']}/{offset}"] += 1
                read += 1
        holds(read == row["read"], f"batch {row['batch']} counts {row['read']} of {read} records")
    return expected


def _same(name: str, found: Counter[str], wanted: Counter[str]) -> None:
    ours = Counter({key: count for key, count in found.items() if key != FOREIGN})
    holds(not ours - wanted, f"doubled or misplaced in {name}: {ours - wanted}")
    holds(not wanted - ours, f"lost from {name}: {wanted - ours}")


def _contents(store: AnyStore) -> list[str]:
    ids: list[str] = []
    for path in added(store):
        data = store.raw(path)
        holds(data is not None, f"{store.uri} names {path}, which is not there")
        ids += json.loads(data or b"[]")
    return ids


def _marks_grow(store: AnyStore, name: str) -> None:
    marks = [commit.marks[batch_mark(NAME)] for commit, _ in commits(store) if batch_mark(NAME) in commit.marks]
    holds(marks == sorted(set(marks)), f"the marks of {name} do not grow: {marks}")


def _ranges_meet(world: World, rows: list[dict[str, Any]]) -> None:
    """Consecutive ranges of a partition meet; the first begins where the broker's records began."""
    ends: dict[tuple[str, int], int] = {}
    for row in rows:
        for item in row["ranges"]:
            at = (item["topic_id"], item["partition"])
            met = item["from"] == ends[at] if at in ends else item["from"] <= world.ever[at[0]].low[at[1]]
            holds(met, f"batch {row['batch']} leaves a hole or an overlap: {item}")
            ends[at] = item["until"]
