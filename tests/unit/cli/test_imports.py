"""What a command imports: packages take long to import, so a command imports only those that it uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("confluent_kafka", "deltalake", "duckdb", "google", "numpy", "obstore", "pandas", "pyarrow", "pydantic")
HEAVY += ("pyspark", "rich", "yaml")
CHECKED = {"pydantic", "rich", "yaml"}

# The command, and then the packages that it imported, as the last line of output.
PROGRAM = """
import sys
from headrace.cli import main
try:
    main()
finally:
    print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""

PLAIN = "pipeline: web\nsource: {kafka: {brokers: 'localhost:9092', topics: [web]}}\ntable: {path: ./lake/web}\n"
COLUMNS = f"{PLAIN[:-2]}, columns: [{{name: id, type: bigint}}, {{name: country, type: string, default: DE}}]}}\n"
EXPRESSION = f"{COLUMNS}transform: [{{set: {{country: upper(country)}}}}]\n"


def _imported(*words: str) -> set[str]:
    """The heavy packages that a command imports."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return set(HEAVY) & {*done.stdout.splitlines()[-1].split()}


@pytest.mark.parametrize(
    "words", ["--help", "--version", "version", "run --help", "table --help", "table query --help"]
)
def test_help_and_version_import_no_heavy_package(words: str):
    assert _imported(*words.split()) - {"pydantic"} == set()  # typer parses options with pydantic


@pytest.mark.parametrize(
    ("spec", "packages"),
    [
        (PLAIN, CHECKED),
        (COLUMNS, CHECKED | {"duckdb", "numpy", "pyarrow"}),
        (EXPRESSION, CHECKED | {"duckdb", "numpy", "pyarrow"}),
    ],
)
def test_check_imports_only_what_the_spec_needs(tmp_path: Path, spec: str, packages: set[str]):
    file = tmp_path / "web.yaml"
    file.write_text(spec)
    assert _imported("check", str(file)) <= packages


def test_preview_and_table_commands_import_neither_spark_nor_pandas(tmp_path: Path):
    spec, payloads = tmp_path / "web.yaml", tmp_path / "payloads.jsonl"
    spec.write_text(EXPRESSION)
    payloads.write_text('{"id": 1, "country": "de"}\n')
    absent = {"google", "pandas", "pyspark"}
    assert _imported("preview", str(spec), str(payloads)) & absent == set()
    table = str(tmp_path / "visits")
    assert _imported("table", "create", table, "--column", "id bigint") & absent == set()
    assert _imported("table", "info", table) & absent == set()
    assert _imported("table", "query", table) & absent == set()
