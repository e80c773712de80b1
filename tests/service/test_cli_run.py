"""Commands against a real broker: `run` with several specs, `check --online`, `preview` of topics, `status`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.dev.kafka import Broker
from services.audit import audit
from services.kafka import admin, produce
from services.pipelines import make_spec, records, spec_text
from services.threads import ids, watched

Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`headrace … --json` in this process, on its one session: exit code, the lines of stdout, stderr."""

    def run(*arguments: object) -> tuple[int, list[dict[str, Any]], str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments), "--json"])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        code = ended.value.code or 0
        assert isinstance(code, int)
        return code, [json.loads(line) for line in out.splitlines()], err

    return run


def _file(folder: Path, text: str, name: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def test_several_specs_run_side_by_side_and_each_ends_with_its_account(
    spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path, cli: Run
):
    files, specs = [], []
    for name in ("one", "two"):
        topic = new_topic(2)
        produce(kafka.bootstrap, topic, records(0, 60))
        lake = tmp_path / name
        files.append(_file(tmp_path, spec_text(kafka.bootstrap, [topic], lake, pipeline=name), name))
        specs.append((topic, make_spec(kafka.bootstrap, [topic], lake, pipeline=name)))
    code, told, err = cli("run", *files, "--until", "latest")
    assert (code, err) == (0, "")
    *_, first, second = told
    assert [(each["event"], each["pipeline"], each["stopped"]) for each in (first, second)] == [
        ("summary", "one", None),
        ("summary", "two", None),
    ]
    for each, (topic, spec) in zip((first, second), specs, strict=True):
        assert each["read"] == 60 == each["routed"] + each["dead"] + each["filtered"] + each["skipped"]
        found = audit(kafka.bootstrap, [topic], spec)
        assert (found.dead_letters, found.filtered) == (each["dead"], each["filtered"])
    assert {event["event"] for event in told} <= {
        *("batch", "columns", "partitions", "progress", "setup", "state", "summary")
    }


def test_one_that_stops_leaves_the_others_and_makes_it_exit_1(
    spark: Any, kafka: Broker, new_topic: Any, tmp_path: Path, cli: Run
):
    topic = new_topic()
    produce(kafka.bootstrap, topic, [b'{"id": 1}', b'{"id": "x"}'])
    fixed: dict[str, Any] = {"route": {"by": "fixed"}, "transform": []}
    column = {"name": "id", "type": "bigint"}
    strict = {"path": f"{tmp_path}/a/t", "columns": [column], "contract": {"wrong_type": "stop"}}
    text = spec_text(kafka.bootstrap, [topic], "x", pipeline="strict", table=strict, **fixed)
    calm = {"path": f"{tmp_path}/b/t", "columns": [column]}
    other = spec_text(kafka.bootstrap, [topic], "x", pipeline="calm", table=calm, **fixed)
    code, told, _ = cli("run", _file(tmp_path, text, "strict"), _file(tmp_path, other, "calm"), "--until", "latest")
    assert code == 1
    (stop,) = [event for event in told if event["event"] == "error"]
    assert (stop["pipeline"], stop["error"]) == ("strict", "ContractViolation")
    assert "the contract is set to stop" in stop["message"]
    assert stop["hint"]
    assert [(each["pipeline"], each["stopped"]) for each in told[-2:]] == [
        ("strict", "ContractViolation"),
        ("calm", None),
    ]
    assert ids(f"{tmp_path}/b/t") == [1]
    assert not (tmp_path / "a/t/_delta_log").exists()


def test_people_read_the_account_on_stderr(
    spark: Any, kafka: Broker, topic: str, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    produce(kafka.bootstrap, topic, records(0, 30))
    file = _file(tmp_path, spec_text(kafka.bootstrap, [topic], tmp_path / "lake"), "shop")
    monkeypatch.setattr(sys, "argv", ["headrace", "run", str(file), "--until", "latest"])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert (ended.value.code or 0, out) == (0, "")
    assert "shop: 1 batch; read 30 = routed " in err
    assert "dead letters, malformed: " in err


def test_check_online_asks_for_the_topics(kafka: Broker, topic: str, tmp_path: Path, cli: Run):
    right = _file(tmp_path, spec_text(kafka.bootstrap, [topic], tmp_path / "lake"), "right")
    assert cli("check", right, "--online")[0] == 0
    wrong = _file(tmp_path, spec_text(kafka.bootstrap, [topic, "absent"], tmp_path / "lake"), "wrong")
    code, told, _ = cli("check", wrong, "--online")
    assert code == 1
    assert (told[0]["key"], told[0]["message"].partition(":")[0]) == ("source.kafka.topics", "SourceTopicGone")
    assert "'absent'" in told[0]["message"]
    assert (told[0]["file"], told[0]["line"]) == (str(wrong), 1)
    close = _file(tmp_path, spec_text(kafka.bootstrap, [f"{topic}s"], tmp_path / "lake"), "close")
    assert f"; did you mean '{topic}'?" in cli("check", close, "--online")[1][0]["message"]
    source = {"kafka": {"brokers": kafka.bootstrap, "pattern": "^nothing-like-it$"}}
    none = _file(tmp_path, spec_text(kafka.bootstrap, [], tmp_path / "lake", source=source), "none")
    code, told, _ = cli("check", none, "--online")
    assert (code, told[0]["message"]) == (1, "no topic matches")


def test_preview_looks_at_the_end_the_start_and_since_a_time(kafka: Broker, topic: str, tmp_path: Path, cli: Run):
    middle = int(datetime.now(UTC).timestamp() * 1000)
    for partition in range(2):
        values = [
            {"value": b'{"id": %d}' % at, "timestamp": middle + at - 20} for at in range(40) if at % 2 == partition
        ]
        produce(kafka.bootstrap, topic, values, partition)
    table = {"path": f"{tmp_path}/lake/t"}
    file = _file(
        tmp_path, spec_text(kafka.bootstrap, [topic], "x", table=table, route={"by": "fixed"}, transform=[]), "look"
    )
    groups = {each.group_id for each in admin(kafka.bootstrap).list_consumer_groups().result(10).valid}

    def seen(*options: str) -> list[int]:
        code, told, err = cli("preview", file, *options)
        assert (code, err) == (0, "")
        return sorted(each["row"]["id"] for each in told if each["event"] == "row")

    assert seen() == list(range(30, 40))
    assert seen("--from", "start", "--records", "4") == [0, 1, 2, 3]
    since = datetime.fromtimestamp(middle / 1000, UTC).isoformat()
    assert seen("--from", since, "--records", "3") == [20, 21, 22]
    assert {each.group_id for each in admin(kafka.bootstrap).list_consumer_groups().result(10).valid} == groups
    assert not (tmp_path / "lake").exists()


def test_status_of_a_pipeline_at_work_and_at_rest(spark: Any, kafka: Broker, topic: str, tmp_path: Path, cli: Run):
    produce(kafka.bootstrap, topic, records(0, 30))
    lake = tmp_path / "lake"
    file, spec = (
        _file(tmp_path, spec_text(kafka.bootstrap, [topic], lake), "shop"),
        make_spec(kafka.bootstrap, [topic], lake),
    )
    with watched(spec) as running:
        running.until_read(30)
        (found,) = cli("status", file)[1]
        assert found["holder"]["host"]
        assert (found["lag"], found["lag_seconds"]) == (0, 0.0)
    produce(kafka.bootstrap, topic, records(30, 5))
    (found,) = cli("status", file)[1]
    assert (found["holder"], found["lag"], found["open_batch"]) == (None, 5, None)
    assert found["lag_seconds"] >= 0
    assert {Path(each).name for each in found["tables"]} == {"alpha", "beta", "dead_letters"}
