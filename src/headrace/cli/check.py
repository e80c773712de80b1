"""`headrace check`: validate spec files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from headrace.cli.console import emit, say
from headrace.cli.options import CONFIG_PATH, OF_CONFIG_PATH, AsJson
from headrace.errors import plural

if TYPE_CHECKING:  # the models of specs take long to import, and every command imports this one
    from headrace.spec import Diagnostic, Spec

Online: TypeAlias = "Callable[[Spec], list[Diagnostic]]"

VALID, ONLINE_ERROR, INVALID = 0, 1, 2


def command(online: Online | None = None) -> Callable[..., None]:
    """Create the command with the given online checks."""

    def check(
        spec_files: Annotated[
            list[Path],
            typer.Argument(
                metavar="SPECS",
                help=f"Spec files. {OF_CONFIG_PATH}",
                envvar=CONFIG_PATH,
                show_envvar=False,
                show_default=False,
            ),
        ],
        ask_online: Annotated[
            bool, typer.Option("--online", help="Also check the broker, the tables and the object store.")
        ] = False,
        as_json: AsJson = False,
    ) -> None:
        """Validate spec files. Exit codes: 0 valid, 1 an online check failed, 2 invalid."""
        raise typer.Exit(check_files(spec_files, online if ask_online else None, as_json=as_json))

    return check


def check_files(files: Sequence[Path], online: Online | None, *, as_json: bool) -> int:
    """Check files, print the diagnostics and return the exit code."""
    from headrace.validate.load import examine

    results = [examine(file) for file in files]
    specs = [spec for file_specs, _ in results for spec in file_specs]
    diagnostics = [diagnostic for _, file_diagnostics in results for diagnostic in file_diagnostics]
    diagnostics += _duplicate_names(files, results)
    code = INVALID if _errors(diagnostics) else VALID
    if online and code == VALID:
        answers = [diagnostic for spec in specs for diagnostic in online(spec)]
        diagnostics += answers
        code = ONLINE_ERROR if _errors(answers) else VALID
    for diagnostic in diagnostics:
        emit({"event": "diagnostic", **diagnostic.fields()}) if as_json else _print(diagnostic)
    _print_summary(specs, diagnostics, as_json)
    return code


def _duplicate_names(files: Sequence[Path], results: Sequence[tuple[list[Spec], list[Diagnostic]]]) -> list[Diagnostic]:
    """Diagnostics for pipelines with the same name in several files."""
    from headrace.spec import Diagnostic

    first: dict[str, Path] = {}
    diagnostics = []
    for file, (specs, _) in zip(files, results, strict=True):
        for spec in specs:
            other = first.setdefault(spec.pipeline, file)
            if other != file:
                message = f"'{spec.pipeline}' is also used in {other}"
                diagnostics.append(Diagnostic(str(file), 1, 1, "pipeline", message, "a unique pipeline name"))
    return diagnostics


def _errors(diagnostics: Sequence[Diagnostic]) -> int:
    return sum(diagnostic.severity == "error" for diagnostic in diagnostics)


def _print(diagnostic: Diagnostic) -> None:
    style = "bold red" if diagnostic.severity == "error" else "yellow"
    say(str(diagnostic), style, head=f"{diagnostic.severity}: ")


def _print_summary(specs: Sequence[Spec], diagnostics: Sequence[Diagnostic], as_json: bool) -> None:
    names, errors = [spec.pipeline for spec in specs], _errors(diagnostics)
    warnings = len(diagnostics) - errors
    if as_json:
        emit({"event": "summary", "pipelines": names, "errors": errors, "warnings": warnings})
    elif errors or warnings:
        say(f"{plural(errors, 'error')}, {plural(warnings, 'warning')}", "red" if errors else "yellow")
    else:
        say(f"{', '.join(names)}: OK", "green")


check = command()
