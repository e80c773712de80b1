"""`headrace setup`: download dependencies in advance."""

from __future__ import annotations

from typing import Annotated

import typer

GROUPS = ("spark", "kafka", "s3", "s3proxy", "registry")


def setup(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            help="Groups to download: spark, kafka (embedded broker), s3, s3proxy and registry (tests).",
            metavar="GROUP…",
        ),
    ] = None,
    warm: Annotated[
        bool, typer.Option(help="Also create class data sharing archives, so that Java starts faster.")
    ] = False,
) -> None:
    """Find or download Java, download the pinned jars, and verify the checksums of those already present."""
    from headrace.errors import UsageError
    from headrace.runtime import jars
    from headrace.runtime.java import find_java

    wanted = groups or ["spark", "kafka"]
    if unknown := [group for group in wanted if group not in GROUPS]:
        raise UsageError(f"Unknown group: {unknown[0]!r}.", hint=f"Valid groups: {', '.join(GROUPS)}.")
    java = find_java(progress=_say)
    _say(f"Java {java.version} in {java.home}")
    for group in wanted:
        jars.verify_jars(group)
        found = jars.ensure(group, progress=_say)
        _say(f"{group}: {len(found)} jars verified")
    if warm:
        _warm()


def _warm() -> None:
    from headrace.dev.warm_up import make_archives

    make_archives(progress=_say)


def _say(line: str) -> None:
    typer.echo(line, err=True)
