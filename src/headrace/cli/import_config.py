"""`headrace import`: print a configuration of another system as a spec."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.console import emit, say
from headrace.cli.options import CONFIG_PATH, AsJson
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.importers.imported import Imported
    from headrace.spec.diagnostics import Diagnostic

INCOMPLETE = 1


def import_config(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILES | -- ingest ARGUMENTS",
            help="Configuration files, or a command line of kafka-delta-ingest after `--`.",
            show_default=False,
        ),
    ] = None,
    from_env: Annotated[
        bool, typer.Option("--from-env", help="Import the environment of kafka-delta-ingest or of a delta writer.")
    ] = False,
    dialect: Annotated[
        str | None,
        typer.Option(metavar="danube|rivven|orasi|kafka-delta-ingest|analytics", help="Dialect. Default: detected."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 if a key is not honoured, or a value is assumed.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. Default: stdout.", dir_okay=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print the spec of another system's configuration.

    Lists the keys that it cannot honour, with the reason. Secrets are never printed. Exit codes: 0 imported,
    1 incomplete with --strict, 2 invalid.
    """
    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} already exists.", hint="Choose another --output, or use --force to overwrite it.")
    results = list(_results(files or [], from_env, dialect))
    errors = [error for imported in results for error in imported.findings.errors]
    errors += [] if errors else _invalid(results)
    for error in errors:
        emit({"event": "diagnostic", **error.fields()}) if as_json else say(
            str(error), "bold red", head="error: ", stderr=True
        )
    if errors:
        raise typer.Exit(UsageError.exit_code)
    text = "---\n".join(imported.text() for imported in results)
    if output is not None:
        output.write_text(text)
    for imported in results:
        _print_json(imported) if as_json else print_findings(imported)
    if as_json:
        emit({"event": "spec", "text": text, "file": str(output) if output else None})
    elif output is None:
        typer.echo(text, nl=False)
    else:
        say(f"Created {output}. Next: headrace check {output}", stderr=True)
    if strict and not all(imported.is_complete() for imported in results):
        raise typer.Exit(INCOMPLETE)


def _results(words: Sequence[str], from_env: bool, dialect: str | None) -> Sequence[Imported]:
    from headrace.errors import did_you_mean
    from headrace.importers.detect import NAMES, import_arguments, import_environment
    from headrace.spec.diagnostics import closest

    if dialect is not None and dialect not in NAMES:
        suggestion = did_you_mean(closest(dialect, NAMES))
        raise UsageError(f"Unknown --dialect: '{dialect}'{suggestion}.", hint=f"Use {', '.join(NAMES)}.")
    if words and words[0] in ("ingest", "repair") and not Path(words[0]).exists():
        return [import_arguments(words, os.environ)]
    config_path = os.environ.get(CONFIG_PATH)
    if from_env and dialect in (None, "danube") and config_path:
        return [_file_result(config_path, "danube")]
    if from_env:
        return [import_environment(os.environ, dialect)]
    if not words:
        raise UsageError("There is nothing to import.", hint="Specify files, --from-env, or -- ingest ARGUMENTS.")
    return [_file_result(word, dialect) for word in words]


def _file_result(file: str, dialect: str | None) -> Imported:
    from headrace.cli.arguments import file_content
    from headrace.importers.detect import import_file

    try:
        imported = import_file(file, file_content(file).decode("utf-8-sig"), os.environ, dialect)
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not valid UTF-8.", hint="Specify a text file.") from None
    if imported is None:
        message = f"{file} is not a configuration of another system."
        raise UsageError(message, hint="Use `headrace check` for a spec, or set --dialect.")
    return imported


def _invalid(results: Sequence[Imported]) -> list[Diagnostic]:
    """Errors of the resulting specs. Variables and files that this machine does not have are none."""
    from headrace.validate.load import examine_imported

    diagnostics = [each for imported in results for each in examine_imported(imported, Path())[1]]
    assumed = {each.name for imported in results for each in imported.findings.assumptions}
    return [
        each
        for each in diagnostics
        if each.severity == "error"
        and each.key not in assumed
        and not re.search(r"^Environment variable \w+ is not set|^Cannot read file ", each.message)
    ]


def print_findings(imported: Imported, options: Collection[str] | None = None) -> None:
    """Print what an import could not take over, to stderr.

    With `options`, those that `headrace run` was called with: also others that the configuration asks for.
    """
    findings = imported.findings
    unset = [each for each in findings.run_options if options is not None and each.split()[0] not in options]
    if unset:
        say(f"{' '.join(unset)} (from {imported.origin})", "yellow", head="not set: ", stderr=True)
    for each in findings.not_honoured:
        say(str(each), "yellow", head="not honoured: ", stderr=True)
    for each in findings.assumptions:
        say(str(each), "yellow", head="assumed: ", stderr=True)
    for secret in findings.secrets:
        say(str(secret), "yellow", head="secret: ", stderr=True)


def _print_json(imported: Imported) -> None:
    findings = imported.findings
    for event, items in (
        ("not_honoured", findings.not_honoured),
        ("assumed", findings.assumptions),
        ("without_key", findings.fulfilled),
    ):
        for item in items:
            emit({"event": event, **item.fields()})
    for secret in findings.secrets:
        emit({"event": "secret", "key": secret.name, "file": secret.place.file, "variable": secret.variable})
    emit(
        {
            "event": "imported",
            "system": imported.system,
            "origin": imported.origin,
            "pipelines": [draft.plain()["pipeline"] for draft in imported.drafts],
            "run_options": findings.run_options,
            "overrides": findings.overrides,
        }
    )
