"""Spark sessions that the caller started: in notebooks, on hosted platforms, or by spark-submit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.errors import UsageError

_KAFKA = "org.apache.spark.sql.kafka010.KafkaSourceProvider"


def separate_session(spark: Any, settings: Mapping[str, str], *, kafka: bool) -> Any:
    """Session of its own in the application of the caller's session, with other settings of queries.

    UsageError if the session cannot run pipelines.
    """
    from pyspark import __version__
    from pyspark.sql import SparkSession

    if not isinstance(spark, SparkSession) or not hasattr(spark, "_jsparkSession"):
        raise UsageError(
            "The Spark session is not a classic SparkSession of this process.",
            hint="Pass a session that runs in this process. Spark Connect is not supported.",
        )
    if spark.version.split(".")[:2] != __version__.split(".")[:2]:
        raise UsageError(
            f"The session runs Spark {spark.version}, but the installed PySpark is {__version__}.",
            hint=f"Install pyspark=={spark.version}, or use a cluster with Spark {__version__}.",
        )
    if kafka and not _is_loadable(spark, _KAFKA):
        raise UsageError(
            "The session does not have Spark's Kafka connector.",
            hint=f"Start it with spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:{spark.version}.",
        )
    session = spark.newSession()
    for name, value in settings.items():
        if session.conf.isModifiable(name):
            session.conf.set(name, value)
    return session


def submitted_session() -> Any:
    """Session of the application that spark-submit has prepared for this process."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def submitted_file(path: Path) -> Path:
    """A file that was submitted: itself, or on another machine the copy that Spark has made."""
    from pyspark import SparkFiles

    return path if path.is_file() else Path(SparkFiles.get(path.name))


def is_alive(spark: Any) -> bool:
    """Whether the application of the session still runs."""
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except Exception:  # its JVM has ended
        return False


def _is_loadable(spark: Any, name: str) -> bool:
    return bool(spark._jvm.org.apache.spark.util.Utils.classIsLoadable(name))
