"""Spark session: one JVM per process, shared by its pipelines, which ends with the process."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import signal
import site
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError, SetupError, SparkExited, StopRequested, UsageError
from headrace.runtime import class_archive, external_session, jars
from headrace.runtime.child_process import Child, spawn
from headrace.runtime.cluster import Cluster, driver_environment, link_driver_python, write_properties
from headrace.runtime.java import find_java
from headrace.runtime.kafka_options import ALLOWED_URLS, NO_URLS, kafka_options
from headrace.runtime.py4j_log import ignore_lost_connections
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
    # Kafka settings must not read files or the environment, nor tokens from anywhere but the URL of a spec.
    "-XX:+UseSerialGC",
    # By default the heap starts with a 64th of the memory of the machine, and fills it before it is collected.
    "-Xms256m",
    "-XX:NewSize=128m",
    "-XX:MetaspaceSize=256m",  # the classes of Spark are 100 MB: the default causes full collections during the start
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
    *kafka_options(),
)

_SHORT_JVM = ("-XX:TieredStopAtLevel=1",)  # no profiles for the optimizing compiler: a fifth of the CPU of a start

# Jars of PySpark for MLlib, Hive, Kubernetes, YARN and Connect, which a session in one JVM does not use. MLlib extends
# every session, which takes half a second of Scala reflection, and all jars are opened when Spark looks for services.
_UNUSED = re.compile(
    "spark-(mllib|graphx|hive|kubernetes|yarn|connect|pipelines|repl)|hive-(?!storage-api)|kubernetes-|volcano-|vertx-"
    "|breeze|spire|algebra|cats-|arpack|blas|lapack|JLargeArrays|JTransforms|datanucleus|derby|javax.jdo|jdo-|HikariCP"
    "|scala-compiler|jline"
)
_DAEMON, _DAEMON_SOCKET = "headrace.pipeline.worker_daemon", "_HEADRACE_WORKER_DAEMON"
_CANCEL_INTERVAL = 0.05  # seconds
_DAEMON_SECONDS = 2.0  # that the daemon has to end its workers

_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.ui.liveUpdate.period": "-1",
    "spark.sql.ui.retainedExecutions": "5",  # `rows_read` asks for all of them
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.scheduler.mode": "FAIR",
    "spark.locality.wait": "0s",
    "spark.speculation": "false",
    "spark.executor.heartbeatInterval": "1s",  # carries the metrics that show the progress of a batch
    "spark.buffer.size": "1048576",
    "spark.python.worker.reuse": "true",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # calls the JVM for each expression
    "spark.python.daemon.module": _DAEMON,
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.kafka.consumer.cache.capacity": "512",
    "spark.kafka.consumer.cache.timeout": "1m",
    "spark.kafka.consumer.fetchedData.cache.timeout": "1m",
    "spark.redaction.regex": (
        r"(?i)secret|passw|token|credential|jaas|(access|account|private)[._-]?key|keystore|\.key$"
    ),
    "spark.sql.redaction.string.regex": r"(?i)(?:password|secret)\s*=\s*\S+",
    "spark.hadoop.fs.permissions.umask-mode": "027",
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.variable.substitute": "false",  # "${x}" in a value is literal text
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",  # no file uses the Julian calendar
    # Without kafka: its older batch reader makes a Row of each record, by code that it generates, and converts it back.
    "spark.sql.sources.useV1SourceList": "avro,csv,json,orc,parquet,text",
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

_LOCAL = "local"  # whatever the number of cores

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
# At debug, it shows the settings of consumers, of whose secrets it knows only passwords.
logger.connector.name = org.apache.spark.sql.kafka010
logger.connector.level = {connector}
rootLogger.level = {level}
rootLogger.appenderRef.file.ref = file
"""


@dataclass(frozen=True, slots=True)
class _Processes:
    """The JVM, and the daemon of its Python workers, which imports its modules while Spark starts."""

    jvm: Child
    daemon: Child | None

    def crash(self) -> None:
        """Kill the JVM; a daemon in use ends with it, after its workers, and one that still waits, with its stdin."""
        self.jvm.crash()
        if self.daemon is None:
            return
        if self.daemon.stdin:
            with suppress(OSError):
                self.daemon.stdin.close()
        try:
            self.daemon.wait(_DAEMON_SECONDS)
        except subprocess.TimeoutExpired:
            self.daemon.kill()


@dataclass(slots=True)
class _Shared:
    """Session of this process with its number of users."""

    spark: Any
    processes: _Processes
    scratch: Path
    master: str
    extra_jars: frozenset[Path] = frozenset()
    users: int = 1
    storage: dict[str, str] = field(default_factory=dict)  # Hadoop settings of object stores

    @property
    def jvm(self) -> Child:
        return self.processes.jvm


_lock = threading.RLock()
_shared: _Shared | None = None


def start(
    app: str,
    *,
    cores: int | None = None,
    memory: str = "1g",
    extra_jars: Sequence[Path] = (),
    conf: Mapping[str, str] | None = None,
    cluster: Cluster | None = None,
    jvm: Sequence[str] = (),
    work: Path | None = None,
    progress: jars.ReportDownload | None = None,
    is_short: bool = False,
    runs_python: bool = False,
    cancelled: Callable[[], bool] = lambda: False,
) -> Any:
    """Spark session of this process; later callers share the session, and the settings, of the first.

    `is_short`: the session is used for seconds. `runs_python`: for tasks in Python, whose daemon is started as well.
    `cluster`: where tasks run; None: in the JVM of this process, on `cores` cores.
    StopRequested if `cancelled` returns true during startup.
    """
    global _shared
    with _lock:
        if _shared and alive(_shared.spark):
            if _shared.master != (cluster.master if cluster else _LOCAL):
                raise UsageError(
                    f"Spark already runs in this process with the master {_shared.master}.",
                    hint="Run pipelines with different masters in different processes.",
                )
            _shared.users += 1
            return _shared.spark
        _drop()
        parts = class_path(local=cluster is None, progress=progress)
        scratch = Path(tempfile.mkdtemp(prefix=f"headrace-{os.getpid()}-"))
        options = [
            f"-Xmx{memory}",
            *_JVM,
            *(_SHORT_JVM if is_short else ()),
            *os.environ.get("HEADRACE_JVM", "").split(),
        ]
        options += jvm or class_archive.use("spark", find_java(), parts)
        all_settings = _settings(app, cores, scratch) | dict(conf or {})
        if cluster is not None:
            all_settings = cluster.settings(all_settings, [*jars.ensure("spark"), *extra_jars])
        processes = _start_processes(
            [*parts, *extra_jars],
            options,
            scratch,
            log_folder(work),
            runs_python=runs_python and cluster is None,
            cluster_settings=all_settings if cluster else {},
        )
        try:
            with _killed_if(cancelled, processes.jvm):
                port, secret = _wait_for_gateway(processes.jvm, scratch / "gateway")
                python = cluster.python if cluster else sys.executable
                spark = _open(processes.jvm, all_settings, port, secret, python)
            if cancelled():  # nobody else may begin to share it
                raise StopRequested("Stopped while Spark was starting.")
        except BaseException as error:
            is_cancelled = cancelled() and isinstance(error, Exception)
            processes.crash()
            _reset_pyspark()
            shutil.rmtree(scratch, ignore_errors=True)
            if is_cancelled:
                raise StopRequested("Stopped while Spark was starting.") from None
            if cluster is not None and isinstance(error, Exception) and not isinstance(error, HeadraceError):
                raise cluster.start_error(error) from error
            raise
        master = cluster.master if cluster else _LOCAL
        _shared = _Shared(spark, processes, scratch, master, frozenset(extra_jars))
        return spark


@contextmanager
def _killed_if(cancelled: Callable[[], bool], jvm: Child) -> Iterator[None]:
    """Kill the JVM once `cancelled` returns true within the block: requests to it cannot be interrupted otherwise."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_CANCEL_INTERVAL):
            if cancelled():
                jvm.kill()
                return

    threading.Thread(target=watch, name="watch the start of Spark", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def class_path(*, local: bool = True, progress: jars.ReportDownload | None = None) -> list[Path]:
    """Class path of a session: pinned jars, then those of PySpark, without unused ones if tasks run in the same JVM."""
    all_jars = sorted((_spark_home() / "jars").glob("*.jar"))
    used = [path for path in all_jars if not (local and _UNUSED.match(path.name))]
    return [*jars.ensure("spark", progress=progress), *used]


def alive(spark: Any) -> bool:
    """Whether the JVM of the session still runs; does not block for a session of this process."""
    if _shared is not None and spark.sparkContext is _shared.spark.sparkContext:
        return _shared.jvm.poll() is None
    return external_session.is_alive(spark)


def stop_session(spark: Any, *, within: float = 10) -> None:
    """Release the session; the last release stops the JVM and kills it after `within` seconds."""
    with _lock:
        if _shared is None or spark.sparkContext is not _shared.spark.sparkContext:
            return
        _shared.users -= 1
        if _shared.users <= 0:
            _drop(within)


def configure_storage(spark: Any, conf: Mapping[str, str], group: str) -> None:
    """Set Hadoop settings of an object store, for all sessions of the JVM; `group` of jars has its connector.

    Not in the settings of Spark, which its UI shows. UsageError if the JVM has other settings of the same names: its
    connections to a bucket are shared by all pipelines; or if it was started without the connector.
    """
    with _lock:
        own = _shared if _shared and spark.sparkContext is _shared.spark.sparkContext else None
        if own and (absent := [jar.file for jar in jars.pinned()[group] if jar.path not in own.extra_jars]):
            raise UsageError(
                f"Spark already runs in this process without {absent[0]}, which this object store requires.",
                hint="Run all pipelines with one `headrace run`, or in different processes.",
            )
        known = own.storage if own else {}
        if changed := [name for name, value in conf.items() if known.get(name, value) != value]:
            raise UsageError(
                f"Spark already has other settings for this object store in this process: {changed[0]}.",
                hint="Run pipelines with different credentials or endpoints for one bucket in separate processes.",
            )
        if conf.keys() <= known.keys():
            return
        hadoop = spark.sparkContext._jsc.hadoopConfiguration()
        for name, value in conf.items():
            hadoop.set(name, value)
        known.update(conf)


def allow_token_urls(spark: Any, urls: Sequence[str]) -> None:
    """Let Kafka's clients in the driver's JVM get tokens from these URLs too.

    A JVM of the caller without this restriction stays without it.
    """
    if not urls:
        return
    system = spark.sparkContext._jvm.java.lang.System
    with _lock:
        if (allowed := system.getProperty(ALLOWED_URLS)) is not None:
            system.setProperty(ALLOWED_URLS, ",".join(sorted({*allowed.split(","), *urls} - {NO_URLS})))


def map_in_arrow(frame: Any, function: Callable[[Iterator[Any]], Iterable[Any]], columns: Mapping[str, str]) -> Any:
    """`DataFrame.mapInArrow` into columns of simple types, without its check for pandas, which it does not use."""
    from pyspark.sql import DataFrame
    from pyspark.sql.pandas.functions import vectorized_udf  # type: ignore[attr-defined]  # not in its stubs
    from pyspark.sql.types import StructType
    from pyspark.util import PythonEvalType

    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns.items()]
    schema = StructType.fromJson({"fields": fields})  # a schema as text would need Spark's SQL parser
    mapped = vectorized_udf(function, returnType=schema, functionType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    column = mapped(*[frame[name] for name in frame.columns])
    return DataFrame(frame._jdf.mapInArrow(column._jc, False, None), frame.sparkSession)


def settings() -> dict[str, str]:
    """Settings of all sessions."""
    return dict(_SETTINGS)


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
        raise SparkExited("The JVM of this session has exited.")
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


def _start_processes(
    parts: Sequence[Path],
    options: Sequence[str],
    scratch: Path,
    logs: Path,
    *,
    runs_python: bool,
    cluster_settings: Mapping[str, str],
) -> _Processes:
    """Start the JVM, and the daemon of Python workers, which imports its modules meanwhile."""
    _clean_up(logs)
    log = logs / f"spark-{os.getpid()}.log"
    log4j = scratch / "log4j2.properties"
    level = os.environ.get("HEADRACE_LOG_LEVEL", "warn")
    connector = "info" if level.lower() in ("debug", "trace", "all") else level
    log4j.write_text(_LOG4J.format(file=log, level=level, connector=connector))
    command = [*find_java().command, *options, f"-Djava.io.tmpdir={scratch}"]
    command += [f"-Dlog4j2.configurationFile={log4j.as_uri()}", "org.apache.spark.deploy.SparkSubmit"]
    env = _environment(scratch)
    jvm_env = {**env, "CLASSPATH": os.pathsep.join(map(str, parts))}
    if cluster_settings:
        command += ["--properties-file", str(write_properties(scratch, cluster_settings))]
        jvm_env = driver_environment(jvm_env, scratch)
        link_driver_python(scratch)
    command += ["pyspark-shell"]
    # A signal to the process group requests the end of the batch, which still needs the JVM.
    ignored = (signal.SIGINT, signal.SIGTERM)
    cwd = scratch if cluster_settings else None
    jvm = spawn(command, log=log, env=jvm_env, cwd=cwd, ignored_signals=ignored)
    if not runs_python:
        return _Processes(jvm, None)
    waiting = [sys.executable, "-m", _DAEMON, "--wait", env[_DAEMON_SOCKET]]
    return _Processes(jvm, spawn(waiting, log=log, env={"PYTHONHASHSEED": "0", **env}, ignored_signals=ignored))


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
        _DAEMON_SOCKET: str(scratch / "daemon"),
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


def _open(jvm: Child, settings: Mapping[str, str], port: int, secret: str, python: str) -> Any:
    """Connect PySpark to the JVM and create the session."""
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    ignore_lost_connections()
    gateway = _connect(jvm, port, secret)
    SparkContext._ensure_initialized(gateway=gateway)
    os.environ["PYSPARK_PYTHON"] = python
    interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(gateway=gateway, conf=SparkConf().setAll(list(settings.items())))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # PySpark replaces the handler of the command
    context._accumulatorServer.handle_error = lambda *_: None  # as above
    return SparkSession(context)


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


def _wait_for_gateway(jvm: Child, info: Path, within: float = 120) -> tuple[int, str]:
    deadline = time.monotonic() + within
    while not info.is_file():
        if jvm.poll() is not None:
            raise SetupError(f"Java exited with code {jvm.returncode} before Spark started; see {log_folder()}.")
        if time.monotonic() > deadline:
            raise SetupError(f"Spark did not start within {within:g} s; see {log_folder()}.")
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
    shared.processes.crash()
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
