"""`headrace init`: a spec made from a topic's records, which passes `check`, previews and runs."""

from __future__ import annotations

import gzip
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.cli import main
from headrace.dev.kafka import Broker
from headrace.pipeline.preview import preview_records
from headrace.validate.load import load
from services.kafka import produce

Run = Callable[..., tuple[int, str, str]]
PLAIN = [
    {"id": 1, "name": "Ann", "size": 5, "on": True},
    {"id": 2, "amount": 1.5, "size": "L", "at": {"x": [1], "y": 1}},
]
MIXED = [{"id": 1, "at": {"x": [1], "y": 1}}, {"id": 2, "at": {"x": "none", "y": 2}}]
CHANGE = {"op": "c", "ts_ms": 1, "before": None, "after": {"id": 1, "name": "Ann"}, "source": {"db": "shop"}}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def _json(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def declared(text: str) -> str:
    """The spec with its columns declared: the signs before them taken away."""
    lines = [line.replace("  # ", "  ", 1) if line.startswith("  # ") else line for line in text.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("  Columns of the sampled records"))


@pytest.mark.parametrize(
    ("values", "decode", "rows"),
    [
        (_json(*PLAIN), "decode: json", 2),
        (_json(*MIXED, *PLAIN), "decode: json", 4),
        ([*_json(*PLAIN, *PLAIN), b"{bad"], "decode: json", 4),
        (_json([PLAIN[0]], [PLAIN[0], PLAIN[1]]), "decode: {json: {rows: array}}", 3),
        ([b"\n".join(_json(*PLAIN))] * 2, "decode: {json: {rows: lines}}", 4),
        ([gzip.compress(value) for value in _json(*PLAIN)], "decode: {json: {compression: gzip}}", 2),
        (_json(CHANGE, CHANGE), "decode: {json: {envelope: debezium}}", 2),
        ([b"12", b"-3.5"], "decode: number", 2),
        ([struct.pack(">q", 7), struct.pack(">q", -1)], "decode: int64", 2),
        ([b"hello", b"w\xc3\xb6rld"], "decode: string", 2),
        ([b"\x00\x00\x00\x00\x01abcd", b"\x00\x00\x00\x00\x02xyz"], "decode: raw", 2),
        ([], "decode: json", 0),
    ],
    ids=["json", "mixed", "bad", "array", "lines", "gzip", "debezium", "number", "int64", "string", "framed", "empty"],
)
def test_the_format_is_detected_and_the_spec_is_right(
    kafka: Broker, topic: str, cli: Run, values: list[bytes], decode: str, rows: int
):
    produce(kafka.bootstrap, topic, values)
    code, out, err = cli("init", topic, "--brokers", kafka.bootstrap)
    assert (code, err) == (0, "")
    assert decode in out
    for name, text in (("spec.yaml", out), ("declared.yaml", declared(out))):
        Path(name).write_text(text)
        assert cli("check", name, "--online")[0] == 0, text
        found = preview_records(load(name)[0], None, 100)
        assert sum(len(table) for table in found.tables.values()) == rows
    assert ("--registry URL" in out) == ("raw" in decode)


def test_columns_stand_in_comments_with_the_reasons_for_text(kafka: Broker, topic: str, cli: Run):
    produce(kafka.bootstrap, topic, _json(*MIXED, *PLAIN))
    out = cli("init", topic, "--brokers", kafka.bootstrap)[1]
    assert "  #   - {name: id, type: long}" in out
    assert "  #   - {name: size, type: string, json: true}  # values are of several types: integer, string" in out
    assert "  #   - {name: at, type: string, json: true}  # values.x are of several types: array, string" in out
    assert '  #   - {name: "on", type: boolean}' in out


def test_several_topics_have_a_table_each_and_a_file_is_not_overwritten(
    kafka: Broker, new_topic: Callable[..., str], cli: Run
):
    topics = [new_topic(), new_topic()]
    for name in topics:
        produce(kafka.bootstrap, name, [*_json(*PLAIN), None])
    code, out, err = cli("init", *topics, "--brokers", kafka.bootstrap, "--output", "both.yaml", "--pipeline", "both")
    assert (code, out) == (0, "")
    assert "headrace check both.yaml --online" in err
    text = Path("both.yaml").read_text()
    assert "2 tombstones (records with a null value)" in text
    assert 'path: "./lake/{topic}"' in text
    assert cli("check", "both.yaml", "--online")[0] == 0
    code, _, err = cli("init", *topics, "--brokers", kafka.bootstrap, "--output", "both.yaml")
    assert code == 2
    assert "--force" in err


def test_a_draft_runs(spark: Any, kafka: Broker, topic: str, cli: Run):
    produce(kafka.bootstrap, topic, _json(*MIXED, *PLAIN))
    assert cli("init", topic, "--brokers", kafka.bootstrap, "-o", "web.yaml", "--table", "./lake/web")[0] == 0
    code, out, err = cli("run", "web.yaml", "--until", "latest", "--json")
    assert code == 0, err
    assert json.loads(out.splitlines()[-1])["routed"] == 4


def test_what_cannot_be_said_is_refused(cli: Run):
    code, _, err = cli("init", "orders", "--brokers", "broker.example:9092")
    assert code == 2
    assert "--tls, --plaintext" in err
