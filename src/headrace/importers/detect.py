"""Detection of the dialect of a configuration, and its import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from headrace.importers.analytics import VARIABLES as ANALYTICS_VARIABLES
from headrace.importers.analytics import import_analytics, is_analytics
from headrace.importers.danube import import_danube, is_danube
from headrace.importers.environment import ENVIRONMENT, file_settings, process_settings
from headrace.importers.imported import Imported
from headrace.importers.kafka_delta_ingest import (
    OPTION_VARIABLES,
    import_ingest,
    is_kafka_delta_ingest,
    known_variables,
)
from headrace.importers.object_store import STORE_VARIABLES
from headrace.importers.orasi import import_orasi, is_orasi
from headrace.importers.rivven import import_rivven, is_rivven
from headrace.importers.settings import Findings, Place, Setting
from headrace.importers.toml_reader import parse_toml
from headrace.spec.diagnostics import closest
from headrace.spec.yaml_reader import InvalidYaml, Spot, YamlNode, parse_yaml

FileImporter = Callable[[YamlNode, str, Mapping[str, Setting]], Imported]


@dataclass(frozen=True, slots=True)
class Dialect:
    """Configuration file of another system."""

    name: str
    syntax: Literal["toml", "yaml"]
    matches: Callable[[YamlNode], bool]
    importer: FileImporter


DIALECTS = (
    Dialect("danube", "toml", is_danube, import_danube),
    Dialect("rivven", "yaml", is_rivven, import_rivven),
    Dialect("orasi", "toml", is_orasi, import_orasi),
)
KAFKA_DELTA_INGEST, ANALYTICS = "kafka-delta-ingest", "analytics"  # arguments and variables
NAMES = (*(dialect.name for dialect in DIALECTS), KAFKA_DELTA_INGEST, ANALYTICS)
_EXPECTED = "the file of one of " + ", ".join(NAMES)


def is_foreign(file: str) -> bool:
    """Whether no spec has this name: specs are YAML."""
    return PurePath(file).suffix.lower() == ".toml" or _is_env_file(file)


def import_file(file: str, text: str, variables: Mapping[str, str], dialect: str | None = None) -> Imported | None:
    """Import a file of another system; None if it is a spec, or any other YAML."""
    if _is_env_file(file) or dialect in (KAFKA_DELTA_INGEST, ANALYTICS):
        return _import_env_file(file, text, dialect)
    by_name = next((each.syntax for each in DIALECTS if each.name == dialect), "yaml")
    syntax = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}.get(PurePath(file).suffix.lower(), by_name)
    try:
        roots = [parse_toml(text)] if syntax == "toml" else parse_yaml(text)
    except InvalidYaml as error:
        return _failure(file, Place(file, error.spot), error.message, error.expected)
    return _import_root(file, syntax, roots, variables, dialect)


def import_yaml(file: str, roots: Sequence[YamlNode], variables: Mapping[str, str]) -> Imported | None:
    """Import the documents of a YAML file; None if they are specs."""
    return _import_root(file, "yaml", roots, variables, None)


def _import_root(
    file: str, syntax: str, roots: Sequence[YamlNode], variables: Mapping[str, str], dialect: str | None
) -> Imported | None:
    for candidate in DIALECTS:
        is_named = candidate.name == dialect
        if candidate.syntax == syntax and roots and (is_named or (dialect is None and candidate.matches(roots[0]))):
            return candidate.importer(roots[0], file, process_settings(variables))
    if dialect is not None:
        return _failure(file, Place(file, Spot()), f"a {syntax.upper()} file", f"the syntax of {dialect}")
    return _failure(file, Place(file, Spot()), "no known configuration", _EXPECTED) if syntax == "toml" else None


def _is_env_file(file: str) -> bool:
    return PurePath(file).suffix.lower() == ".env" or PurePath(file).name == ".env"


def import_arguments(arguments: Sequence[str], variables: Mapping[str, str]) -> Imported:
    """Import a command line of kafka-delta-ingest: `ingest …`."""
    command, *rest = arguments or [""]
    if command != "ingest":
        message = f"unknown command '{command[:60]}'"
        if command == "repair":
            expected = "`headrace table repair` and `headrace table optimize`, which need no spec"
        else:
            expected = "ingest, with the arguments of kafka-delta-ingest"
        return _failure("arguments", Place("arguments"), message, expected)
    return import_ingest(rest, process_settings(variables))


def import_environment(variables: Mapping[str, str], dialect: str | None = None) -> Imported:
    """Import the environment of a process. Variables of others are not read."""
    environment = process_settings(variables)
    if dialect in (None, KAFKA_DELTA_INGEST) and (dialect or is_kafka_delta_ingest(environment)):
        return import_ingest([], environment, ENVIRONMENT)
    if dialect in (None, ANALYTICS) and (dialect or is_analytics(environment)):
        return import_analytics(environment)
    expected = "TABLE_BASE_URI or TABLE_LOCATION, or DELTA_TABLE_PATH and KAFKA_BOOTSTRAP_SERVERS"
    return _failure(ENVIRONMENT, Place(ENVIRONMENT), "no variables of a known system", expected)


def _import_env_file(file: str, text: str, dialect: str | None) -> Imported:
    """Import a file with `NAME=value` lines, all of which must be variables of the system."""
    findings = Findings()
    settings = file_settings(text, file, findings)
    if dialect == KAFKA_DELTA_INGEST or (dialect is None and is_kafka_delta_ingest(settings)):
        known, imported = known_variables(), import_ingest([], settings, file)
    elif dialect == ANALYTICS or (dialect is None and is_analytics(settings)):
        known, imported = STORE_VARIABLES | ANALYTICS_VARIABLES.keys(), import_analytics(settings, file)
    else:
        return _failure(file, Place(file, Spot()), "no variables of a known system", _EXPECTED)
    for name, setting in settings.items():
        if name not in known and not name.startswith("KAFKA_SETTING_"):
            findings.error(setting.place, name, "unknown variable", ", ".join(sorted(known)), closest(name, known))
    imported.findings.errors = [*findings.errors, *imported.findings.errors]
    used = {origin for draft in imported.drafts for origin, _ in draft.document().names.values()}
    used |= imported.findings.names() | OPTION_VARIABLES
    for name, setting in settings.items():
        if name not in used:
            imported.findings.skip(setting, "it has no effect with the other variables that are set")
    return imported


def _failure(origin: str, place: Place, message: str, expected: str) -> Imported:
    findings = Findings()
    findings.error(place, "", message, expected)
    return Imported("unknown", origin, [], findings)
