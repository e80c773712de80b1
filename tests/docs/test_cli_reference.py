"""The option tables of the CLI reference are those of the help.

To rewrite them: `cd tests; python -m docs.test_cli_reference`.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from docs.pages import COMMANDS, DOCS, section

PAGE = DOCS / "reference" / "cli.md"
_HEAD = "| argument or option | description |\n|---|---|\n"
_TABLE = re.compile(re.escape(_HEAD) + r"(?:\|[^\n]*\n)*")


def option_table(command: str) -> str:
    """Markdown table of a command's arguments and options; empty if there are none."""
    rows = [_row(parameter) for parameter in COMMANDS[command].params if parameter.name != "help"]
    return _HEAD + "".join(f"| {left} | {right} |\n" for left, right in rows) if rows else ""


def _row(parameter: Any) -> tuple[str, str]:
    if parameter.param_type_name == "option":
        left = ", ".join(f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts))
    else:
        left = f"`{parameter.metavar or parameter.name.upper()}`"
    description = parameter.help or ""
    default = parameter.default
    if default not in (None, "") and not isinstance(default, bool) and "Default" not in description:
        description += f" Default: `{default}`."
    return left, description.replace("|", "\\|")


def rewritten(page: str) -> str:
    """The page with each option table replaced by the generated one."""
    parts = re.split(r"(?m)^(?=## )", page)
    for number, part in enumerate(parts):
        heading = re.match(r"## headrace ([\w -]+)\n", part)
        if heading and heading[1] in COMMANDS:
            parts[number] = _TABLE.sub(lambda _, name=heading[1]: option_table(name), part, count=1)
    return "".join(parts)


@pytest.mark.parametrize("command", COMMANDS)
def test_option_tables_match_the_help(command: str):
    tables = _TABLE.findall(section("docs/reference/cli.md", f"## headrace {command}"))
    assert "".join(tables) == option_table(command)


def test_the_overview_has_the_first_sentence_of_the_help():
    lines = dict(re.findall(r"^\| \[`headrace ([\w -]+)`\]\([^)]*\) \| (.*) \|$", PAGE.read_text(), re.MULTILINE))
    assert lines == {name: _summary(command) for name, command in COMMANDS.items()}


def _summary(command: Any) -> str:
    """First sentence of a command's help."""
    return re.split(r"(?<=\.)\s", command.help.strip(), maxsplit=1)[0]


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
