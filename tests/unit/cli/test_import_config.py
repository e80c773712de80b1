"""`headrace import`: what it prints and how it exits, and other commands with files of other systems."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from headrace.cli import app
from headrace.cli.import_config import print_findings
from headrace.errors import SpecError
from headrace.importers.detect import NAMES, import_file
from headrace.validate.load import examine_text, load

CONFIGS = Path(__file__).parents[1] / "importers" / "configs"
RUNNER = CliRunner()


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the configurations, and no variables of them."""
    for file in CONFIGS.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    for name in ("AWS_REGION", "CONNECTOR_CONFIG_PATH", "DANUBE_SERVICE_URL", "CONNECTOR_NAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _import(*words: str) -> Result:
    return RUNNER.invoke(app, ["import", *words])


def test_the_spec_goes_to_stdout(configs: Path):
    result = _import("danube.toml")
    assert (result.exit_code, result.stderr) == (0, "")
    specs, diagnostics = examine_text(result.stdout, configs)
    assert diagnostics == []
    assert specs


def test_keys_that_are_not_honoured_are_listed_and_fail_with_strict(configs: Path):
    result = _import("danube-gcs.toml")
    line = "danube-gcs.toml:25: deltalake.topic_mappings[1].write_mode: the sink appends in this mode as well"
    assert f"not honoured: {line}" in result.stderr
    assert f"#   {line}" in result.stdout
    assert result.exit_code == 0
    assert _import("danube-gcs.toml", "--strict").exit_code == 1
    assert _import("danube.toml", "--strict").exit_code == 0


def test_a_stream_that_is_disabled_is_neither_imported_nor_run(configs: Path):
    text = Path("orasi.toml").read_text()
    assert "streaming_enabled = true" in text
    Path("deltalake.toml").write_text(text.replace("streaming_enabled = true", "streaming_enabled = false"))
    files = sorted(configs.iterdir())
    message = "streaming_enabled: there is no stream to import: the operation is disabled"
    for command in ("import", "check"):
        result = RUNNER.invoke(app, [command, "deltalake.toml"])
        assert (result.exit_code, message in result.output) == (2, True), command
    with pytest.raises(SpecError, match=message):
        load("deltalake.toml")  # as `headrace run` does
    assert sorted(configs.iterdir()) == files


def test_assumed_values_fail_with_strict(configs: Path):
    result = _import("rivven-minimal.yaml", "--strict")
    assert result.exit_code == 1
    assert (
        "assumed: rivven-minimal.yaml:2: sinks.events.topics: Sink 'events' must have at least one topic"
        in result.stderr
    )


def test_the_output_file_is_not_overwritten(configs: Path):
    result = _import("orasi.toml", "-o", "spec.yaml")
    assert result.stdout == ""
    assert result.stderr == "Created spec.yaml. Next: headrace check spec.yaml\n"
    assert RUNNER.invoke(app, ["check", "spec.yaml"]).stdout == "telemetry_data: OK\n"
    assert "already exists" in str(_import("orasi.toml", "-o", "spec.yaml").exception)
    assert _import("orasi.toml", "-o", "spec.yaml", "--force").exit_code == 0


def test_several_files_become_one_spec_file(configs: Path):
    result = _import("orasi.toml", "danube-routes.toml")
    specs, _ = examine_text(result.stdout, configs)
    assert [spec.pipeline for spec in specs] == ["telemetry_data", "deltalake-routes"]


def test_json_has_the_spec_and_the_findings(configs: Path):
    result = _import("rivven-minio.yaml", "danube-gcs.toml", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["event"] for event in events] == [
        "not_honoured",
        "secret",
        "secret",
        "imported",
        "not_honoured",
        "without_key",
        "imported",
        "spec",
    ]
    assert events[1]["variable"] == "EVENTS_ACCESS_KEY_ID"
    assert (events[4]["key"], events[4]["line"]) == ("deltalake.topic_mappings[1].write_mode", 25)
    assert "minioadmin" not in result.output
    assert events[-1]["text"].startswith("# Imported from rivven-minio.yaml (Rivven).")


def test_an_unknown_key_is_an_error_with_its_place(configs: Path):
    text = (configs / "danube.toml").read_text()
    (configs / "wrong.toml").write_text(text.replace("batch_size = 500", "batch_sizes = 500"))
    result = _import("wrong.toml")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = "error: wrong.toml:32:1 deltalake.topic_mappings[1].batch_sizes: unknown key; expected: "
    assert result.stderr.startswith(expected)
    assert result.stderr.endswith("; did you mean 'batch_size'?\n")


def test_a_value_that_the_spec_refuses_is_an_error_at_its_key(configs: Path):
    text = (configs / "danube.toml").read_text()
    (configs / "wrong.toml").write_text(text.replace('"/iot/sensors"', '"sensors"'))
    result = _import("wrong.toml")
    assert result.exit_code == 2
    assert "wrong.toml:28:1 deltalake.topic_mappings[1].topic (source.danube.topics[1]): 'sensors'" in result.stderr


@pytest.mark.parametrize("command", ["check", "run", "preview"])
def test_commands_take_the_file_itself(configs: Path, command: str):
    """With an error, so that none of them runs."""
    text = (configs / "danube.toml").read_text()
    (configs / "wrong.toml").write_text(text.replace("metrics_port", "metrics_ports"))
    result = RUNNER.invoke(app, [command, "wrong.toml"])
    output = result.output + str(result.exception)
    assert "wrong.toml:3:1 metrics_ports: unknown key" in output
    assert "did you mean 'metrics_port'?" in output


def test_check_shows_what_is_not_honoured_and_literal_secrets_as_warnings(configs: Path):
    result = RUNNER.invoke(app, ["check", "rivven-minio.yaml"])
    assert result.exit_code == 0
    secret = "warning: rivven-minio.yaml:15:9 sinks.events.config.s3.secret_access_key: a secret in plain text"
    assert secret in result.stdout
    assert "minioadmin" not in result.stdout


@pytest.mark.parametrize(("options", "unset"), [((), True), (("--listen",), False), (None, False)])
def test_a_run_names_the_options_that_the_file_asks_for(
    configs: Path, capsys: pytest.CaptureFixture[str], options: Any, unset: bool
):
    imported = import_file("danube.toml", (configs / "danube.toml").read_text(), {})
    assert imported is not None
    print_findings(imported, options)
    line = "not set: --listen 127.0.0.1:9090 --metrics-profile danube (from danube.toml)\n"
    assert capsys.readouterr().err == (line if unset else "")


def test_the_environment_is_imported(configs: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KAFKA_TOPIC", "events")
    monkeypatch.setenv("TABLE_LOCATION", "./lake/events")
    assert "# Imported from environment (kafka-delta-ingest)." in _import("--from-env").stdout
    monkeypatch.delenv("TABLE_LOCATION")
    monkeypatch.setenv("DELTA_TABLE_PATH", "./lake/events")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "localhost:9092")
    assert "rows: 100  # default of the delta writer" in _import("--from-env").stdout
    monkeypatch.setenv("CONNECTOR_CONFIG_PATH", "danube-routes.toml")
    monkeypatch.setenv("CONNECTOR_NAME", "users")
    result = _import("--from-env")
    assert "# Overridden by environment variables: CONNECTOR_NAME." in result.stdout
    assert "pipeline: users" in result.stdout


@pytest.mark.parametrize("command", ["run", "check"])
def test_the_variable_of_danube_names_the_file_if_there_are_no_specs(
    configs: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    (configs / "wrong sink.toml").write_text((configs / "danube.toml").read_text() + "\n[nothing]\n")
    assert "Missing argument 'SPECS'" in RUNNER.invoke(app, [command]).stderr
    monkeypatch.setenv("CONNECTOR_CONFIG_PATH", "wrong sink.toml")
    result = RUNNER.invoke(app, [command])
    assert "wrong sink.toml" in f"{result.output}{result.exception}"
    assert "nothing: unknown key" in f"{result.output}{result.exception}"
    monkeypatch.setenv("CONNECTOR_CONFIG_PATH", "nowhere.toml")
    assert RUNNER.invoke(app, ["check", "danube.toml"]).exit_code == 0


def test_a_command_line_is_imported(configs: Path):
    result = _import("--", "ingest", "events", "./lake/events", "-l", "60")
    assert "every: 1m" in result.stdout
    result = _import("--", "repair", "--table_url", "./lake/events")
    assert "headrace table repair" in result.stderr
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "There is nothing to import."),
        (("danube.toml", "--dialect", "danub"), "did you mean 'danube'?"),
        (("nothing.toml",), "Cannot read nothing.toml"),
        (("spec.yaml",), "spec.yaml is not a configuration of another system."),
    ],
)
def test_usage_errors(configs: Path, words: tuple[str, ...], message: str):
    (configs / "spec.yaml").write_text("pipeline: web\n")
    assert message in str(_import(*words).exception)


def test_stdin_is_read_with_a_dialect(configs: Path):
    text = (configs / "orasi.toml").read_text()
    result = RUNNER.invoke(app, ["import", "-", "--dialect", "orasi"], input=text)
    assert result.stdout.startswith("# Imported from - (Orasi).")


def test_the_help_names_all_dialects():
    command = get_command(app).commands["import"]
    (option,) = [each for each in command.params if each.name == "dialect"]
    assert option.metavar.split("|") == list(NAMES)


def test_a_file_of_an_unknown_system_is_an_error(configs: Path):
    (configs / "other.toml").write_text("[package]\nname = 'x'\n")
    result = _import("other.toml")
    assert result.exit_code == 2
    assert "other.toml:1:1 no known configuration; expected: the file of one of danube, rivven, orasi" in result.stderr
    assert _import("other.toml", "--dialect", "rivven").exit_code == 2
