"""Spark session: one JVM per process, shared by its pipelines, which ends with the process."""

from __future__ import annotations

import atexit
import logging
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
from headrace.runtime.work_folder import create_folder

# Options of Spark's launcher without jdk.incubator.vector, which only MLlib uses and the JRE of the wheel lacks.
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
    # Own options: most garbage dies young; a JVM out of memory must exit; Delta checks twice unless in UTC;
    # Kafka settings must not read files or the environment.
    "-XX:+UseParallelGC",
    # A tenth of the default rate of optimizing compilations: by default they take 4 of the 15 CPU-seconds of a start,
    # on the cores that the first batches need. Code that is hot for seconds is still optimized.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
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
    "spark.executor.heartbeatInterval": "1s",  # carries the metrics that show the progress of a batch
    "spark.buffer.size": "1048576",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "headrace.pipeline.worker_daemon",
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
    "spark.sql.variable.substitute": "false",  # "${x}" in a value is literal text
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # no file uses the Julian calendar
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.maxFields": "1000",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "25000",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.maxConcurrentOutputFileWriters": "32",
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
# It warns of the fixed group id of every read; partitions are assigned, so consumers with the same id share nothing.
logger.kafka.name = org.apache.spark.sql.kafka010.KafkaSourceProvider
logger.kafka.level = error
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
"""


@dataclass(slots=True)
class _Shared:
    """Session of this process with its number of users."""

    spark: Any
    jvm: Child
    scratch: Path
    users: int = 1


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
    cancelled: Callable[[], bool] = lambda: False,
) -> Any:
    """Spark session of this process; later callers share the session, and the settings, of the first.

    StopRequested if `cancelled` returns true during startup.
    """
    global _shared
    with _lock:
        if _shared and alive(_shared.spark):
            _shared.users += 1
            return _shared.spark
        _drop()
        parts = class_path(progress=progress)
        scratch = Path(tempfile.mkdtemp(prefix=f"headrace-{os.getpid()}-"))
        options = [f"-Xmx{memory}", *_JVM, *os.environ.get("HEADRACE_JVM", "").split()]
        options += jvm or class_archive.use("spark", find_java(), parts)
        child = _start_jvm([*parts, *extra_jars], options, scratch, log_folder(work))
        try:
            port, secret = _wait_for_gateway(child, scratch / "gateway", cancelled)
            spark = _open(child, _settings(app, cores, scratch) | dict(conf or {}), port, secret)
        except BaseException:
            child.crash()
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        _shared = _Shared(spark, child, scratch)
        return spark


def class_path(*, progress: jars.Progress | None = None) -> list[Path]:
    """Class path of a session: pinned jars, then those of PySpark."""
    return [*jars.ensure("spark", progress=progress), *sorted((_spark_home() / "jars").glob("*.jar"))]


def alive(spark: Any) -> bool:
    """Whether the JVM of the session still runs; does not block."""
    return _shared is not None and spark.sparkContext is _shared.spark.sparkContext and _shared.jvm.poll() is None


def stop_session(spark: Any, *, within: float = 10) -> None:
    """Release the session; the last release stops the JVM and kills it after `within` seconds."""
    with _lock:
        if _shared is None or spark.sparkContext is not _shared.spark.sparkContext:
            return
        _shared.users -= 1
        if _shared.users <= 0:
            _drop(within)


def map_in_arrow(frame: Any, function: Callable[[Iterator[Any]], Iterable[Any]], schema: str) -> Any:
    """`DataFrame.mapInArrow` without its check for pandas, which it does not use."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its stubs
    from pyspark.util import PythonEvalType

    mapped = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = mapped(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def rows_read(spark: Any, description: str) -> int:
    """Rows that the running query with this job description has read, as of the last heartbeat; 0 if unknown."""
    rows = 0
    with suppress(Exception):  # the query may end, or the JVM may die
        store = spark._jsparkSession.sharedState().statusStore()
        queries = store.executionsList()
        for query in map(queries.apply, range(queries.size())):
            if query.completionTime().isDefined() or query.description() != description:
                continue
            metrics, values = query.metrics(), store.executionMetrics(query.executionId())
            for metric in map(metrics.apply, range(metrics.size())):
                value = values.get(metric.accumulatorId())
                if metric.name() == "number of output rows" and value.isDefined():
                    rows = max(rows, int(value.get().replace(",", "")))  # of the scan: the manifests are fewer
    return rows


def pid(spark: Any) -> int:
    """Process id of the JVM of the session."""
    if _shared is None or not alive(spark):
        raise SparkDied("The JVM of this session has exited.")
    return _shared.jvm.pid


def log_folder(work: Path | None = None) -> Path:
    """Directory of the Spark log: HEADRACE_LOG_DIR, otherwise the work directory."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = Path(os.environ.get("HEADRACE_LOG_DIR") or (work or state / "headrace") / "log")
    return create_folder(path, "HEADRACE_LOG_DIR", 0o700)


def _settings(app: str, cores: int | None, scratch: Path) -> dict[str, str]:
    return _SETTINGS | {
        "spark.app.name": app,
        "spark.master": f"local[{cores or '*'}]",
        "spark.local.dir": str(scratch),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.python.unix.domain.socket.dir": str(scratch),
    }


def _start_jvm(parts: Sequence[Path], options: Sequence[str], scratch: Path, logs: Path) -> Child:
    _clean_up(logs)
    log = logs / f"spark-{os.getpid()}.log"
    log4j = scratch / "log4j2.properties"
    log4j.write_text(_LOG4J.format(file=log, level=os.environ.get("HEADRACE_LOG_LEVEL", "warn")))
    command = [*find_java().command, *options, f"-Djava.io.tmpdir={scratch}"]
    command += [f"-Dlog4j2.configurationFile={log4j.as_uri()}", "org.apache.spark.deploy.SparkSubmit", "pyspark-shell"]
    env = _environment(scratch) | {"CLASSPATH": os.pathsep.join(map(str, parts))}
    # A signal to the process group requests the end of the batch, which still needs the JVM.
    return spawn(command, log=log, env=env, ignored_signals=(signal.SIGINT, signal.SIGTERM))


def _environment(scratch: Path) -> dict[str, str]:
    """Environment of the JVM and of its Python workers."""
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
    """Directory that workers import headrace from, unless it is in their default path."""
    root = str(Path(__file__).parents[2])
    return [] if root in site.getsitepackages() else [root]


def _spark_home() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed.", hint="Install pyspark==4.2.0 and try again.")
    return Path(spec.origin).parent


def _open(jvm: Child, settings: Mapping[str, str], port: int, secret: str) -> Any:
    """Connect PySpark to the JVM and create the session."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    gateway = _connect(jvm, port, secret)
    SparkContext._ensure_initialized(gateway=gateway)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(gateway=gateway, conf=SparkConf().setAll(list(settings.items())))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # PySpark replaces the handler of the command
    # Both would print a traceback when the JVM is killed, which closes its connections.
    context._accumulatorServer.handle_error = lambda *_: None
    logging.getLogger().addFilter(_is_not_of_py4j)
    return SparkSession(context)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """Whether a record of the root logger is not of py4j on a lost connection; that is an exception too."""
    return record.msg != "Exception while sending command."


def _connect(jvm: Child, port: int, secret: str) -> Any:
    """Gateway of PySpark to a JVM that PySpark did not start."""
    from pyspark.java_gateway import launch_gateway

    variables = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    os.environ.update(variables)
    try:
        gateway = launch_gateway()
    finally:
        for name in variables:
            del os.environ[name]  # do not pass the secret to child processes
    gateway.proc = jvm
    return gateway


def _wait_for_gateway(jvm: Child, info: Path, cancelled: Callable[[], bool], within: float = 120) -> tuple[int, str]:
    deadline = time.monotonic() + within
    while not info.is_file():
        if jvm.poll() is not None:
            raise SetupError(f"Java exited with code {jvm.returncode} before Spark started; see {log_folder()}.")
        if time.monotonic() > deadline:
            raise SetupError(f"Spark did not start within {within:g} s; see {log_folder()}.")
        if cancelled():
            raise StopRequested("Stopped while Spark was starting.")
        time.sleep(0.02)
    port, length = struct.unpack_from("!ii", raw := info.read_bytes())
    return port, raw[8 : 8 + length].decode()


def _drop(within: float = 0) -> None:
    """Stop the JVM and reset PySpark, so that another session can start."""
    global _shared
    if _shared is None:
        return
    shared, _shared = _shared, None
    if within and shared.jvm.poll() is None:
        closing = threading.Thread(target=_close, args=(shared, within), daemon=True)
        closing.start()
        closing.join(within)
    shared.jvm.crash()
    _reset_pyspark()
    shutil.rmtree(shared.scratch, ignore_errors=True)


def _close(shared: _Shared, within: float) -> None:
    """Stop the session; the JVM exits when its stdin is closed."""
    with suppress(Exception):
        shared.spark.stop()
        if shared.jvm.stdin:
            shared.jvm.stdin.close()
        shared.jvm.wait(within)


def _reset_pyspark() -> None:
    """Remove context, session and gateway of an ended JVM from PySpark, which would otherwise reuse them."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway, context = SparkContext._gateway, SparkContext._active_spark_context
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    if context is not None and context._accumulatorServer is not None:
        threading.Thread(target=context._accumulatorServer.shutdown, daemon=True).start()  # takes half a second
    if gateway is not None:
        with suppress(Exception):
            gateway.shutdown_callback_server()
            gateway.close()


def _clean_up(logs: Path, limit: int = 20) -> None:
    """Delete scratch directories of exited processes, and all but the newest logs."""
    for folder in Path(tempfile.gettempdir()).glob("headrace-[0-9]*-*"):
        if not _running(int(folder.name.split("-")[1])):
            shutil.rmtree(folder, ignore_errors=True)
    old = sorted(logs.glob("spark-*.log*"), key=lambda path: path.stat().st_mtime, reverse=True)[limit:]
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
