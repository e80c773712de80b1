"""The Spark session: one JVM per process, started by us, shared by its pipelines, dead when we are."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import site
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import SetupError, SparkDied, StopRequested
from headrace.runtime import class_archive, jars
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.java import find_java
from headrace.runtime.work_folder import made

# What Spark's own launcher passes, without jdk.incubator.vector: only MLlib uses it and a wheel's JRE lacks it.
_OPENED = (
    "java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.util java.util.concurrent "
    "java.util.concurrent.atomic jdk.internal.ref sun.nio.ch sun.nio.cs sun.security.action sun.util.calendar"
)
_JVM = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED.split()),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    # Ours: most garbage dies young; a JVM out of memory must die, not limp; no zone but UTC, or Delta checks twice;
    # a Kafka setting must not be able to read files or the environment.
    "-XX:+UseParallelGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-XX:-UsePerfData",
    "-Duser.timezone=UTC",
    "-Dfile.encoding=UTF-8",
    "-Dorg.apache.kafka.automatic.config.providers=none",
)

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.ui.liveUpdate.period": "-1",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0s",
    "spark.speculation": "false",
    "spark.buffer.size": "1048576",
    "spark.python.worker.reuse": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.kafka.consumer.cache.capacity": "512",
    "spark.kafka.consumer.cache.timeout": "1m",
    "spark.kafka.consumer.fetchedData.cache.timeout": "1m",
    "spark.redaction.regex": r"(?i)secret|passw|token|credential|jaas|(access|private)[._-]?key|keystore|\.key$",
    "spark.sql.redaction.string.regex": r"(?i)(?:password|secret)\s*=\s*\S+",
    "spark.hadoop.fs.permissions.umask-mode": "027",
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",  # "${x}" in a value is just that
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # no file of ours counts days by the Julian calendar
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.maxFields": "1000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "25000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    "spark.sql.streaming.pollingDelay": "50ms",
    "spark.sql.streaming.stopTimeout": "5s",  # a query that waits for a dead broker does not hear of the stop
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    # A stream's checkpoint is thrown away with it. Spark's own way to write one starts a dozen processes for each batch
    # (chmod, readlink): 180 ms of 700 at a small batch.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.optimizeWrite.enabled": "false",
}

_LOG4J = """\
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {file}
appender.file.filePattern = {file}.%i
appender.file.filePermissions = rw-------
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{ISO8601}}{{UTC}}Z %p %c{{1}}: %m%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 20MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
"""


@dataclass(slots=True)
class _Shared:
    """The one session of this process, and how many hold it."""

    spark: Any
    jvm: Child
    scratch: Path
    holders: int = 1


_lock = threading.RLock()
_shared: _Shared | None = None


def start(
    app: str,
    *,
    cores: int | None = None,
    memory: str = "1g",
    extra_jars: Sequence[Path] = (),
    conf: Mapping[str, str] | None = None,
    jvm: Sequence[str] = (),
    work: Path | None = None,
    progress: jars.Progress | None = None,
    stop: threading.Event | None = None,
) -> Any:
    """The process's Spark session; a second caller shares the first one's, with the first one's settings.

    `stop` ends a start that is under way with StopRequested.
    """
    global _shared
    with _lock:
        if _shared and alive(_shared.spark):
            _shared.holders += 1
            return _shared.spark
        _drop()
        parts = class_path(progress=progress)
        scratch = Path(tempfile.mkdtemp(prefix=f"headrace-{os.getpid()}-"))
        options = [f"-Xmx{memory}", *_JVM, *os.environ.get("HEADRACE_JVM", "").split()]
        options += jvm or class_archive.use("spark", find_java(), parts)
        child = _start_jvm([*parts, *extra_jars], options, scratch, log_folder(work))
        try:
            port, secret = _wait_for_gateway(child, scratch / "gateway", stop or threading.Event())
            spark = _open(child, _settings(app, cores, scratch) | dict(conf or {}), port, secret)
        except BaseException:
            child.crash()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        _shared = _Shared(spark, child, scratch)
        return spark


def class_path(*, progress: jars.Progress | None = None) -> list[Path]:
    """Every jar of a session, in order: ours, then PySpark's own."""
    return [*jars.ensure("spark", progress=progress), *sorted((_spark_home() / "jars").glob("*.jar"))]


def alive(spark: Any) -> bool:
    """Whether the session's JVM still runs; asks the operating system, so it answers at once."""
    return _shared is not None and spark.sparkContext is _shared.spark.sparkContext and _shared.jvm.poll() is None


def stop_session(spark: Any, *, within: float = 10) -> None:
    """Let go of the session; the last holder's call ends the JVM, by force after `within` seconds."""
    with _lock:
        if _shared is None or spark.sparkContext is not _shared.spark.sparkContext:
            return
        _shared.holders -= 1
        if _shared.holders <= 0:
            _drop(within)


def map_in_arrow(frame: Any, function: Callable[[Iterator[Any]], Iterable[Any]], schema: str) -> Any:
    """`DataFrame.mapInArrow` without its demand for pandas, which it neither needs nor uses."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its stubs
    from pyspark.util import PythonEvalType

    mapped = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = mapped(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def pid(spark: Any) -> int:
    """The process id of the session's JVM."""
    if _shared is None or not alive(spark):
        raise SparkDied("The JVM of this session has exited.")
    return _shared.jvm.pid


def log_folder(work: Path | None = None) -> Path:
    """Where Spark's own log goes: HEADRACE_LOG_DIR, else the work folder."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = Path(os.environ.get("HEADRACE_LOG_DIR") or (work or state / "headrace") / "log")
    return made(path, "HEADRACE_LOG_DIR", 0o700)


def _settings(app: str, cores: int | None, scratch: Path) -> dict[str, str]:
    return _SETTINGS | {
        "spark.app.name": app,
        "spark.master": f"local[{cores or '*'}]",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.python.unix.domain.socket.dir": str(scratch),
    }


def _start_jvm(parts: Sequence[Path], options: Sequence[str], scratch: Path, logs: Path) -> Child:
    _tidy(logs)
    log = logs / f"spark-{os.getpid()}.log"
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=log, level=os.environ.get("HEADRACE_LOG_LEVEL", "warn")))
    command = [*find_java().command, *options, f"-Djava.io.tmpdir={scratch}"]
    command += [f"-Dlog4j2.configurationFile={log4j.as_uri()}", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    env = _environment(scratch) | {"CLASSPATH": os.pathsep.join(map(str, parts))}
    # A signal sent to the whole group asks us to finish the batch; without the JVM we could not.
    return spawn(command, log=log, env=env, deaf_to=(signal.SIGINT, signal.SIGTERM))


def _environment(scratch: Path) -> dict[str, str]:
    """What the JVM and the Python workers below it see."""
    python_path = [*_import_roots(), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "SPARK_HOME": str(_spark_home()),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_CONNECT_MODE": "0",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(python_path),
        "MALLOC_ARENA_MAX": "2",
        "TZ": "UTC",
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(scratch / "gateway"),
    }


def _import_roots() -> list[str]:
    """The folder workers import headrace from, when it is not one they look in anyway."""
    root = str(Path(__file__).parents[2])
    return [] if root in site.getsitepackages() else [root]


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed.", hint="Install pyspark==4.2.0 and try again.")
    return Path(spec.origin).parent


def _open(jvm: Child, settings: Mapping[str, str], port: int, secret: str) -> Any:
    """Connect PySpark to our JVM and make the session."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    gateway = _connect(jvm, port, secret)
    SparkContext._ensure_initialized(gateway=gateway)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(gateway=gateway, conf=SparkConf().setAll(list(settings.items())))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # PySpark puts its own in place; Ctrl-C is the command's to answer
    return SparkSession(context)


def _connect(jvm: Child, port: int, secret: str) -> Any:
    """PySpark's gateway to a JVM that PySpark did not start."""
    from pyspark.java_gateway import launch_gateway

    there = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(there)
    try:
        gateway = launch_gateway()
    finally:
        for name in there:
            del os.environ[name]  # the secret is not for our children
    gateway.proc = jvm
    return gateway


def _wait_for_gateway(jvm: Child, info: Path, stop: threading.Event, within: float = 120) -> tuple[int, str]:
    deadline = time.monotonic() + within
    while not info.is_file():
        if jvm.poll() is not None:
            raise SetupError(f"Java exited with code {jvm.returncode} before Spark started; see {log_folder()}.")
        if time.monotonic() > deadline:
            raise SetupError(f"Spark did not start within {within:g} s; see {log_folder()}.")
        if stop.wait(0.02):
            raise StopRequested("Stopped while Spark was starting.")
    port, length = struct.unpack_from("!ii", raw := info.read_bytes())
    return port, raw[8 : 8 + length].decode()


def _drop(within: float = 0) -> None:
    """End the JVM, whatever state it is in, and leave PySpark ready for another one."""
    global _shared
    if _shared is None:
        return
    gone, _shared = _shared, None
    if within and gone.jvm.poll() is None:
        closing = threading.Thread(target=_close, args=(gone, within), daemon=True)
        closing.start()
        closing.join(within)
    gone.jvm.crash()
    _forget()
    shutil.rmtree(gone.scratch, ignore_errors=True)


def _close(gone: _Shared, within: float) -> None:
    """End in good order: the session first; then the JVM ends by itself when its standard input does."""
    with suppress(Exception):
        gone.spark.stop()
        if gone.jvm.stdin:
            gone.jvm.stdin.close()
        gone.jvm.wait(within)


def _forget() -> None:
    """Make PySpark forget its gateway, which it would otherwise use again."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown_callback_server()
            gateway.close()


def _tidy(logs: Path, keep: int = 20) -> None:
    """Drop what processes that are gone left behind: scratch folders, and all but the newest logs."""
    for left in Path(tempfile.gettempdir()).glob("headrace-[0-9]*-*"):
        if not _running(int(left.name.split("-")[1])):
            shutil.rmtree(left, ignore_errors=True)
    old = sorted(logs.glob("spark-*.log*"), key=lambda path: path.stat().st_mtime, reverse=True)[keep:]
    for log in old:
        log.unlink(missing_ok=True)


def _running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


atexit.register(_drop)
