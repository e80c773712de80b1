"""Environment variables of other systems: those of the process, or of a file with `NAME=value` lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from headrace.importers.settings import Findings, Place, Setting
from headrace.spec.yaml_reader import Spot

ENVIRONMENT = "environment"
_LINE = re.compile(r"\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*")
_QUOTED = re.compile(r"""'([^']*)'(?:\s+#.*)?|"((?:[^"\\]|\\.)*)"(?:\s+#.*)?""")


def process_settings(variables: Mapping[str, str]) -> dict[str, Setting]:
    """Variables of a process; empty ones count as not set."""
    place = Place(ENVIRONMENT)
    return {name: Setting(name, value, place) for name, value in variables.items() if value}


def file_settings(text: str, file: str, findings: Findings) -> dict[str, Setting]:
    """Variables of a file with `NAME=value` lines, as `docker run --env-file` and Compose read it."""
    settings: dict[str, Setting] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match, place = _LINE.fullmatch(line), Place(file, Spot(number))
        if match is None:
            findings.error(place, "", "not a line NAME=value", "NAME=value")
        elif match[1] in settings:
            findings.error(place, match[1], "duplicate variable", "unique variables")
        else:
            settings[match[1]] = Setting(match[1], _value(match[2]), place)
    return settings


def _value(text: str) -> str:
    if quoted := _QUOTED.fullmatch(text):
        return quoted[1] if quoted[1] is not None else re.sub(r"\\(.)", r"\1", quoted[2])
    return re.split(r"\s+#", text, maxsplit=1)[0]


def present(settings: Mapping[str, Setting], names: Mapping[str, str]) -> Iterator[tuple[str, Setting]]:
    """Settings under other names, such as those of the flags that they stand for."""
    for name, other in names.items():
        if name in settings:
            yield other, settings[name]
