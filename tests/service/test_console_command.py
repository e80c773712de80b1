"""`headrace console` as a command: the pages of pipelines that do not run, from their state."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from services.console import OPERATOR, TOKENS, VIEWER, filled_pipeline
from services.endpoint_client import Client
from services.pipelines import Running, run_cli, start_cli
from services.wait import eventually


def _client(running: Running) -> Client:
    return Client(eventually(lambda: running.of("endpoint"), 120, running.said)[0]["address"])


def test_a_directory_of_specs(tmp_path: Path) -> None:
    canary = f"canary-{uuid.uuid4().hex}"
    sasl = {"mechanism": "PLAIN", "username": "ann", "password": "${env:KAFKA_PASSWORD}"}
    kafka = {"brokers": "localhost:9", "topics": ["orders"], "sasl": sasl}
    harness = filled_pipeline(tmp_path)
    harness.options["source"] = {"kafka": kafka}
    content = json.loads(filled_pipeline(tmp_path / "other").spec.text)
    specs = tmp_path / "specs"
    specs.mkdir()
    table = {**harness.options["table"]}
    shop = {**content, "source": {"kafka": kafka}, "table": table, "state": f"{tmp_path}/lake/_headrace/shop"}
    (specs / "shop.yaml").write_text(json.dumps(shop))
    (specs / "web.yaml").write_text("pipeline: web\nsource: {generate: {}}\ntable: {path: lake/events}\n")
    with start_cli(["console", specs], {**TOKENS, "KAFKA_PASSWORD": canary}) as running:
        client = _client(running)
        assert client.get("/live")[0] == 200
        assert client.get("/")[0] == 401
        answers = [client.get("/", VIEWER)]
        eventually(lambda: "no process holds its lease" in client.get("/pipelines/shop", VIEWER)[1], 120, running.said)
        for path in ("", "/spec", "/offsets", "/dead-letters", "/audit"):
            answers.append(client.get(f"/pipelines/shop{path}", OPERATOR))
        answers.append(client.get("/pipelines/web", VIEWER))
        assert {status for status, *_ in answers} == {200}
        assert "6 unresolved dead letters" in answers[4][1]
        status, html, _ = client.post("/pipelines/shop/changes/pause", {"confirm": "yes"}, OPERATOR)
        assert status == 409
        assert "changes nothing" in html
        assert running.stop() == 0
    output = json.dumps([answers, running.events, running.errors])
    assert [each for each in (canary, VIEWER, OPERATOR) if each in output] == []


def test_an_address_that_others_reach_is_refused_without_protection(tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text("pipeline: web\nsource: {generate: {}}\ntable: {path: lake/events}\n")
    refusal = run_cli(["console", file, "--listen", "0.0.0.0:0"])
    assert refusal.returncode == 2
    assert "no token is set" in refusal.stderr
