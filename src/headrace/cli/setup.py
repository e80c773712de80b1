"""`headrace setup`: download dependencies in advance."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.console import say_progress

GROUPS = ("spark", "kafka", "msk", "s3", "azure", "gcs", "s3proxy", "kdc", "registry")


def setup(
    groups: Annotated[
        list[str] | None,
        typer.Argument(
            help="Groups to download: spark, kafka (embedded broker), msk (AWS MSK IAM), s3, azure, gcs, s3proxy, kdc "
            "and registry (tests).",
            metavar="GROUPS",
        ),
    ] = None,
    archives: Annotated[
        bool,
        typer.Option(
            "--archives/--no-archives",
            help="Create class data sharing archives, with which Spark starts about four seconds sooner. "
            "Requires the groups spark and kafka.",
        ),
    ] = True,
    pack: Annotated[
        bool,
        typer.Option(
            "--pack",
            help="Also build the archive of the Python environment that executors of a Spark cluster unpack.",
        ),
    ] = False,
) -> None:
    """Download dependencies in advance: Java and the pinned jars. Prepare a fast start of Spark.

    Uses an installed Java if there is one. Verifies the checksums of jars that are already present.
    """
    from headrace.errors import UsageError, plural
    from headrace.runtime import jars
    from headrace.runtime.java import find_java

    groups = groups or ["spark", "kafka"]
    if unknown := [group for group in groups if group not in GROUPS]:
        raise UsageError(f"Unknown group: {unknown[0]!r}.", hint=f"Valid groups: {', '.join(GROUPS)}.")
    java = find_java(progress=say_progress)
    say_progress(f"Java {java.version} in {java.home}")
    for group in groups:
        jars.verify_jars(group)
        paths = jars.ensure(group, progress=say_progress)
        say_progress(f"{group}: {plural(len(paths), 'jar')} verified")
    if archives and {"spark", "kafka"} <= {*groups}:
        from headrace.dev.warm_up import make_archives

        make_archives(progress=say_progress)
    if pack:
        from headrace.runtime.environment_archive import build_environment

        path = build_environment(progress=say_progress)
        say_progress(f"{path}: {path.stat().st_size / 1e6:.0f} MB")
