"""The command line of spark-submit for a pipeline on a cluster."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from headrace.errors import SetupError, UsageError

_SECRET = re.compile(r"(?i)secret|passw|token|credential|(access|private)[._-]?key")
_LAUNCHER_OPTIONS = {
    "spark.master": "--master",
    "spark.jars": "--jars",
    "spark.archives": "--archives",
    "spark.executor.memory": "--executor-memory",
    "spark.executor.cores": "--executor-cores",
}


def submit_command(
    settings: Mapping[str, str],
    program: Path,
    arguments: Sequence[str],
    *,
    memory: str,
    deploy_mode: str,
    files: Sequence[Path],
    secrets_file: Path,
) -> list[str]:
    """Arguments of spark-submit; secret settings are not among them, but expected in `secrets_file` if there are any.

    UsageError if the master does not support the deploy mode.
    """
    if deploy_mode == "cluster" and settings["spark.master"].startswith("spark://"):
        raise UsageError(
            "A standalone cluster does not run Python drivers.", hint="Use --deploy-mode client, or `headrace run`."
        )
    command = [str(spark_submit()), "--deploy-mode", deploy_mode, "--driver-memory", memory, "--name", "headrace"]
    if secret_settings(settings):
        command += ["--properties-file", str(secrets_file), "--load-spark-defaults"]
    public = {name: value for name, value in settings.items() if not _SECRET.search(name)}
    for name, value in sorted(public.items()):
        command += [_LAUNCHER_OPTIONS[name], value] if name in _LAUNCHER_OPTIONS else ["--conf", f"{name}={value}"]
    if deploy_mode == "client":
        command += ["--conf", f"spark.pyspark.driver.python={sys.executable}"]
    else:
        command += ["--files", ",".join(map(str, files))]
    return [*command, str(program), *arguments]


def secret_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Settings that must not appear in a list of processes."""
    return {name: value for name, value in settings.items() if _SECRET.search(name)}


def spark_submit() -> Path:
    """The program spark-submit: of SPARK_HOME, otherwise of PySpark."""
    spec = find_spec("pyspark")
    home = os.environ.get("SPARK_HOME") or (Path(spec.origin).parent if spec and spec.origin else "")
    program = Path(home) / "bin" / "spark-submit"
    if not program.is_file():
        raise SetupError(f"{program} does not exist.", hint="Set SPARK_HOME to an installation of Spark 4.2.")
    return program
