"""`headrace …` in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from headrace.cli import main

Run = Callable[..., tuple[int, str, str]]


def command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command: exit code, stdout, stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["headrace", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code or 0, *capsys.readouterr())  # type: ignore[return-value]

    return run
