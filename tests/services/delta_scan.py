"""DuckDB's `delta_scan`, from packages: an extension fits one version of DuckDB, so both are apart from ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from services.packages import locked_packages

LOCK = Path(__file__).parent / "delta_scan.txt"


def scanned(query: str, folder: Path) -> list[list[Any]]:
    """The answer of a DuckDB of its own, whose Delta extension comes as a package."""
    packages = locked_packages(LOCK)
    [extension] = packages.glob("duckdb_extension_delta/extensions/*/delta.duckdb_extension")
    script = "import duckdb, json, sys; duckdb.sql(f\"LOAD '{sys.argv[1]}'\")\n"
    script += "print(json.dumps(duckdb.sql(sys.argv[2]).fetchall(), default=str))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(extension), query],
        env={**os.environ, "PYTHONPATH": str(packages)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[list[Any]] = json.loads(done.stdout.splitlines()[-1])  # a progress bar may come before
    return found
