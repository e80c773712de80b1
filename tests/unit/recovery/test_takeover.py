"""`headrace takeover`: positions of another writer, verified and recorded as the start of a pipeline."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli import main
from headrace.errors import TxnMismatch
from headrace.ledger.known_tables import KnownTables
from headrace.storage.store import Store
from services.in_process_pipeline import Harness
from services.kafka_delta_ingest import Ingest, commit, ids, one_table, send, set_options

Run = Callable[..., tuple[int, str, str]]
QUERY = "4e70b851-3d8c-4547-9bb6-5e422e329d30"


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Eight records, of which the table has five."""
    harness = one_table(tmp_path, monkeypatch)
    send(harness, 8)
    return harness


@pytest.fixture
def takeover(harness: Harness, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(harness.folder)

    def run(origin: str, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        harness.write_spec()
        monkeypatch.setattr(sys, "argv", ["headrace", "takeover", "shop.yaml", "--from", origin, *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def five_rows(harness: Harness, txns: dict[str, int]) -> None:
    commit(harness.place / "lake/orders", pa.table({"id": list(range(5))}), txns)


def started_at(harness: Harness) -> dict[Any, int] | None:
    return KnownTables.load(Store(harness.spec.state_uri)).start


# ---- kafka-delta-ingest ----


def test_a_pipeline_continues_after_kafka_delta_ingest(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    code, out, _ = takeover("kafka-delta-ingest:web", stdin="y\n")
    assert code == 0
    assert "orders/0: continues at offset 5 (the broker has 0 to 8)" in out
    assert "lake/orders: has orders/0 to 4" in out
    harness.run()
    assert ids(harness) == list(range(8))
    assert Ingest(harness).txns() == {0: 4}  # not kept current without table.txn


def test_nothing_is_recorded_without_consent(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    code, out, _ = takeover("kafka-delta-ingest:web", stdin="n\n")
    assert (code, started_at(harness)) == (0, None)
    assert "nothing was recorded" in out
    code, _, err = takeover("kafka-delta-ingest:web", "--json")
    assert (code, started_at(harness)) == (2, None)
    assert "Add --yes" in err


def test_it_can_be_repeated(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    takeover("kafka-delta-ingest:web", "--yes")
    code, out, _ = takeover("kafka-delta-ingest:web", "--json")
    event, summary = map(json.loads, out.splitlines())
    assert code == 0
    assert event["offsets"] == [{"topic": "orders", "partition": 0, "offset": 5, "earliest": 0, "latest": 8}]
    assert (summary["recorded"], summary["already_recorded"]) == (False, True)
    Ingest(harness).run(7)
    takeover("kafka-delta-ingest:web", "--yes")
    harness.run()
    assert ids(harness) == list(range(8))


def test_a_pipeline_with_batches_is_not_taken_over(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    set_options(harness, txn={"ignore": ["web"]})
    harness.run()
    code, _, err = takeover("kafka-delta-ingest:web", "--yes")
    assert code == 2
    assert "has batches" in err
    assert "another name" in err


def test_kafka_delta_ingest_that_still_runs_is_noticed(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    takeover("kafka-delta-ingest:web", "--yes")
    Ingest(harness).run(7)
    with pytest.raises(TxnMismatch, match="up to offset 6") as stop:
        harness.run()
    assert "run `headrace takeover SPEC --from kafka-delta-ingest:web` again" in stop.value.hint
    takeover("kafka-delta-ingest:web", "--yes")
    harness.run()
    assert ids(harness) == list(range(8))
    send(harness, 2)
    Ingest(harness).run()
    with pytest.raises(TxnMismatch, match=r"ignore: \[web\]"):
        harness.run()
    set_options(harness, txn={"ignore": ["web"]})
    harness.run()
    assert set(ids(harness)) == set(range(10))


def test_an_unknown_app_id(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    code, _, err = takeover("kafka-delta-ingest:shop", "--yes")
    assert code == 2
    assert "No table has txns of the app id 'shop'" in err
    assert "App ids with such txns: web" in err


def test_another_app_id_than_that_of_the_spec(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    set_options(harness, txn={"kafka-delta-ingest": "shop"})
    code, _, err = takeover("kafka-delta-ingest:web", "--yes")
    assert code == 2
    assert "keeps the txns of 'shop'" in err


# ---- verification ----


def test_records_that_would_be_lost(takeover: Run, harness: Harness) -> None:
    Ingest(harness).run(5)
    harness.earliest = 7
    code, _, err = takeover("kafka-delta-ingest:web", "--yes")
    assert code == 1
    assert "SourceGap: orders/0: the broker no longer has offsets 5 to 6" in err
    assert started_at(harness) is None
    code, _, _ = takeover("kafka-delta-ingest:web", "--yes", "--accept-gap")
    assert (code, started_at(harness)) == (0, {("orders", 0): 7})
    harness.run()
    assert ids(harness) == [0, 1, 2, 3, 4, 7]


def test_a_position_beyond_the_end(takeover: Run, harness: Harness) -> None:
    five_rows(harness, {"web-0": 20})
    code, _, err = takeover("kafka-delta-ingest:web", "--yes")
    assert code == 1
    assert "SourceRewound: orders/0: the broker ends at 8, but offset 20 was written" in err
    takeover("kafka-delta-ingest:web", "--yes", "--accept-gap")
    send(harness, 2)
    harness.run()
    assert ids(harness) == [0, 1, 2, 3, 4, 8, 9]


def test_a_partition_that_does_not_exist(takeover: Run, harness: Harness) -> None:
    code, _, err = takeover('offsets:{"3": 5}', "--yes")
    assert code == 1
    assert "SourceTopicGone: The partition orders/3 does not exist" in err


# ---- other origins ----


@pytest.mark.parametrize("offsets", ['{"0": 5}', '{"orders": {"0": 5}}'])
def test_explicit_offsets(takeover: Run, harness: Harness, offsets: str) -> None:
    five_rows(harness, {"other-0": 1})  # the user has decided
    assert takeover(f"offsets:{offsets}", "--yes")[0] == 0
    harness.run()
    assert ids(harness) == list(range(8))


@pytest.mark.parametrize("offsets", ["", "{}", "5", '{"0": -1}', '{"0": "5"}', '{"0": 5', '{"x": 5}'])
def test_invalid_offsets(takeover: Run, offsets: str) -> None:
    code, _, err = takeover(f"offsets:{offsets}", "--yes")
    assert code == 2
    assert "--from: invalid" in err


@pytest.mark.parametrize("origin", ["web", "kafka:web", "group:", "kafka-delta-ingest"])
def test_an_invalid_origin(takeover: Run, origin: str) -> None:
    code, _, err = takeover(origin)
    assert code == 2
    assert "Use kafka-delta-ingest:APP_ID, group:NAME, checkpoint:PATH or offsets:JSON" in err


def checkpoint(harness: Harness, ends: list[int], finished: int, *, named: bool = False) -> str:
    """A checkpoint of Structured Streaming, with the end of each batch; `named`: in version 2 of the log."""
    folder = harness.folder / "checkpoint"
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    for number, end in enumerate(ends):
        source = json.dumps({"orders": {"0": end}})
        lines = ["v2" if named else "v1", json.dumps({"batchWatermarkMs": 0}), f"0:{source}" if named else source]
        (folder / "offsets" / str(number)).write_text("\n".join(lines))
        (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    for number in range(finished):
        (folder / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return f"checkpoint:{folder}"


@pytest.mark.parametrize("named", [False, True])
def test_a_checkpoint_of_spark(takeover: Run, harness: Harness, named: bool) -> None:
    five_rows(harness, {QUERY: 1})
    assert takeover(checkpoint(harness, [3, 5], 2, named=named), "--yes")[0] == 0
    harness.run()
    assert ids(harness) == list(range(8))


@pytest.mark.parametrize(("written", "start"), [(1, 5), (2, 7)])
def test_the_txn_of_the_query_tells_whether_the_last_batch_is_written(
    takeover: Run, harness: Harness, written: int, start: int
) -> None:
    five_rows(harness, {QUERY: written})
    assert takeover(checkpoint(harness, [3, 5, 7], 2), "--yes")[0] == 0
    assert started_at(harness) == {("orders", 0): start}


def test_a_batch_that_may_be_written(takeover: Run, harness: Harness) -> None:
    five_rows(harness, {})
    code, _, err = takeover(checkpoint(harness, [3, 5], 1), "--yes")
    assert code == 2
    assert "Batch 1 of the query was started and not finished, and no table has the txn" in err


def test_no_checkpoint(takeover: Run, harness: Harness) -> None:
    code, _, err = takeover(f"checkpoint:{harness.folder}/nothing", "--yes")
    assert code == 2
    assert "is not a checkpoint" in err
