"""The directions of import, and what the package exports: the house stays as it is drawn."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headrace

ROOT = Path(headrace.__file__).parent

# From the top floor down; a module may import from its own floor and those below.
FLOORS = [
    {"cli", "connector"},
    {"demonstration", "decisions", "runner", "online", "standing", "look", "replay", "tryout", "table", "maintain"},
    {"pipeline", "stream", "floor", "breaker", "rebuild", "refill", "reingest", "mend"},
    {"doubles", "absent"},
    {"catalog", "entries", "task", "judge", "generations"},
    {"plan", "fit", "shape", "explode", "fates", "letters", "retention", "expectations", "metadata", "changes", "keys"},
    {"ledger", "lease", "commit", "retry"},
    {"read", "decode", "transform", "route", "stage", "tables"},
    {"storage", "runtime", "duck", "faults"},
    {"spec"},
    {"batch", "summary", "errors", "reasons", "version", "__init__"},
]
# Known steps up, each for one reason.
ALLOWED = {
    ("read", "ledger"),  # verify holds the source against the ledger
    ("spec", "transform"),  # a spec's expressions are checked where it is read
    ("spec", "route"),
    ("spec", "decode"),  # a declared default is judged by the decoder that will use it
    ("spec", "shape"),
    ("spec", "tables"),  # type names are spelled in one place
    ("__init__", "letters"),
    ("__init__", "plan"),
    ("__init__", "replay"),
    ("__init__", "runner"),
    ("__init__", "spec"),
    ("__init__", "table"),
}
SPARK = {"read", "commit", "runtime", "pipeline", "stream", "task", "runner", "table"}


def _imports() -> list[tuple[str, str, str]]:
    """(file, importing part, imported name) of every import in the package."""
    found = []
    for file in ROOT.rglob("*.py"):
        part = file.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            names = [item.name for item in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
                if node.module == "headrace":
                    names = [f"headrace.{item.name}" for item in node.names]
            found += [(str(file.relative_to(ROOT)), part, name) for name in names]
    return found


def _floor(part: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if part in floor)


def test_every_part_has_its_floor():
    parts = {path.name.removesuffix(".py") for path in ROOT.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert parts - {"__pycache__", "py.typed"} == set().union(*FLOORS)


def test_imports_go_down():
    up = {
        (file, part, name)
        for file, part, name in _imports()
        if name.startswith("headrace.")
        and _floor(name.split(".")[1]) < _floor(part)
        and (part, name.split(".")[1]) not in ALLOWED
    }
    assert not up


def test_only_the_parts_around_spark_import_it():
    assert {part for _, part, name in _imports() if name.split(".")[0] == "pyspark"} <= SPARK


def test_the_exported_names_are_there():
    assert headrace.__all__ == sorted(headrace.__all__, key=lambda name: (not name[0].isupper(), name))
    for name in headrace.__all__:
        assert getattr(headrace, name) is not None
    with pytest.raises(AttributeError):
        _ = headrace.nothing


def test_importing_headrace_imports_neither_spark_nor_duckdb():
    code = "import sys, headrace; print([name for name in ('pyspark', 'duckdb', 'pyarrow') if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_datasets_of_delta_rs_are_read_by_a_file_system_of_arrow() -> None:
    """Its own is Python called from Arrow's threads: one of them that is at it when Python ends aborts the process."""
    calls = [
        (str(file.relative_to(ROOT)), {word.arg for word in node.keywords})
        for file in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("to_pyarrow_dataset", "to_pyarrow_table")
    ]
    assert calls
    assert [file for file, given in calls if "filesystem" not in given] == []
