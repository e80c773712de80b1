"""The oracle: the invariants, checked on what is in the store by nothing but the Delta log and the ledger's rows."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

from headrace.delta.txn import batch_txn
from headrace.write.intent import Intent
from model.driver import FILTERED, NAME, ROUTES, TABLES
from model.world import AnyStore, Violation, World, commits, ledger_rows

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
        if place != "lake" or batch_txn(NAME) not in marks:
            return
        begun = world.begun.get(f"state/intents/{marks[batch_txn(NAME)]:012}")
        holds(begun is not None, f"{name} got a batch that nobody has begun: {marks}")
        intent = Intent.from_json((begun or b"").decode())
        files = {file.path for table in intent.tables if table.path == name for file in table.files}
        added = {line["add"]["path"] for line in lines if "add" in line}
        # Only its txn, which had expired. The files may be undone by a RESTORE: then the table is owed a refill.
        again = not added and files <= _ever_added(world.store(root))
        holds(added == files or again, f"{name} got {added}; batch {intent.batch} was begun with {files}")
        holds(marks == intent.txns(), f"{name} got the marks {marks} of ranges {intent.ranges}")

    world.on_commit = on_commit


def booked(world: World) -> list[dict[str, Any]]:
    """Every batch that counts: a ledger written anew goes on where its first row says, and knows no earlier ones."""
    rows = ledger_rows(world)
    if not world.past:
        return rows
    first = rows[0]["batch"] if rows and rows[0]["note"] == "lost" else 0
    return [row for row in world.past if row["batch"] <= first] + [row for row in rows if row["batch"] > first]


def audit(world: World) -> None:
    """All invariants of a world in which no batch is open."""
    rows = booked(world)
    holds([row["batch"] for row in rows] == list(range(1, len(rows) + 1)), "batches are booked once, in order")
    for row in rows:
        parts = row["routed"] + row["dead"] + row["filtered"] + row["skipped"]
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
        holds(read == row["read"] or _is_refill(row), f"batch {row['batch']} counts {row['read']} of {read} records")
    return expected


def _is_refill(row: dict[str, Any]) -> bool:
    return row["kind"] == "refill"


def _same(name: str, found: Counter[str], wanted: Counter[str]) -> None:
    ours = Counter({key: count for key, count in found.items() if key != FOREIGN})
    holds(not ours - wanted, f"doubled or misplaced in {name}: {ours - wanted}")
    holds(not wanted - ours, f"lost from {name}: {wanted - ours}")


def _contents(store: AnyStore) -> list[str]:
    ids: list[str] = []
    for path in _standing(store):
        data = store.raw(path)
        holds(data is not None, f"{store.uri} names {path}, which is not there")
        ids += json.loads(data or b"[]")
    return ids


def stands_on(store: AnyStore, version: int) -> dict[str, SimpleNamespace]:
    """What a log checkpoint tells elsewhere: the files of the newest version."""
    return {path: SimpleNamespace(path=path) for path in _standing(store)}


def _standing(store: AnyStore) -> list[str]:
    """The files of the table as it is now: a RESTORE gives it those of an older version."""
    versions: list[list[str]] = []
    for commit, data in commits(store):
        lines = map(json.loads, data.splitlines())
        adds = [line["add"]["path"] for line in lines if "add" in line]
        before = int(commit.info["operationParameters"]["version"]) if commit.operation == "RESTORE" else -1
        versions.append([*(versions[before] if versions else []), *adds])
    return versions[-1] if versions else []


def _ever_added(store: AnyStore) -> set[str]:
    return {
        line["add"]["path"]
        for _, data in commits(store)
        for line in map(json.loads, data.splitlines())
        if "add" in line
    }


def _marks_grow(store: AnyStore, name: str) -> None:
    ours = [commit for commit, _ in commits(store) if batch_txn(NAME) in commit.txns and commit.added]
    marks = [commit.txns[batch_txn(NAME)] for commit in ours]
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
