"""The commands of the wheel, interrupted while Python still imports them."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_INTERRUPT = """
import importlib.abc, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
sys.meta_path.insert(0, Interrupt())
sys.argv = [{command!r}, "--version"]
from {home} import {function}
{function}()
"""


@pytest.mark.parametrize("command", ["headrace", "kafka-delta-ingest"])
def test_ctrl_c_during_the_imports_prints_no_traceback(command: str) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    home, _, function = project["scripts"][command].partition(":")
    code = _INTERRUPT.format(command=command, home=home, function=function, module="headrace.cli.console")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
