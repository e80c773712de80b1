"""`headrace submit`: run a pipeline on a cluster by spark-submit."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import SpecFile, Wait


class DeployMode(StrEnum):
    """Where the driver runs."""

    CLIENT = "client"
    CLUSTER = "cluster"


def submit(
    spec_file: SpecFile,
    until: Annotated[
        str | None,
        typer.Option(help="`latest`: process the records available at the start, then exit.", metavar="latest"),
    ] = None,
    deploy_mode: Annotated[
        DeployMode, typer.Option(help="Where the driver runs: on this machine, or on the cluster (YARN, Kubernetes).")
    ] = DeployMode.CLIENT,
    only_print: Annotated[bool, typer.Option("--print", help="Print the command without running it.")] = False,
    wait: Wait = False,
) -> None:
    """Run the pipelines of a spec with spark-submit.

    Uses spark-submit of SPARK_HOME, or of PySpark. Prints JSON events.
    Settings with credentials are passed in a temporary file.
    """
    from headrace.pipeline.spark_session import application_settings
    from headrace.runtime.cluster import write_properties
    from headrace.runtime.java import find_java
    from headrace.runtime.submit import secret_settings, submit_command
    from headrace.validate.load import load

    specs = load(spec_file)
    settings = application_settings(specs)
    with tempfile.TemporaryDirectory(prefix="headrace-submit-") as scratch:
        arguments = [str(spec_file.resolve()) if deploy_mode is DeployMode.CLIENT else spec_file.name]
        arguments += [f"--until={until}"] if until else []
        arguments += ["--wait"] if wait else []
        command = submit_command(
            settings,
            Path(__file__).with_name("submitted.py"),
            arguments,
            memory=specs[0].spark.memory,
            deploy_mode=deploy_mode.value,
            files=[spec_file.resolve()],
            secrets_file=Path(scratch) / "spark.properties",
        )
        if only_print:
            typer.echo(shlex.join(command))
            return
        write_properties(Path(scratch), secret_settings(settings))
        env = {**os.environ, "JAVA_HOME": str(find_java().home)}
        raise typer.Exit(subprocess.run(command, env=env, check=False).returncode)
