"""`headrace check` and `headrace schema`: what they print and how they exit."""

import json

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.check import command
from headrace.cli.schema import schema
from headrace.spec import Diagnostic

GOOD = "pipeline: {name}\nsource: {{generate: {{}}}}\ntable: {{path: ./lake/{name}}}\n"


def _online(spec):
    if spec.pipeline == "broken":
        return [Diagnostic("broken.yaml", 2, 1, "source", "the broker does not answer")]
    return [Diagnostic("web.yaml", 3, 1, "table.path", "written by others, too", severity="warning")]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("web", "broken"):
        (tmp_path / f"{name}.yaml").write_text(GOOD.format(name=name))
    (tmp_path / "wrong.yaml").write_text(GOOD.format(name="wrong") + "flsh: {}\n")
    (tmp_path / "twin.yaml").write_text(GOOD.format(name="web"))
    return tmp_path


def _check(*arguments):
    app = typer.Typer()
    app.command()(command(_online))
    return CliRunner().invoke(app, list(arguments))


def test_a_right_spec_exits_0(files):
    result = _check("web.yaml")
    assert (result.exit_code, result.stdout) == (0, "web: OK\n")


def test_a_wrong_spec_exits_2_and_says_where(files):
    result = _check("web.yaml", "wrong.yaml")
    assert result.exit_code == 2
    assert result.stdout.startswith("error: wrong.yaml:4:1 flsh: unknown key; expected: ")
    assert "did you mean 'flush'?" in result.stdout
    assert result.stdout.endswith("1 error, 0 warnings\n")


def test_lines_of_json(files):
    lines = [json.loads(line) for line in _check("wrong.yaml", "--json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["diagnostic", "summary"]
    assert (lines[0]["line"], lines[0]["key"], lines[0]["suggestion"]) == (4, "flsh", "flush")
    assert lines[1] == {"event": "summary", "pipelines": [], "errors": 1, "warnings": 0}


def test_broker_and_storage_are_asked_only_on_request(files):
    assert _check("broken.yaml").exit_code == 0
    assert _check("broken.yaml", "--online").exit_code == 1
    doubtful = _check("web.yaml", "--online")
    assert (doubtful.exit_code, doubtful.stdout.splitlines()[-1]) == (0, "0 errors, 1 warning")


def test_a_wrong_spec_is_not_taken_online(files):
    result = _check("wrong.yaml", "broken.yaml", "--online")
    assert result.exit_code == 2
    assert "does not answer" not in result.stdout


def test_two_files_cannot_have_one_name(files):
    result = _check("web.yaml", "twin.yaml")
    assert result.exit_code == 2
    assert "twin.yaml:1:1 pipeline: 'web' is also used in web.yaml" in result.stdout


def test_a_file_that_is_not_there_exits_2(files):
    assert _check("none.yaml").exit_code == 2


def test_the_schema_is_printed_as_json():
    app = typer.Typer()
    app.command()(schema)
    printed = json.loads(CliRunner().invoke(app, []).stdout)
    assert printed["additionalProperties"] is False
    assert set(printed["required"]) == {"pipeline", "source", "table"}
