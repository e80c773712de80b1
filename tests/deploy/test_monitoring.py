"""Alert rules and dashboard: checked by Prometheus' own tool, and against the metrics of the reference."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.pages import codes, rows, text
from services.programs import installed_promtool, promtool

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS, TESTS = DEPLOY / "prometheus/alerts.yaml", DEPLOY / "prometheus/alerts.test.yaml"
DASHBOARD = json.loads((DEPLOY / "grafana/headrace.json").read_text())
# In `make test`, the tool is used where it is; `make test-all` downloads it.
needs_promtool = [] if installed_promtool() else [pytest.mark.slow]
_SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def _metrics() -> dict[str, set[str]]:
    """Metrics of the reference as series, with their labels."""
    table = [row for row in rows(text("docs/reference/metrics.md")) if row[0].startswith("`headrace_")]
    series = {
        codes(name)[0] + suffix: {*codes(labels)} | ({"le"} if suffix == "_bucket" else set())
        for name, kind, labels, _ in table
        for suffix in _SUFFIXES[kind]
    }
    process = {"headrace_info", "headrace_start_time_seconds", "headrace_memory_bytes", "headrace_spark_running"}
    return {
        name: labels | {"instance", "job"} | (set() if name in process else {"pipeline"})
        for name, labels in series.items()
    }


def _rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def _panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def _expressions() -> Iterator[tuple[str, str]]:
    """Expressions of rules and panels, with their names."""
    for rule in _rules():
        yield rule["alert"], rule["expr"]
    for panel in _panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


@pytest.mark.parametrize(("name", "expression"), [*_expressions()])
def test_metrics_and_labels_are_in_the_reference(name: str, expression: str) -> None:
    known = _metrics()
    used = set(re.findall(r"\bheadrace_\w+", expression))
    assert used or expression.startswith("up{")
    assert used - known.keys() == set(), name
    for metric, matchers in re.findall(r"\b(headrace_\w+)\{([^}]*)\}", expression):
        assert {*re.findall(r"(\w+)\s*[=!]", matchers)} <= known[metric], metric
    labels = set().union(*(known[metric] for metric in used)) | {"job", "instance"}
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    assert {label.strip() for group in grouped for label in group.split(",")} <= labels


def test_legends_use_labels_of_their_metrics() -> None:
    known = _metrics()
    for panel in _panels():
        for target in panel["targets"]:
            labels = set().union(*(known[each] for each in re.findall(r"\bheadrace_\w+", target["expr"])))
            assert {*re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= labels, panel["title"]


@pytest.mark.parametrize("tool", [pytest.param("promtool", marks=needs_promtool)])
def test_promtool_accepts_the_rules_and_their_tests_hold(tool: str) -> None:
    program = str(promtool())
    assert f"{len(_rules())} rules found" in _out([program, "check", "rules", ALERTS.name])
    assert "SUCCESS" in _out([program, "test", "rules", TESTS.name])
    assert "SUCCESS" in _out([program, "check", "config", "--syntax-only", "prometheus.yaml"])


@pytest.mark.slow
def test_promtool_reads_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    """As recording rules, with the variables of Grafana replaced by values."""
    values = {"$__rate_interval": "1m", "$pipeline": ".*", "$instance": ".*"}
    recorded = []
    for panel in _panels():
        for number, target in enumerate(panel["targets"]):
            expression = target["expr"]
            for variable, value in values.items():
                expression = expression.replace(variable, value)
            recorded.append({"record": f"panel:{panel['id']}:{number}", "expr": expression})
    rules = tmp_path / "panels.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in _out([str(promtool()), "check", "rules", str(rules)])


def test_every_alert_is_tested_both_ways() -> None:
    tests = yaml.safe_load(TESTS.read_text())["tests"]
    checks = [check for test in tests for check in test["alert_rule_test"]]
    alerts = {rule["alert"] for rule in _rules()}
    assert {check["alertname"] for check in checks if check["exp_alerts"]} == alerts
    assert {check["alertname"] for check in checks if not check["exp_alerts"]} == alerts


def test_every_alert_says_what_to_do() -> None:
    for rule in _rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"].keys() == {"summary", "action"}
        for page in re.findall(r"docs/[\w/.-]+", rule["annotations"]["action"]):
            assert (DEPLOY.parent / page.rstrip(".")).exists(), page


def test_panels_do_not_overlap_and_use_the_data_source_of_the_dashboard() -> None:
    cells = [
        (column, line)
        for panel in DASHBOARD["panels"]
        for column in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for line in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len({*cells})
    assert max(column for column, _ in cells) == 23
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    used = {part["datasource"]["uid"] for panel in _panels() for part in (panel, *panel["targets"])}
    assert used == {"${datasource}"}


def _out(command: list[str]) -> str:
    done = subprocess.run(command, cwd=ALERTS.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
