"""`headrace check`: validate spec files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from headrace.cli.console import say
from headrace.cli.plural import plural

if TYPE_CHECKING:  # the models of specs take long to import, and every command imports this one
    from headrace.spec import Diagnostic, Spec

Online: TypeAlias = "Callable[[Spec], list[Diagnostic]]"
Say: TypeAlias = "Callable[[Diagnostic], None]"

OK, WRONG_ONLINE, WRONG = 0, 1, 2


def command(online: Online | None = None) -> Callable[..., None]:
    """Create the command with the given online checks."""

    def check(
        specs: Annotated[list[Path], typer.Argument(help="Spec files.", show_default=False)],
        ask: Annotated[
            bool, typer.Option("--online", help="Also check the broker, the tables and the object store.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    ) -> None:
        """Validate spec files. Exit codes: 0 valid, 1 an online check failed, 2 invalid."""
        raise typer.Exit(run(specs, online if ask else None, as_json=as_json))

    return check


def run(files: Sequence[Path], online: Online | None, *, as_json: bool) -> int:
    """Check files, print the diagnostics and return the exit code."""
    from headrace.validate.load import examine

    examined = [examine(file) for file in files]
    specs = [spec for found, _ in examined for spec in found]
    offline = [finding for _, findings in examined for finding in findings] + _twice(files, examined)
    wrong = _errors(offline)
    asked = [finding for spec in specs for finding in online(spec)] if online and not wrong else []
    say = _say_json if as_json else _say
    for finding in [*offline, *asked]:
        say(finding)
    _sum_up(specs, [*offline, *asked], as_json=as_json)
    return WRONG if wrong else WRONG_ONLINE if _errors(asked) else OK


def _twice(files: Sequence[Path], examined: Sequence[tuple[list[Spec], list[Diagnostic]]]) -> list[Diagnostic]:
    """Diagnostics for pipelines with the same name in several files."""
    from headrace.spec import Diagnostic

    first: dict[str, Path] = {}
    findings = []
    for file, (specs, _) in zip(files, examined, strict=True):
        for spec in specs:
            other = first.setdefault(spec.pipeline, file)
            if other != file:
                seen = f"'{spec.pipeline}' is also used in {other}"
                findings.append(Diagnostic(str(file), 1, 1, "pipeline", seen, "a unique pipeline name"))
    return findings


def _errors(findings: Sequence[Diagnostic]) -> int:
    return sum(finding.severity == "error" for finding in findings)


def _say(finding: Diagnostic) -> None:
    style = "bold red" if finding.severity == "error" else "yellow"
    say(str(finding), style, head=f"{finding.severity}: ")


def _say_json(finding: Diagnostic) -> None:
    typer.echo(json.dumps({"event": "diagnostic", **finding.fields()}, ensure_ascii=False))


def _sum_up(specs: Sequence[Spec], findings: Sequence[Diagnostic], *, as_json: bool) -> None:
    names, errors = [spec.pipeline for spec in specs], _errors(findings)
    warnings = len(findings) - errors
    if as_json:
        counts = {"event": "summary", "pipelines": names, "errors": errors, "warnings": warnings}
        typer.echo(json.dumps(counts, ensure_ascii=False))
    elif errors or warnings:
        say(f"{plural(errors, 'error')}, {plural(warnings, 'warning')}", "red" if errors else "yellow")
    else:
        say(f"{', '.join(names)}: OK", "green")


check = command()
