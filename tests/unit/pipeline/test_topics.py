"""Settings of some topics in a pipeline: one batch, one ledger and one table of dead letters for all of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from headrace.dead_letters.replay import replay
from headrace.delta.schema import RECORD_SCHEMA
from headrace.faults import Abandoned, Point, armed
from headrace.spec import Spec
from headrace.validate.load import loads
from services.in_process_pipeline import ingest
from services.plans import envelope

MAPPINGS = 50
POINTS = [
    Point.BEFORE_STAGING,
    Point.DURING_STAGING,
    Point.AFTER_STAGING,
    Point.AFTER_TABLE_CREATION,
    Point.AFTER_COMMIT,
    Point.AFTER_FIRST_TABLE,
    Point.BEFORE_DEAD_LETTERS,
    Point.BEFORE_LEDGER_WRITE,
]
BEFORE_INTENT = POINTS[:3]
# What an entry makes of a record with a number, and of one that does not fit.
KINDS: list[tuple[dict[str, Any], bytes]] = [
    ({"decode": "json"}, b"{"),
    ({"decode": "string"}, b"\xff"),
    ({"decode": {"int64": {"text": True}}}, b"x"),
    ({"decode": "json", "transform": [{"set": {"twice": "n * 2"}}]}, b"[]"),
    ({"decode": "number"}, b"y"),
]


def mapped(folder: Path, count: int, **changes: Any) -> Spec:
    """A mapping for each of `count` topics, each with columns and a transform of its own; a further topic has none."""
    topics = [f"default.t{n}" for n in range(count)]
    entries = []
    for n, topic in enumerate(topics):
        kind = KINDS[n % len(KINDS)][0]
        entries.append({"name": f"t{n}", "topic": topic, "table": {"path": f"{folder}/lake/of/t{n}"}, **kind})
    content = {
        "pipeline": "shop",
        "source": {"kafka": {"brokers": "localhost:9", "topics": [*topics, "rest"]}},
        "route": {"by": "topic"},
        "table": {"path": f"{folder}/lake/{{topic}}"},
        "topics": entries,
        **changes,
    }
    return loads(json.dumps(content), folder)[0]


def records(count: int, batch: int) -> pa.Table:
    """Two records of each topic, of which the second one is a dead letter."""
    made = []
    for n in range(count):
        good = json.dumps({"n": n}).encode() if n % len(KINDS) in (0, 3) else b"%d" % n
        values = [good, KINDS[n % len(KINDS)][1]]
        made += [envelope(2 * batch + at, value, topic=f"default.t{n}") for at, value in enumerate(values)]
    made += [envelope(2 * batch + at, value, topic="rest") for at, value in enumerate([{"a": batch}, b"{"])]
    return pa.Table.from_pylist(made, RECORD_SCHEMA)


def places(folder: Path) -> dict[str, Counter[tuple[str, int]]]:
    """Topic and offset of every row of every table, the dead letters among them."""
    found: dict[str, Counter[tuple[str, int]]] = {}
    for log in sorted((folder / "lake").rglob("_delta_log")):
        path = log.parent
        if path.name in ("ledger", "replays"):
            continue
        rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
        sources = [row.get("_source", row) for row in rows]
        found[str(path.relative_to(folder / "lake"))] = Counter((each["topic"], each["offset"]) for each in sources)
    return found


def expected(count: int, batches: int) -> dict[str, Counter[tuple[str, int]]]:
    good, bad = range(0, 2 * batches, 2), range(1, 2 * batches, 2)
    topics = {f"of/t{n}": f"default.t{n}" for n in range(count)} | {"rest": "rest"}
    tables = {path: Counter((topic, offset) for offset in good) for path, topic in topics.items()}
    dead = Counter((topic, offset) for topic in topics.values() for offset in bad)
    return {**tables, "_headrace/shop/dead_letters": dead}


def test_fifty_mappings_run_in_one_batch(tmp_path: Path):
    spec, events = mapped(tmp_path, MAPPINGS), list[dict[str, Any]]()
    for batch in range(2):
        ingest(spec, records(MAPPINGS, batch), report=events.append)
    assert places(tmp_path) == expected(MAPPINGS, 2)
    batches = [event for event in events if event["event"] == "batch"]
    assert [event["batch"] for event in batches] == [1, 2]
    assert all((event["read"], event["routed"], event["dead"]) == (102, 51, 51) for event in batches)
    rows = {n: DeltaTable(f"{tmp_path}/lake/of/t{n}").to_pyarrow_table().to_pylist()[0] for n in range(len(KINDS))}
    values = [{key: value for key, value in row.items() if key != "_source"} for row in rows.values()]
    assert values == [{"n": 0}, {"data": "1"}, {"value": 2}, {"n": 3, "twice": 6}, {"value": 4}]


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_dies_is_finished_with_every_record_in_its_place(tmp_path: Path, point: Point):
    spec = mapped(tmp_path, 5)
    with armed(point, "abandon"), pytest.raises(Abandoned):
        ingest(spec, records(5, 0))
    if point in BEFORE_INTENT:
        ingest(spec, records(5, 0))
    ingest(spec, records(5, 1))
    assert places(tmp_path) == expected(5, 2)
    ledger = DeltaTable(f"{spec.state_uri}/ledger").to_pyarrow_table().to_pylist()
    assert sorted((row["batch"], row["read"], row["routed"], row["dead"]) for row in ledger) == [
        (1, 12, 6, 6),
        (2, 12, 6, 6),
    ]


def test_dead_letters_are_replayed_by_the_entry_of_their_topic(tmp_path: Path):
    ingest(mapped(tmp_path, 5), records(5, 0))
    changed = json.loads(mapped(tmp_path, 5).text)
    changed["topics"] = [{**each, "decode": "bytes"} for each in changed["topics"] if each["name"] == "t1"]
    changed["topics"].append({"name": "rest", "topic": "rest", "decode": "string", "table": {"path": f"{tmp_path}/r"}})
    spec = loads(json.dumps(changed), tmp_path)[0]
    summary = replay(spec)
    # Of t1, the bytes fit now. `rest` had no entry: its dead letter belongs to another table than its topic does now.
    assert summary.counts.records() == {"read": 6, "routed": 1, "dead": 5, "filtered": 0, "skipped": 0}
    assert sorted(DeltaTable(f"{tmp_path}/lake/of/t1").to_pyarrow_table()["data"].to_pylist()) == ["/w==", "1"]


def test_an_entry_that_is_added_applies_from_the_next_record_on(tmp_path: Path):
    ingest(
        mapped(tmp_path, 0, topics=[], source={"kafka": {"brokers": "localhost:9", "topics": ["rest"]}}), records(0, 0)
    )
    entry = {"name": "rest", "topic": "rest", "decode": "raw", "table": {"path": f"{tmp_path}/lake/of/rest"}}
    ingest(mapped(tmp_path, 0, topics=[entry]), records(0, 1))
    assert places(tmp_path) == {
        "rest": {("rest", 0): 1},
        "of/rest": {("rest", 2): 1, ("rest", 3): 1},
        "_headrace/shop/dead_letters": {("rest", 1): 1},
    }
