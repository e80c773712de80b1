"""The command line without a JVM: what each command prints, where, and how it exits."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

from headrace.cli import main
from headrace.cli.output import EventOutput, fitting, sentence
from headrace.cli.run import STARTING
from headrace.delta.features import WRITER
from headrace.delta.log_writer import LogWriter
from headrace.delta.schema import to_delta
from headrace.dev.kafka import free_ports
from headrace.ledger.ledger import Ledger
from headrace.plan.accounting import Counts
from headrace.runtime import session
from headrace.source.ranges import Range
from headrace.storage.lease import Lease
from headrace.storage.store import Profile, Store
from headrace.version import VERSION
from headrace.write.intent import Intent
from services.pipelines import environment, start_cli
from services.wait import eventually

GENERATE = "pipeline: {name}\nsource: {{generate: {{records: 40, partitions: 2}}}}\ntable: {{path: ./lake/{name}}}\n"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`headrace …` in a folder with a spec `web.yaml`: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("headrace.source.kafka._TIMEOUT", 1.0)  # a broker that is down answers no sooner
    (tmp_path / "web.yaml").write_text(GENERATE.format(name="web"))

    def run(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run


def lines(text: str) -> list[dict[str, Any]]:
    """Every line of a `--json` output, which must be an object with an event."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all(each["event"] for each in found)
    return found


# ---- usage ----


def test_version_and_help(cli: Run):
    assert cli("version") == (0, f"{VERSION}\n", "")
    code, out, _ = cli("--help")
    assert code == 0
    for command in ("run", "check", "preview", "schema", "status", "resume", "demo", "setup", "version"):
        assert command in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["run"],
        ["run", "absent.yaml"],
        ["run", "web.yaml", "--until", "tomorrow"],
        ["run", "web.yaml", "web.yaml"],
        ["run", "wrong.yaml"],
        ["preview", "absent.yaml"],
        ["preview", "web.yaml", "absent.json"],
        ["preview", "web.yaml", "."],
        ["preview", "web.yaml", "--from", "yesterday"],
        ["preview", "web.yaml", "--from", "2026-01-31T12:00:00"],
        ["preview", "web.yaml", "--records", "0"],
        ["preview", "wrong.yaml", "-"],
        ["status", "absent.yaml"],
        ["resume", "web.yaml"],
        ["resume", "absent.yaml", "--accept-gap"],
        ["resume", "web.yaml", "--table-restored", "both"],
        ["setup", "nothing"],
        ["demo", "--records", "1"],
        ["check", "absent.yaml"],
        ["check", "wrong.yaml"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_exits_2_with_words_and_without_a_trace(cli: Run, arguments: list[str]):
    Path("wrong.yaml").write_text(GENERATE.format(name="wrong") + "flsh: 1\n")
    code, out, err = cli(*arguments)
    assert code == 2
    assert (out + err).strip()
    assert "Traceback" not in out + err
    assert not Path("lake").exists()


def test_a_wrong_spec_is_told_where_and_what_was_meant(cli: Run):
    Path("wrong.yaml").write_text(GENERATE.format(name="wrong") + "flsh: 1\n")
    for command in (["run", "web.yaml", "wrong.yaml"], ["status", "wrong.yaml"], ["preview", "wrong.yaml"]):
        code, out, err = cli(*command)
        assert (code, out) == (2, "")
        assert "wrong.yaml:4:1 flsh" in err
        assert "did you mean 'flush'?" in err


def test_the_schema_is_json_on_stdout(cli: Run):
    code, out, err = cli("schema")
    assert (code, err) == (0, "")
    assert {"pipeline", "source", "table"} <= json.loads(out)["properties"].keys()


# ---- preview ----


def test_preview_of_stdin_shows_rows_dead_letters_and_the_account(cli: Run):
    code, out, err = cli("preview", "web.yaml", "-", stdin=b'{"id": 1, "name": "a"}\n\n{"id": 2}\nnot json\n')
    assert (code, err) == (0, "")
    assert "/lake/web does not exist yet." in " ".join(out.split())  # wrapped where the path is long
    assert "· 2 rows" in out
    assert "malformed" in out
    assert "not json" in out
    assert out.endswith("read 3 = routed 2 + dead 1 + filtered 0\n")
    assert not Path("lake").exists()


def test_preview_as_json_is_nothing_but_lines_and_ends_with_the_account(cli: Run):
    Path("payloads").write_bytes(b'{"id": 1}\n{"id": "\xff"}\n')
    code, out, err = cli("preview", "web.yaml", "payloads", "--json")
    assert (code, err) == (0, "")
    note, columns, row, letter, summary = lines(out)
    assert (columns["event"], columns["columns"]) == ("columns", {"id": "long"})
    assert (note["event"], row["event"], row["row"]["id"]) == ("note", "row", 1)
    assert (letter["reason"], letter["value"]) == ("encoding", {"hex": b'{"id": "\xff"}'.hex()})
    assert summary == {
        "event": "summary",
        "pipeline": "web",
        "read": 2,
        "routed": 1,
        "dead": 1,
        "filtered": 0,
        "skipped": 0,
    }


def test_preview_exits_0_when_everything_is_a_dead_letter(cli: Run):
    assert cli("preview", "web.yaml", "-", stdin=b"[]\n[]")[0] == 0


def test_a_raw_file_is_one_payload(cli: Run):
    pretty = json.dumps({"id": 1, "nested": {"a": [1, 2]}}, indent=2).encode()
    Path("pretty.json").write_bytes(pretty)
    assert lines(cli("preview", "web.yaml", "pretty.json", "--raw", "--json")[1])[-1]["routed"] == 1
    assert lines(cli("preview", "web.yaml", "pretty.json", "--json")[1])[-1]["routed"] == 0


def test_preview_of_the_source_itself(cli: Run):
    end = lines(cli("preview", "web.yaml", "--records", "5", "--json")[1])
    start = lines(cli("preview", "web.yaml", "--records", "5", "--from", "start", "--json")[1])
    assert end[-1]["read"] == start[-1]["read"] == 5
    assert end != start


def test_every_pipeline_of_a_file_sees_the_same_payloads(cli: Run):
    Path("two.yaml").write_text(GENERATE.format(name="one") + "---\n" + GENERATE.format(name="two"))
    found = lines(cli("preview", "two.yaml", "-", "--json", stdin=b'{"id": 1}')[1])
    assert [(each["pipeline"], each["read"]) for each in found if each["event"] == "summary"] == [
        ("one", 1),
        ("two", 1),
    ]


def test_a_preview_shows_nulls_as_sql_does(cli: Run):
    code, out, _ = cli("preview", "web.yaml", "-", stdin=b'{"id": 1, "name": "x"}\n{"id": 2}\n')
    assert code == 0
    assert re.findall(r"^  name +(.*)$", out, re.MULTILINE) == ["x", "NULL"]


def test_an_existing_table_lends_its_columns(cli: Run):
    write_deltalake("lake/web", pa.table({"id": pa.array([1], pa.int32()), "name": pa.array(["x"])}))
    code, out, _ = cli("preview", "web.yaml", "-", "--json", stdin=b'{"id": 5000000000}\n{"id": 5}')
    note, row, letter, _ = lines(out)
    assert (code, letter["reason"]) == (0, "overflow")
    assert note["text"].endswith("exists, at version 0.")
    assert row["row"] == {"id": 5, "name": None}
    assert DeltaTable("lake/web").version() == 0


def test_control_characters_of_a_producer_never_reach_the_terminal(cli: Run):
    evil = {"a\x1b[2J": "\x1b]0;x\x07[bold]", "b": {"c": "\x9b\u202e\r"}, "d": "[red]x[/red]", "e": "é😀"}
    code, out, err = cli("preview", "web.yaml", "-", stdin=json.dumps(evil).encode() + b'\n{"x": "\x1b[31m"')
    assert (code, err) == (0, "")
    assert not set("\x1b\x07\x9b\u202e\r") & set(out)
    assert "[red]x[/red]" in out
    assert "é😀" in out
    assert r"\x1b]0;x\x07[bold]" in out


def test_long_values_are_cut_to_the_width_of_the_terminal(cli: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "40")
    payload = json.dumps({"id": "x" * 500, "wide_column_name": 1}).encode()
    out = cli("preview", "web.yaml", "-", stdin=payload)[1]
    assert "x" * 500 in out  # a pipe has no width
    monkeypatch.setenv("FORCE_COLOR", "1")  # this is a terminal
    out = cli("preview", "web.yaml", "-", stdin=payload)[1]
    assert max(len(line) for line in out.splitlines() if line.startswith("  ")) == 40


def test_preview_starts_no_java_and_imports_no_spark(cli: Run):
    code = (
        "import atexit, sys, psutil\n"
        "def look():\n"
        "    assert not [n for n in sys.modules if n.partition('.')[0] in ('pyspark', 'py4j')]\n"
        "    assert not psutil.Process().children(recursive=True)\n"
        "    sys.stderr.write('clean')\n"
        "atexit.register(look)\n"
        "sys.argv = ['headrace', 'preview', 'web.yaml', '--json']\n"
        "from headrace.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "clean")


@pytest.mark.parametrize(
    ("name", "text"), [("bad.toml", "[sink\n"), ("bad.yaml", "pipeline: [\n"), ("bad.yaml", "x: 1\n")]
)
@pytest.mark.parametrize("more", [(), ("--until", "latest")])
def test_a_file_that_is_no_spec_fails_before_spark_is_announced(cli: Run, name: str, text: str, more: tuple[str, ...]):
    Path(name).write_text(text)
    users = _users_of_spark()
    code, out, err = cli("run", name, *more)
    assert (code, out, "starting spark" in err.lower()) == (2, "", False)
    assert err.startswith(f"headrace: SpecError: {name}:")
    assert _users_of_spark() == users
    assert not [thread for thread in threading.enumerate() if thread.name == "start of Spark" and thread.is_alive()]


def test_spark_does_not_stay_behind_an_error_before_the_start(cli: Run):
    """A continuous run starts Spark at once, before the specs are known to run together."""
    users = _users_of_spark()
    assert cli("run", "web.yaml", "web.yaml")[0] == 2
    starting = [thread for thread in threading.enumerate() if thread.name == "start of Spark"]
    for thread in starting:
        thread.join(60)
    assert _users_of_spark() == users


def _users_of_spark() -> int:
    """Users of the session of this process: the fixture `spark` of an earlier test may be one."""
    return session._shared.users if session._shared else 0


# ---- status and resume ----


def _state(name: str = "web") -> Store:
    return Store(str(Path(f"lake/_headrace/{name}").absolute()), Profile())


def _booked(batch: int = 1, book: bool = True) -> Intent:
    ledger = Ledger.open(_state(), "web")
    counts = Counts(read=10, routed=8, dead=1, filtered=1, reasons={"malformed": 1})
    ranges = (Range("generated", 0, 0, 10, "seed-1"),)
    intent = Intent("web", batch, ranges, (), counts, datetime.now(UTC), "t", "{}", "d", VERSION)
    ledger.begin(intent)
    if book:
        ledger.record(intent, (), datetime.now(UTC))
    return intent


def test_status_of_a_pipeline_that_never_ran_changes_nothing(cli: Run):
    code, out, err = cli("status", "web.yaml")
    assert (code, err) == (0, "")
    assert "web: not running; no batches yet" in out
    assert "lag: 40" in out
    assert not Path("lake").exists()


def test_status_of_a_stopped_pipeline(cli: Run):
    _booked()
    (found,) = lines(cli("status", "web.yaml", "--json")[1])
    assert (found["holder"], found["batch"], found["open_batch"], found["lag"]) == (None, 1, None, 30)
    (row,) = found["batches"]
    assert (row["read"], row["routed"], row["dead"], row["filtered"]) == (10, 8, 1, 1)
    assert "web: not running; last batch 1" in cli("status", "web.yaml")[1]


def test_status_of_a_running_pipeline_names_its_holder(cli: Run):
    with Lease.take(_state()):
        (found,) = lines(cli("status", "web.yaml", "--json")[1])
        assert found["holder"]["pid"] == os.getpid()
        assert f"as process {os.getpid()}" in cli("status", "web.yaml")[1]
    assert "not running" in cli("status", "web.yaml")[1]


def test_status_tells_of_a_batch_that_was_open_and_not_recorded(cli: Run):
    _booked(book=False)
    assert lines(cli("status", "web.yaml", "--json")[1])[0]["open_batch"] == 1
    assert "batch 1 is unfinished; the next run completes it first" in cli("status", "web.yaml")[1]


def test_status_answers_when_the_broker_does_not(cli: Run):
    Path("far.yaml").write_text(_kafka(next(iter(free_ports()))))
    (found,) = lines(cli("status", "far.yaml", "--json")[1])
    assert (found["lag"], found["lag_seconds"]) == (None, None)


def test_resume_without_a_cause_says_so_and_changes_nothing(cli: Run):
    _booked()
    code, out, _ = cli("resume", "web.yaml", "--accept-gap", "--accept-replaced-topic", "--accept-new-table")
    assert (code, out) == (0, "web: nothing to accept; nothing was changed\n")
    assert Ledger.open(_state(), "web").batch == 1


def test_resume_of_a_replaced_topic_is_recorded(cli: Run):
    _booked()
    Path("web.yaml").write_text(GENERATE.format(name="web").replace("records: 40", "records: 40, seed: 2"))
    code, out, _ = cli("resume", "web.yaml", "--accept-replaced-topic", "--json")
    assert (code, lines(out)[0]["pipeline"]) == (0, "web")
    *_, second = lines(cli("status", "web.yaml", "--json")[1])[0]["batches"]
    assert "replaced topic accepted" in second["note"]
    assert [(each["topic_id"], each["from"], each["until"]) for each in second["ranges"]] == [("seed-2", 0, 0)] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_resume_says_that_it_waits_and_ends_when_asked(cli: Run, number: int):
    away = "state: s3://away/web\nstorage: {s3: {endpoint: 'http://127.0.0.1:1', allow_http: true, access_key_id: a, "
    Path("web.yaml").write_text(f"{GENERATE.format(name='web')}{away}secret_access_key: '${{env:SECRET}}'}}}}\n")
    with start_cli(["resume", "web.yaml", "--accept-gap"], {"SECRET": "s"}) as running:
        waiting = eventually(lambda: running.of("retry"), 60, running.said)[0]
        assert (waiting["pipeline"], waiting["error"]) == ("web", "StorageUnreachable")
        assert running.stop(number) == 1
    assert "web: unresolved." in "".join(running.errors)
    assert not running.of("decision")


def test_whoever_runs_elsewhere_is_named_and_exits_3(cli: Run):
    with Lease.take(_state()):
        for command in (["resume", "web.yaml", "--accept-gap"], ["run", "web.yaml", "--until", "latest"]):
            code, out, err = cli(*command)
            assert (code, out) == (3, "")
            assert "LeaseHeld" in err
            assert str(os.getpid()) in err
        Path("two.yaml").write_text(GENERATE.format(name="two"))
        assert cli("run", "two.yaml", "web.yaml", "--until", "latest")[0] == 3
    assert not Path("lake/two").exists()


# ---- check --online ----


def _kafka(port: int) -> str:
    brokers = f"127.0.0.1:{port}"
    return f"pipeline: far\nsource: {{kafka: {{brokers: '{brokers}', topics: [t]}}}}\ntable: {{path: ./lake/far}}\n"


def test_check_online_of_a_right_spec(cli: Run):
    assert cli("check", "web.yaml", "--online") == (0, "web: OK\n", "")


def test_check_online_names_a_broker_that_is_down(cli: Run):
    Path("far.yaml").write_text(_kafka(next(iter(free_ports()))))
    code, out, _ = cli("check", "far.yaml", "--online", "--json")
    finding, summary = lines(out)
    assert (code, finding["key"], summary["errors"]) == (1, "source.kafka.brokers", 1)
    assert (finding["file"], finding["line"], finding["column"]) == ("far.yaml", 2, 27)
    assert finding["message"].startswith("BrokerUnreachable: ")


@pytest.mark.parametrize(
    ("more", "key", "said"),
    [
        (
            ", columns: [{name: id, type: string}]",
            "table",
            "column 'id' is long in the table, but string in the spec",
        ),
        (", partition_by: [day]", "table", "'day'"),
    ],
)
def test_check_online_compares_the_spec_with_the_table(cli: Run, more: str, key: str, said: str):
    write_deltalake("lake/web", pa.table({"id": [1]}))
    Path("web.yaml").write_text(GENERATE.format(name="web").replace("/web}", "/web" + more + "}"))
    code, out, _ = cli("check", "web.yaml", "--online", "--json")
    assert (code, lines(out)[0]["key"]) == (1, key)
    assert said in lines(out)[0]["message"]


LINES = """\
pipeline: web
source: {generate: {}}
table:
  path: ./lake/web
  columns: [{name: id, type: string}]
branches:
  - name: raw
    table:
      path: ./lake/raw
      create: never
"""


def test_check_online_says_on_which_line_a_table_disagrees(cli: Run):
    """Of the pipeline and of its branch, each at its own key, although the first one stops its question."""
    write_deltalake("lake/web", pa.table({"id": [1]}))
    Path("web.yaml").write_text(LINES)
    code, out, _ = cli("check", "web.yaml", "--online", "--json")
    found = [(each["file"], each["line"], each["key"]) for each in lines(out) if each["event"] == "diagnostic"]
    assert code == 1
    assert found == [("web.yaml", 4, "table"), ("web.yaml", 9, "branches[0].table.path")]


def test_check_online_names_a_key_for_a_state_that_the_spec_does_not_write(cli: Run):
    """Where the state is follows from the table's path, so that is the line."""
    Path("lake").write_text("a file where a folder should be")
    Path("web.yaml").write_text("pipeline: web\nsource: {generate: {}}\ntable:\n  create: auto\n  path: ./lake/web\n")
    _, out, _ = cli("check", "web.yaml", "--online", "--json")
    assert {each["line"] for each in lines(out) if each["event"] == "diagnostic"} <= {4, 5}
    assert any((each["key"], each["line"]) == ("storage", 5) for each in lines(out) if each["event"] == "diagnostic")


def test_check_online_asks_for_a_table_that_must_be_there(cli: Run):
    Path("web.yaml").write_text(GENERATE.format(name="web").replace("/web}", "/web, create: never}"))
    code, out, _ = cli("check", "web.yaml", "--online")
    assert code == 1
    assert "no table at" in out


def test_check_online_warns_of_a_table_that_spark_must_append_to(cli: Run):
    write_deltalake("lake/web", pa.table({"id": [1]}), configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable("lake/web").alter.add_constraint({"positive": "id > 0"})
    code, out, _ = cli("check", "web.yaml", "--online")
    assert code == 0
    assert out.startswith("warning: ")
    assert "appended by Spark" in out


@pytest.mark.parametrize("constraint", [{"delta.constraints.positive": "id > 0"}, {}], ids=["constraint", "plain"])
def test_check_online_warns_of_a_table_that_only_spark_may_merge_into(cli: Run, constraint: dict[str, str]):
    schema = to_delta(pa.schema([pa.field("id", pa.int64()), pa.field("seq", pa.int64())]))
    tail = LogWriter.open(Store(str(Path("lake/web").absolute())), blocker=lambda _: None)
    tail.create(schema, (), {WRITER: "spark", **constraint}, "id", (), {}, {})
    merging = ", mode: upsert, merge: {keys: [id], sequence_by: seq}, source: false}"
    Path("web.yaml").write_text(GENERATE.format(name="web").replace("/web}", "/web" + merging))
    code, out, _ = cli("check", "web.yaml", "--online")
    assert code == 0, out
    assert ("is merged by Spark, which is slower" in out) == bool(constraint)


def test_check_online_says_what_to_do_about_an_error(cli: Run):
    source = "files: {path: ./landing}"
    Path("web.yaml").write_text(GENERATE.format(name="web").replace("generate: {records: 40, partitions: 2}", source))
    assert source in Path("web.yaml").read_text()
    code, out, _ = cli("check", "web.yaml", "--online")
    assert code == 1
    assert "/landing does not exist. Create it, or correct source.files.path, then run again.\n" in out
    assert "expected" not in out


def test_a_wrong_end_of_a_run_is_refused_before_anything_starts(cli: Run):
    code, out, err = cli("run", "web.yaml", "--until", "lates")
    assert (code, out) == (2, "")
    assert err == "headrace: UsageError: --until: invalid value: 'lates'. Use latest, or omit it to run continuously.\n"


def test_init_names_the_options_of_an_invalid_spec(cli: Run):
    code, _, err = cli("init", "orders", "--brokers", "localhost")
    assert code == 2
    assert "UsageError: source.kafka.brokers: 'localhost'; expected: host:port" in err
    assert "Options set these keys: --brokers, " in err


def test_check_online_finds_a_state_folder_it_cannot_write(cli: Run):
    Path("lake").write_text("not a folder")
    code, out, _ = cli("check", "web.yaml", "--online", "--json")
    assert code == 1
    assert lines(out)[-1]["errors"] >= 1


# ---- what a run shows ----

EVENTS: list[dict[str, Any]] = [
    {"event": "setup", "pipeline": "orders", "text": "starting [bold]"},
    {"event": "recover", "pipeline": "orders", "batch": 6},
    {
        "event": "progress",
        "pipeline": "orders",
        "lag": 123456,
        "lag_seconds": 12.34,
        "batch": 7,
        "batch_records": 500_000,
        "batch_read": 400_000,
        "records_per_second": 82_000,
        "records_left": 600_000,
        "seconds_left": 7.3,
    },
    {
        "event": "batch",
        "pipeline": "orders",
        "batch": 7,
        "read": 1_234_567,
        "routed": 1_234_500,
        "dead": 60,
        "filtered": 7,
        "skipped": 0,
        "tables": {"/lake/a": {}, "/lake/b": {}},
        "seconds": 1.5,
    },
    {"event": "retry", "pipeline": "orders", "error": "BrokerUnreachable", "seconds": 2, "message": "no answer"},
    {"event": "error", "pipeline": "orders", "error": "SourceGap", "message": "Offsets are gone.", "hint": "Decide."},
    {"event": "source_file", "pipeline": "orders", "state": "changed", "path": "a.csv", "message": "Changed."},
]


def test_events_are_sentences():
    assert [sentence(event) for event in EVENTS] == [
        "orders: starting [bold]",
        "orders: completing unfinished batch 6",
        "orders: progress",
        "orders: batch 7: read 1,234,567 = routed 1,234,500 + dead 60 + filtered 7; 2 tables, 1.50 s",
        "orders: BrokerUnreachable: no answer. Retrying in 2 s.",
        "orders: stopped: SourceGap. Offsets are gone. Decide.",
        "orders: a.csv: Changed.",
    ]


@pytest.mark.parametrize("width", [200, 100, 80, 60, 50])
def test_the_live_line_stays_one_whole_line_per_pipeline(width: int):
    show = EventOutput(False)
    show.console = Console(file=io.StringIO(), width=width, force_terminal=True, highlight=False)
    for name in ("orders", "web"):
        for event in EVENTS[2:4]:
            show({**event, "pipeline": name})
    screen = io.StringIO()
    Console(file=screen, width=width, highlight=False).print(show._table())
    head, *rest = screen.getvalue().rstrip().splitlines()
    assert len(rest) == 2
    assert "…" not in screen.getvalue()
    assert head.split()[:2] == ["pipeline", "state"]
    assert all("123,456 (12.3 s)" in line and "running" in line for line in rest)
    assert ("rows/s" in head) == (width >= 100)
    assert ("progress" in head) == (width >= 80)
    assert all("████░░░░░░ 40%, 7 s left" in line for line in rest) == (width >= 80)


def _held(since: datetime) -> dict[str, Any]:
    transaction = {"records": 1200, "since": since.isoformat()}
    return {**EVENTS[2], "lag": 0, "lag_reason": "open_transaction", "open_transaction": transaction}


def test_a_hanging_transaction_is_reported_once_and_stays_in_the_live_line():
    show = EventOutput(False)
    show.console = Console(file=(screen := io.StringIO()), width=200, highlight=False)
    show(_held(datetime.now(UTC)))
    assert (screen.getvalue(), show.lines["orders"].state) == ("", "running")
    since = datetime.now(UTC) - timedelta(minutes=1)
    for _ in range(2):
        show(_held(since))
    told = f"orders: an open transaction since {since.isoformat()} blocks 1,200 records\n"
    assert (screen.getvalue(), show.lines["orders"].state) == (told, "waiting: open transaction")
    show(EVENTS[2])
    assert show.lines["orders"].state == "running"


def test_titles_leave_in_a_fixed_order():
    row = dict.fromkeys(("pipeline", "state", "rows/s", "read", "dead", "tables", "lag", "last commit"), "x" * 8)
    assert len(fitting([row], 1000)) == 8
    assert fitting([row], 1) == ["pipeline", "state", "lag"]
    assert fitting([], 80) == []


def test_json_events_go_to_stdout_and_nothing_else_does(capsys: pytest.CaptureFixture[str]):
    with EventOutput(True) as show:
        for event in EVENTS:
            show(event)
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == EVENTS
    assert err == ""


def test_people_read_on_stderr(capsys: pytest.CaptureFixture[str]):
    with EventOutput(False) as show:
        for event in EVENTS:
            show(event)
    out, err = capsys.readouterr()
    assert out == ""
    assert "starting [bold]" in err
    assert "progress" not in err


def test_pauses_and_restarts_are_printed_and_figures_are_not(capsys: pytest.CaptureFixture[str]):
    states = [("starting", None), ("running", None), ("paused", None), ("running", None), ("restarting", "SparkExited")]
    states += [("starting", None), ("running", None), ("stopped", "drained")]
    with EventOutput(False) as show:
        show({"event": "table_files", "pipeline": "orders", "table": "/lake/a", "small_files": 2, "small_bytes": 10})
        for state, reason in states:
            show({"event": "state", "pipeline": "orders", "state": state, "reason": reason})
    expected = ["orders: paused", "orders: running", "orders: restarting: SparkExited", "orders: running"]
    assert capsys.readouterr().err.splitlines() == expected


def test_downloads_and_a_second_start_of_spark_are_printed(capsys: pytest.CaptureFixture[str]):
    with EventOutput(False, announced=STARTING) as show:
        for text in (STARTING, "Downloading 46 jars", STARTING):
            show({"event": "setup", "pipeline": "orders", "text": text})
    assert capsys.readouterr().err.splitlines() == ["orders: Downloading 46 jars", "orders: Starting Spark…"]


def test_a_preview_of_nothing_says_how_to_get_records(cli: Run, tmp_path: Path) -> None:
    spec = "pipeline: web\nsource: {http: {topics: [orders]}}\ntable: {path: ./lake/orders}\n"
    (tmp_path / "web.yaml").write_text(spec)
    code, out, _ = cli("preview", "web.yaml")
    assert code == 0
    assert "Nothing was received yet: run `headrace receive` or `headrace run`" in out
    _, out, _ = cli("preview", "web.yaml", "--from", "2026-01-31T12:00:00Z")
    assert "no records since 2026-01-31T12:00:00Z" in out
