"""The console blocks of a README: run their commands, and compare the output."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from docs.pages import blocks


def follow(folder: Path, programs: Path = Path(sys.executable).parent) -> None:
    """Run the commands of a README in its folder, and compare their output with the output it shows."""
    commands = [
        part
        for block in blocks("console", folder / "README.md")
        for part in re.split(r"^\$ ", block.text, flags=re.M)[1:]
    ]
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}
    for command, _, expected in (part.partition("\n") for part in commands):
        ended = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )
        assert ended.returncode == 0, f"{command}\n{ended.stdout}"
        assert pattern(expected).fullmatch(shown(ended.stdout)), f"{command}\n{ended.stdout}"
    assert commands


def shown(output: str) -> str:
    """Output without blanks at the ends of lines, which nobody sees."""
    return "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())


def pattern(expected: str) -> re.Pattern[str]:
    """What an output must be: `…` alone is any lines, in a line any text; nothing is anything."""
    lines = shown(expected).splitlines() or ["…"]
    parts = [r"(?:.*\n)*" if line == "…" else re.escape(line).replace("…", ".*") + r"\n" for line in lines]
    return re.compile("".join(parts))
