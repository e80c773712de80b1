"""All that a user can meet is documented: commands, options, errors, reasons, events, columns, variables."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator

import pytest

import headrace
from docs.pages import COMMANDS, ROOT, blocks, codes, rows, section, text
from headrace import errors
from headrace.delta.schema import DEAD_LETTERS
from headrace.dev.demo import TESTED_DUCKDB, demo_text
from headrace.errors import HeadraceError
from headrace.ledger.row import SCHEMA as LEDGER
from headrace.reasons import MEANING, Reason
from headrace.recovery.resume import Decision
from services.delta_scan import LOCK

SOURCES = "\n".join(path.read_text() for path in sorted((ROOT / "src" / "headrace").rglob("*.py")))


def first_codes(markdown: str) -> list[str]:
    """The words in back quotes of each row's first cell."""
    return [code for row in rows(markdown) for code in codes(row[0])]


def classes(root: type[HeadraceError]) -> Iterator[type[HeadraceError]]:
    yield root
    for each in root.__subclasses__():
        if each.__module__.startswith("headrace."):
            yield from classes(each)


@pytest.fixture(scope="module", autouse=True)
def _all_modules() -> None:
    """A class is only known once its module is."""
    for module in pkgutil.walk_packages(headrace.__path__, "headrace."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


# ---- commands ----


def test_every_command_has_its_section():
    headings = re.findall(r"^## headrace ([\w -]+)$", text("docs/reference/cli.md"), re.MULTILINE)
    assert sorted(headings) == sorted(COMMANDS)


def test_every_event_is_documented():
    sent = set(re.findall(r'"event": "(\w+)"', SOURCES))
    page = text("docs/reference/events.md")
    assert not {event for event in sent if f"`{event}`" not in page}


def test_the_events_of_every_command_are_documented():
    with_json = {name for name, command in COMMANDS.items() if any("--json" in each.opts for each in command.params)}
    table = rows(section("docs/reference/events.md", "## Events of other commands"))
    documented = {name for row in table for name in _command_names(codes(row[0]))}
    assert documented == with_json - {"run"}


def _command_names(names: list[str]) -> Iterator[str]:
    """`table query`, `sql`: the second name is of the same group."""
    group = names[0].rpartition(" ")[0] if names else ""
    for position, name in enumerate(names):
        yield f"{group} {name}" if position and group else name


def test_the_events_of_a_run_have_all_their_keys():
    keys = {
        row[0].strip("`"): set(codes(row[2])) for row in rows(section("docs/reference/events.md", "## Events of a run"))
    }
    for function, event in (("batch_event", "batch"), ("summary_event", "summary"), ("error_event", "error")):
        body = re.search(rf"def {function}\(.*?\n(?=\n\n|def |\Z)", SOURCES, re.DOTALL)
        assert body is not None
        said = set(re.findall(r'"(\w+)":', body[0])) - {"event", "pipeline"}
        assert said <= keys[event]


@pytest.mark.parametrize("page", ["docs/reference/cli.md", "docs/reference/errors.md"])
def test_exit_codes_are_those_of_the_classes(page: str):
    used = {each.exit_code for each in classes(HeadraceError)}
    documented = [int(row[0]) for row in rows(text(page)) if row[0].isdigit()]
    assert documented == sorted(used) == [0, 1, 2, 3]


# ---- errors and reasons ----


def test_every_error_is_documented_once():
    documented = [code for row in rows(_errors()) for code in codes(row[0])]
    assert sorted(documented) == sorted(each.__name__ for each in classes(HeadraceError))


def _errors() -> str:
    before, _, _ = text("docs/reference/errors.md").partition("## Dead-letter reasons")
    return before


def test_the_drawn_tree_has_every_error_of_its_module():
    drawn = set(re.findall(r"\b[A-Z]\w+[a-z]\w*\b", (errors.__doc__ or "").split("\n", 2)[2]))
    own = {each.__name__ for each in classes(HeadraceError) if each.__module__ == errors.__name__}
    assert own <= drawn


def test_the_exit_code_beside_an_error_is_its_own():
    known = {each.__name__: each.exit_code for each in classes(HeadraceError)}
    listed = {
        codes(row[0])[0]: int(row[1]) for row in rows(section("docs/reference/errors.md", "## Errors before a run"))
    }
    assert listed == {name: known[name] for name in listed}


def test_every_decision_is_named_where_its_stop_is():
    assert not [each for each in Decision if f"--{each}`" not in _errors()]


def test_every_reason_is_documented_in_the_words_of_the_code():
    listed = [(codes(row[0])[0], row[1]) for row in rows(section("docs/reference/errors.md", "## Dead-letter reasons"))]
    assert listed == [(reason.value, MEANING[reason]) for reason in Reason]


# ---- what is in the lake and around it ----


def test_the_columns_of_the_ledger():
    assert first_codes(section("docs/reference/state.md", "## The ledger")) == LEDGER.names


def test_the_columns_of_dead_letters():
    assert first_codes(section("docs/reference/state.md", "## Dead letters")) == DEAD_LETTERS.names


def test_every_variable_is_documented():
    read = set(re.findall(r"\b(?:HEADRACE|XDG)_[A-Z]+(?:_[A-Z]+)*\b", SOURCES))
    assert read <= set(first_codes(section("docs/reference/state.md", "## Environment")))


def test_every_public_name_is_documented():
    page = text("docs/reference/python.md")
    assert not [name for name in headrace.__all__ if f"headrace.{name}" not in page]


def test_the_concepts_page_lists_the_steps_of_a_batch():
    steps = re.findall(r"^\| \*\*(.+?)\*\*", section("docs/concepts.md", "## Batches"), re.MULTILINE)
    assert steps == ["read", "decode", "transform", "route", "stage", "commit", "record"]


def test_the_demo_names_the_version_of_duckdb_that_its_query_is_tested_with():
    assert f"\nduckdb=={TESTED_DUCKDB} " in LOCK.read_text()


def test_the_readme_shows_what_the_demo_prints():
    shown = next(each.text for each in blocks("", ROOT / "README.md") if each.text.startswith("Rows by table"))
    parts = re.split(r"^(?:Rows by table|Dead letters|Record counts|Query).*\n", shown, flags=re.MULTILINE)
    tables, reasons = (_counted(part) for part in parts[1:3])
    read, routed, dead, filtered, consumed, lag = (
        int(each.replace(",", "")) for each in re.findall(r"[\d,]+", parts[3])
    )
    done = {"tables": tables, "reasons": reasons, "read": read, "routed": routed, "dead": dead, "filtered": filtered}
    done |= {"consumer_count": consumed, "lag": lag, "counts_match": True}
    done |= {"spec": "headrace-demo/shop.yaml", "lake": "headrace-demo/lake"}
    done |= {"spark": "headrace-demo/spark_query.py"}
    done |= {"programs": {"headrace": ".venv/bin/headrace", "python": ".venv/bin/python"}}
    assert shown.strip() == demo_text(done).strip()
    assert read == routed + dead + filtered == consumed
    assert sum(reasons.values()) == dead
    assert sum(tables.values()) == routed + dead


def _counted(lines: str) -> dict[str, int]:
    pairs = [line.split() for line in lines.splitlines()]
    return {name: int(number.replace(",", "")) for number, name in pairs}
