"""What a restart may find other than it was: cut otherwise, decided by another spec, its files or its state gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import MarksDisagree
from headrace.faults import Point
from headrace.runtime.kafka import Broker
from services.audit import DEAD, Lake, Verdict, by_kind
from services.kafka import Seen
from services.pipelines import Shop, eventful


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, tmp_path: Path) -> Shop:
    """A shop on local disk with nothing sent yet."""
    return Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path)


@pytest.mark.parametrize("point", [Point.ALL_STAGED, Point.TABLE_A_DONE])
def test_a_batch_that_would_be_cut_otherwise(shop: Shop, point: Point) -> None:
    """The checkpoint is lost and batches are larger now: only one that was decided keeps its ranges."""
    eventful(shop).die(point, 2)
    shop.send(60, kinds=("alpha", "beta", "gamma"))
    shop.options["limits"] = {"batch_rows": 90}
    shop.run()
    found = shop.audit()
    second = 60 if point is Point.TABLE_A_DONE else 90
    assert [row["read"] for row in found.batches] == [60, second, 120 - second]


@pytest.mark.parametrize("staged", ["kept", "deleted"])
def test_a_batch_is_finished_by_the_spec_that_began_it(shop: Shop, staged: str) -> None:
    """Records that were dead under the old spec stay so, though they fit the new one; also when they are read again."""
    strict = {"path": f"{shop.lake}/{{route}}", "strict": True}
    shop.options |= {"table": strict, "limits": {"batch_rows": 60}, "flush": {"rows": 60}}
    shop.send(60)
    for extra in ({"note": "new"}, {}):
        shop.send(30, kinds=("alpha", "beta", "gamma"), **extra)
    shop.die(Point.TABLE_A_DONE, 2)
    if staged == "deleted":
        _delete_uncommitted(shop)
    shop.options["table"] = {"path": strict["path"]}
    shop.send(20, note="later")
    summary = shop.run()
    assert summary.recovered == 1

    def judge(record: Seen) -> Verdict:
        refused = b'"note": "new"' in record.value and b"gamma" not in record.value
        return Verdict(DEAD) if refused else by_kind(record)

    found = shop.audit(judge)
    assert len({row["spec"] for row in found.batches[:2]}) == 1
    assert found.batches[1]["spec"] != found.batches[2]["spec"]
    assert {row["note"] for row in Lake(shop.spec).rows(f"{shop.lake}/alpha")} == {None, "later"}


def _delete_uncommitted(shop: Shop) -> None:
    """What a careless cleaner does between the death and the restart."""
    done, *rest = shop.begun(2).tables
    assert rest
    assert all((Path(done.path) / item.path).exists() for item in done.files)
    for item in (item for table in rest for item in table.files):
        (Path(item.table) / item.path).unlink()


def test_a_recovery_that_reads_again_may_die_too(shop: Shop) -> None:
    eventful(shop).die(Point.TABLE_A_DONE, 2)
    _delete_uncommitted(shop)
    shop.die(Point.LETTERS_NOT, 2)
    shop.die(Point.LEDGER_NOT, 2)
    assert shop.run().recovered == 1
    shop.audit()


@pytest.mark.parametrize("lost", ["set back", "gone"])
def test_a_state_that_is_older_than_the_tables_is_refused(shop: Shop, lost: str, tmp_path: Path) -> None:
    """With the marks alone, a batch cut otherwise would be taken for one that is there, and skipped."""
    state, old, new = Path(shop.lake, "_headrace"), tmp_path / "old", tmp_path / "new"
    shop.send(40)
    shop.run()
    shutil.copytree(state, old)
    shop.send(20)
    shop.run()
    shutil.copytree(state, new)
    shutil.rmtree(state)
    if lost == "set back":
        shutil.copytree(old, state)
    shop.send(30)
    before = _versions(shop)
    with pytest.raises(MarksDisagree, match="lost or set back"):
        shop.run()
    assert _versions(shop) == before
    shutil.rmtree(state)
    shutil.copytree(new, state)
    shop.run()
    assert shop.audit().records == 90


def _versions(shop: Shop) -> dict[str, int]:
    lake = Lake(shop.spec)
    return {name: len(lake.log(path)) for name, path in lake.tables().items()}


def test_dead_letters_are_made_though_tables_may_not_be(shop: Shop) -> None:
    """`create: never` is said of the tables; a batch that dies before the first letters is finished all the same."""
    shop.send_values(json.dumps({"id": n, "kind": "alpha"}).encode() for n in range(10))
    shop.run()
    shop.options["table"] = {"path": f"{shop.lake}/{{route}}", "create": "never"}
    shop.send_values([b'{"id": 10, "kind": "alpha"}', b"broken"])
    shop.die(Point.LETTERS_NOT)
    assert shop.run().recovered == 1
    assert shop.audit().letters == 1
