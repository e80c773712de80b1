"""What the pages show, of a pipeline that has run."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest

from headrace.serve.console import app
from headrace.serve.console.state import StoredPipeline
from headrace.serve.monitor import Monitor
from headrace.storage.store import Store
from services.console import OPERATOR, TOKENS, VIEWER, ServedConsole, filled_pipeline, observed, served_console
from services.in_process_pipeline import Harness
from services.monitored import progress, stopped


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedConsole]:
    harness = filled_pipeline(tmp_path_factory.mktemp("console"))
    with served_console(harness, TOKENS) as console:
        yield console


def words(html: str) -> str:
    """The text of a page, in one line."""
    body = html.partition("<main")[2].partition(">")[2].partition("</main>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", body)).split())


def test_the_overview(served: ServedConsole) -> None:
    text = words(served.page("/"))
    assert re.search(r"shop running .* ago 7, 0\.7 s ", text), text
    assert "3, " in text  # the last batch


def test_an_unknown_lag_is_unknown(served: ServedConsole) -> None:
    monitor = observed(served.harness)
    monitor(progress(lag=None))
    with served_console(served.harness, TOKENS, monitor) as other:
        for path in ("/", "/pipelines/shop"):
            text = words(other.page(path))
            assert "unknown" in text
            assert "the lag is unknown: the source does not respond" in text


def test_a_failed_pipeline_says_why_and_what_to_do(served: ServedConsole) -> None:
    monitor = observed(served.harness)
    monitor(stopped())
    with served_console(served.harness, TOKENS, monitor) as other:
        text = words(other.page("/pipelines/shop"))
        assert "Unhealthy failed: SourceGap: Offsets are gone. Resume." in text
        assert "failed" in words(other.page("/"))


def test_the_path_of_a_batch_accounts_for_every_record(served: ServedConsole) -> None:
    """20 records are routed; of the second batch, six are dead letters, one is filtered and one is a row."""
    text = words(served.page("/pipelines/shop?batch=2"))
    path = text.partition("Path of batch 2")[2].partition("Dead letters by reason")[0]
    assert path.split("decode")[0].strip() == "read 8 records from 1 partition"
    assert "decode 3 records 5 dead letters" in path
    assert "transform 2 records 1 filtered record" in path
    assert "route 1 record for 1 table 1 dead letter" in path
    assert "stage 1 row" in path
    assert "record batch 2" in path


def test_the_batches_have_their_phases(served: ServedConsole) -> None:
    html = served.page("/pipelines/shop")
    assert html.count('class="phase-stage"') == 3 + 1  # one for each batch, and the legend
    assert "Recent batches" in words(html)


def test_the_spec_with_its_diagnostics(tmp_path: Path) -> None:
    harness = Harness(tmp_path, {"maintenance": {"every": "1h"}})
    harness.feed([{"kind": "a", "id": 1}])
    with served_console(harness, TOKENS) as console:
        text = words(console.page("/pipelines/shop/spec"))
    assert text.index("pipeline: shop") < text.index("source:") < text.index("maintenance:")
    assert "Generated from what the pipeline runs" in text


def test_the_file_of_a_spec_is_shown_as_it_is_written(tmp_path: Path) -> None:
    from headrace.validate.load import load

    file = tmp_path / "web.yaml"
    file.write_text("# the web shop\npipeline: web\nsource: {generate: {}}\ntable: {path: lake/events}\n")
    monitor = Monitor(load(file))
    with served_console(Harness(tmp_path), TOKENS, monitor) as console:
        assert "# the web shop" in console.page("/pipelines/web/spec")
        file.write_text(file.read_text().replace("lake/events", "lake/other"))
        html = console.page("/pipelines/web/spec")
    assert "# the web shop" not in html
    assert "its file has changed" in html
    assert "lake/other" not in html


# ---- tables ----


def test_a_table(served: ServedConsole) -> None:
    text = words(served.page(served.table_path("order")))
    assert re.search(r"Rows 12 Files 3 .*Small files 3", text), text
    assert "Version 2 " in text.partition("Schema history")[2]
    assert "+ color string" in text
    assert "+ id long NOT NULL" in text.partition("Schema history")[2]
    account = "pipeline shop, batch 3, read 1, routed 1, dead 0, filtered 0, skipped 0, orders/0 offsets 28 to 28"
    assert account in text
    assert "up to 1 MiB 3" in text
    assert "Maintenance is disabled in the spec" in text


def test_the_rows_of_any_version(served: ServedConsole) -> None:
    path = served.table_path("order")
    newest, first = words(served.page(path)), words(served.page(f"{path}?version=0"))
    assert "red" in newest.partition("Versions")[0]
    assert "red" not in first.partition("Versions")[0]
    assert "Rows of version 0" in first
    assert "VersionNotFound" in words(served.page(f"{path}?version=99"))


def test_tables_of_others_cannot_be_read(served: ServedConsole, tmp_path: Path) -> None:
    for key in ("other-12345678", "..%2f..", "order"):
        assert served.client.get(f"/pipelines/shop/tables/{key}", OPERATOR)[0] == 404
    assert served.client.get("/pipelines/other", VIEWER)[0] == 404


# ---- dead letters ----


def test_viewers_see_dead_letters_without_their_content(served: ServedConsole) -> None:
    html = served.page("/pipelines/shop/dead-letters")
    assert "6 unresolved dead letters" in html
    for secret in ("four", "yesterday", "123456789", "a/b"):
        assert secret not in html
    assert "masked" in html


def test_operators_see_the_rejected_bytes_marked(served: ServedConsole) -> None:
    html = served.page("/pipelines/shop/dead-letters", OPERATOR)
    marked = set(map(unescape, re.findall(r"<mark>(.*?)</mark>", html)))
    assert marked == {'"four"', '"yesterday"', "123456789.5", "end of the value", "\\xff", '"a/b"'}
    assert "byte 12 is not valid UTF-8" in html


def test_the_samples_of_one_reason(served: ServedConsole) -> None:
    html = served.page("/pipelines/shop/dead-letters?reason=encoding", OPERATOR)
    assert html.count("<article") == 1
    assert 'aria-current="true"' in html


def test_an_operator_downloads_the_value(served: ServedConsole) -> None:
    query = "topic=orders&partition=0&offset=22"
    status, value, headers = served.client.get(f"/pipelines/shop/dead-letters/value?{query}", OPERATOR)
    assert (status, json.loads(value)) == (200, {"kind": "order", "id": "four"})
    assert headers["content-disposition"].startswith("attachment")
    assert headers["content-type"] == "application/octet-stream"


def test_a_dry_run_of_a_changed_spec(served: ServedConsole) -> None:
    path, content = "/pipelines/shop/dead-letters/dry-run", json.loads(served.harness.spec.text)
    html = served.client.post(path, {"reason": "bad_route", "spec": json.dumps(content)}, OPERATOR)[1]
    assert "0 replayed, 1 still dead, 0 filtered" in html
    content["route"] = {"by": {"sql": "replace(kind, '/', '_')"}}
    html = served.client.post(path, {"reason": "bad_route", "spec": json.dumps(content)}, OPERATOR)[1]
    assert "1 replayed, 0 still dead, 0 filtered" in html
    assert "/lake/a_b" in html
    content["transform"] = [{"where": "id < 0"}]
    html = served.client.post(path, {"reason": "bad_route", "spec": json.dumps(content)}, OPERATOR)[1]
    assert "0 replayed, 0 still dead, 1 filtered" in html


def test_a_dry_run_says_what_is_wrong_with_a_spec(served: ServedConsole) -> None:
    path, content = "/pipelines/shop/dead-letters/dry-run", json.loads(served.harness.spec.text)
    content["transform"] = [{"set": {"x": "'${env:HOME}'"}}]
    html = served.client.post(path, {"spec": json.dumps(content)}, OPERATOR)[1]
    assert "does not follow the reference" in html
    html = served.client.post(path, {"spec": "pipeline: ["}, OPERATOR)[1]
    assert "SpecError" in html


# ---- offsets ----


def test_offsets_have_no_gap(served: ServedConsole) -> None:
    text = words(served.page("/pipelines/shop/offsets"))
    assert re.search(r"orders partition 0 .*From 0 Next offset 29", text), text
    assert "Gaps none" in text


def test_a_gap_is_red_and_in_words(tmp_path: Path) -> None:
    harness = filled_pipeline(tmp_path)
    from headrace.ledger.ledger import Ledger
    from headrace.source.ranges import Range

    ledger = Ledger.open(Store(harness.spec.state_uri), "shop")
    ledger.decide("accept-gap", {("orders", 0): 40}, (Range("orders", 0, 29, 40, "id"),))
    with served_console(harness, TOKENS) as console:
        html = console.page("/pipelines/shop/offsets")
    assert 'class="range-gap"' in html
    assert "× gap offsets 29 to 39 (11 offsets): skipped by a decision: accept-gap" in words(html)


# ---- stores that do not answer ----


def test_a_store_that_does_not_answer_is_an_error_after_a_while(
    served: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(app, "_PAGE_SECONDS", 0.2)
    monkeypatch.setattr(StoredPipeline, "ledger", lambda stored: released.wait(60))
    try:
        status, html, _ = served.client.get("/pipelines/shop/offsets", VIEWER)
    finally:
        released.set()
    assert status == 503
    assert "did not respond within" in html


def test_an_error_of_a_part_leaves_the_other_parts(tmp_path: Path) -> None:
    harness = filled_pipeline(tmp_path)
    with served_console(harness, TOKENS) as console:
        path = console.table_path("order")
        for file in (tmp_path / "lake" / "order").rglob("*.parquet"):
            file.unlink()
        text = words(console.page(path))
        for file in Path(harness.spec.state_uri, "known_tables").iterdir():
            file.write_text('{"format": 99}')
        status, html, _ = console.client.get(path, VIEWER)
        assert "UnsupportedStateFormat" in words(console.page("/pipelines/shop"))
    assert "TableDamaged" in text
    assert "Schema history Version 2" in text
    assert status == 502
    assert "UnsupportedStateFormat" in html


# ---- texts of others ----

HOSTILE = "<script>alert(1)</script>\"'‮${x}{{ 7*7 }}"


def test_hostile_texts_are_only_texts(tmp_path: Path) -> None:
    harness = filled_pipeline(
        tmp_path, table={"path": f"{tmp_path}/lake/{{route}}", "contract": {"new_field": "evolve"}}
    )
    harness.feed([{"kind": "order", "id": 100, "note": HOSTILE}, {"kind": HOSTILE, "id": 1}, HOSTILE.encode()])
    monitor = observed(harness)
    monitor(stopped(message=HOSTILE))
    with served_console(harness, TOKENS, monitor) as console:
        table = console.table_path("order")
        paths = ["/", "/pipelines/shop", table, "/pipelines/shop/dead-letters", "/editor?pipeline=shop"]
        for path in (*paths, f"/pipelines/shop/dead-letters?reason={'%3Cscript%3E'}"):
            html = console.page(path, OPERATOR)
            assert "<script>" not in html.replace('<script src="/static/console.js" defer></script>', "")
            assert "49" not in re.findall(r"\$\{x\}(\S*)", html)
        form = {"spec": "pipeline: x", "records": HOSTILE}
        assert "<script>alert" not in console.client.post("/editor", form, VIEWER)[1]


def test_no_page_has_inline_scripts_or_styles(served: ServedConsole) -> None:
    paths = ["/", "/help", "/editor", "/login", "/pipelines/shop", "/pipelines/shop/spec", "/pipelines/shop/offsets"]
    for path in (*paths, "/pipelines/shop/dead-letters", served.table_path("order"), "/pipelines/shop/audit"):
        html = served.page(path, OPERATOR)
        assert not re.findall(r"<script(?! src=)|<style|\sstyle=|\son\w+=|javascript:|https?://", html), path


# ---- secrets ----


def test_twelve_secrets_are_in_no_page_and_no_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In variables, in files, in tokens, in messages; of the spec and of the process."""
    canaries = [f"canary{uuid.uuid4().hex}" for _ in range(12)]
    names = ("PASSWORD", "S3_SECRET", "S3_SESSION", "HOT_PASSWORD", "MASK", "UNUSED", "AWS_SECRET_ACCESS_KEY")
    for name, value in zip(names, canaries, strict=False):
        monkeypatch.setenv(name, value)
    for name, value in zip(("registry", "unused"), canaries[7:], strict=False):
        (tmp_path / name).write_text(value)
        (tmp_path / name).chmod(0o600)
    tokens = {"HEADRACE_VIEWER_TOKEN": canaries[9], "HEADRACE_OPERATOR_TOKEN": canaries[10]}
    for name, value in tokens.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BROKERS_USER", canaries[11])
    options = {
        "source": {
            "kafka": {
                "brokers": "localhost:9",
                "topics": ["orders"],
                "sasl": {"mechanism": "PLAIN", "username": "ann", "password": "${env:PASSWORD}"},
            }
        },
        "storage": {
            "s3": {
                "access_key_id": "key",
                "secret_access_key": "${env:S3_SECRET}",
                "session_token": "${env:S3_SESSION}",
            }
        },
        "transform": [{"mask": {"who": {"sha256": "${env:MASK}"}}}],
        "allow_missing": ["who"],
    }
    harness = Harness(tmp_path, options)
    harness.feed([{"kind": "a", "id": 1, "who": "x"}, b"no json"])
    monitor = observed(harness)
    monitor(stopped(message=f"the store answered {canaries[1]}", hint=canaries[0]))
    answers = []
    with served_console(harness, tokens, monitor) as console:
        spec = harness.spec.text
        step = {"set": {"x": "'${env:UNUSED}'", "y": "'${file:unused}'"}}
        attack = spec.replace('"transform":[', f'"transform":[{json.dumps(step)},')
        assert attack != spec
        own = ("", "/spec", "/offsets", "/audit", "/dead-letters", "/dead-letters/dry-run", "/changes/pause")
        paths = ["/", "/help", "/login", "/editor?pipeline=shop", "/nothing", "/metrics"]
        paths += [f"/pipelines/shop{path}" for path in own]
        paths.append(console.table_path("a", canaries[9]))
        for token in (None, canaries[9], canaries[10]):
            for path in paths:
                answers.append(console.client.get(path, token, Accept="text/html"))
            for text in (spec, attack):
                form = {"pipeline": "shop", "spec": text, "records": '{"kind": "a", "id": 2, "who": "x"}'}
                answers.append(console.client.post("/editor", form, token))
                answers.append(console.client.post("/pipelines/shop/dead-letters/dry-run", form, token))
        same_site = {"Sec-Fetch-Site": "same-origin"}
        answers.append(console.client.post("/login", {"token": canaries[10]}, **same_site))
    assert len({status for status, *_ in answers}) > 3
    text = json.dumps(answers)
    assert "[redacted]" in text
    assert [number for number, canary in enumerate(canaries) if canary in text] == []
