"""Lost files of a pipeline's table, by a real broker: what it still holds comes back, once, whoever dies on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from deltalake import DeltaTable
from typer.testing import CliRunner

from headrace import Table
from headrace.cli import app
from headrace.dev.kafka import Broker
from headrace.faults import Abandoned, Point, armed
from services.audit import by_kind, contents
from services.kafka import admin, read_all
from services.pipelines import Shop


@pytest.fixture
def shop(spark: Any, kafka: Broker, topic: str, tmp_path: Path) -> Shop:
    """Sixty records a batch, two partitions, two tables; some records are no JSON, some are filtered."""
    made = Shop(kafka.bootstrap, topic, str(tmp_path / "lake"), tmp_path)
    made.options = {"limits": {"batch_rows": 60}, "flush": {"rows": 60, "every": "200ms"}}
    return made


def lose(path: str, *batches: int) -> None:
    """Delete the files that these batches staged for a table."""
    for batch in batches:
        found = list(Path(path).glob(f"part-{batch:08d}-*.parquet"))
        assert found
        for each in found:
            each.unlink()


def test_lost_rows_come_back_once_as_far_as_the_broker_has_them_whoever_dies(shop: Shop) -> None:
    for _ in range(3):
        shop.send(60)
    shop.run()
    path = f"{shop.lake}/alpha"
    lose(path, 1, 3)
    spec, runner = str(shop.write_spec()), CliRunner()
    shown = runner.invoke(app, ["table", "repair", path, "--reingest", "--spec", spec, "--dry-run"])
    assert shown.exit_code == 0, shown.output
    assert "can be read again:" in shown.output
    with armed(Point.AFTER_COMMIT, "abandon"), pytest.raises(Abandoned):
        Table(path).repair(reingest=spec)
    done = runner.invoke(app, ["table", "repair", path, "--reingest", "--spec", spec, "--yes", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.output)["reingest"]["unrecoverable"] == []
    assert contents(shop.bootstrap, [shop.topic], shop.spec).records == shop.sent
    lose(path, 2)
    first = {0: 40, 1: 55}
    drop_records(shop, first)
    named = Table(path).repair(reingest=shop.spec).reingest
    assert named is not None
    assert {(each.ranges[0].partition, each.ranges[0].until) for each in named.unrecoverable} == {(0, 40)}, (
        "partition 1 has none of its records"
    )
    rows = DeltaTable(path).to_pyarrow_table().to_pylist()
    places = [(row["_source"]["partition"], row["_source"]["offset"]) for row in rows]
    assert len(places) == len(set(places))
    assert {each for each in places if each[1] >= first[each[0]]} == expected(shop, first)


def drop_records(shop: Shop, first: dict[int, int]) -> None:
    client = admin(shop.bootstrap)
    at = [TopicPartition(shop.topic, partition, offset) for partition, offset in first.items()]
    for done in client.delete_records(at).values():
        done.result(20)


def expected(shop: Shop, first: dict[int, int]) -> set[tuple[int, int]]:
    """The places of the table's records that the broker still has."""
    due = [each for each in read_all(shop.bootstrap, [shop.topic]) if by_kind(each).place == "alpha"]
    return {(each.partition, each.offset) for each in due if each.offset >= first[each.partition]}
