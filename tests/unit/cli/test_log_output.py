"""The log: one line for each event, with time, level and the name of the event."""

from __future__ import annotations

import json
import re

import pytest

from headrace.cli.log_output import LogOutput
from headrace.cli.options import LogFormat
from services.monitored import batch, partitions, progress, retry, stopped


def test_json_has_every_key_of_the_event(capsys: pytest.CaptureFixture[str]) -> None:
    LogOutput(LogFormat.JSON)(batch(7, dead=1))
    out, err = capsys.readouterr()
    line = json.loads(err)
    assert out == ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line.pop("level") == "info"
    assert line == batch(7, dead=1)


def test_text_is_a_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    LogOutput(LogFormat.TEXT)(retry("BrokerUnreachable"))
    line = capsys.readouterr().err
    assert re.fullmatch(r"\S+Z warning retry       shop: BrokerUnreachable: no answer\. Retrying in 1\.0 s\.\n", line)


@pytest.mark.parametrize("log_format", LogFormat)
def test_control_characters_are_escaped(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    LogOutput(log_format)(stopped(message="red \x1b[31m\nforged line \x9b\u202e end"))
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert all(char.isprintable() for char in line.rstrip("\n"))
    assert " error" in line if log_format is LogFormat.TEXT else json.loads(line)["level"] == "error"


@pytest.mark.parametrize("log_format", LogFormat)
def test_figures_are_no_log(log_format: LogFormat, capsys: pytest.CaptureFixture[str]) -> None:
    log = LogOutput(log_format)
    log(progress())
    log(partitions(3))
    assert capsys.readouterr().err == ""


def test_a_log_and_json_may_be_combined(capsys: pytest.CaptureFixture[str]) -> None:
    log = LogOutput(LogFormat.TEXT, as_json=True)
    log(progress())
    log(batch(1))
    log.say("stopping")
    log.end({"event": "summary", "pipeline": "shop"}, "tables\nshop: 1 batch")
    out, err = capsys.readouterr()
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["progress", "batch", "summary"]
    assert [line.split()[2] for line in err.splitlines()] == ["batch", "message", "summary"]
    assert err.endswith("shop: 1 batch\n")
