"""`headrace setup`: fetch ahead what a first run would fetch."""

from __future__ import annotations

from typing import Annotated

import typer

GROUPS = ("spark", "kafka", "s3", "s3proxy", "registry")


def setup(
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="spark, kafka (the demo's broker), s3, s3proxy and registry (tests).", metavar="GROUP…"),
    ] = None,
    warm: Annotated[bool, typer.Option(help="Also make class archives, so that Java starts faster.")] = False,
) -> None:
    """Find Java or fetch it, fetch the pinned jars, and check those already here against their checksums."""
    from headrace.errors import UsageError
    from headrace.runtime import jars
    from headrace.runtime.java import find_java

    wanted = groups or ["spark", "kafka"]
    if unknown := [group for group in wanted if group not in GROUPS]:
        raise UsageError(f"There is no group {unknown[0]!r}.", hint=f"Name some of {', '.join(GROUPS)}.")
    java = find_java(progress=_say)
    _say(f"Java {java.version} in {java.home}")
    for group in wanted:
        jars.verify_jars(group)
        found = jars.ensure(group, progress=_say)
        _say(f"{group}: {len(found)} jars, checked")
    if warm:
        _warm()


def _warm() -> None:
    from headrace.dev.warm_up import make_archives

    make_archives(progress=_say)


def _say(line: str) -> None:
    typer.echo(line, err=True)
