"""The fresh machine: servers and Spark from pinned parts, their life bound to ours."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError
from obstore.exceptions import AlreadyExistsError

from headrace.dev.kafka import Broker
from headrace.runtime import session
from services.certs import Certificates
from services.kafka import admin, ends, make_topic, produce, read_all
from services.s3 import S3
from services.wait import eventually

USERS = {"ann": "ann-secret"}


def test_kafka_keeps_its_records_over_a_kill(tmp_path: Path) -> None:
    with Broker.start(tmp_path / "kafka") as broker:
        topic = make_topic(broker.bootstrap, "t", 2)
        assert produce(broker.bootstrap, topic, [b"%d" % n for n in range(500)]) == 500
        broker.kill()
        broker.restart()
        assert {record.value for record in read_all(broker.bootstrap, [topic])} == {b"%d" % n for n in range(500)}
        assert sum(high - low for low, high in ends(broker.bootstrap, topic).values()) == 500


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["sasl", "sasl_tls"])
def test_kafka_lets_in_whom_it_knows(
    secure_kafka: Broker, certificates: Certificates, listener: str, mechanism: str
) -> None:
    settings = {
        "security.protocol": "SASL_SSL" if listener == "sasl_tls" else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "ann",
        "ssl.ca.location": str(certificates.authority),
    }
    known = settings | {"sasl.password": USERS["ann"]}
    assert admin(secure_kafka.address(listener), **known).list_topics(timeout=20).brokers
    assert "_AUTHENTICATION" in _refusals(secure_kafka.address(listener), settings | {"sasl.password": "wrong"})


def test_kafka_shows_its_certificate(secure_kafka: Broker, certificates: Certificates) -> None:
    settings = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority)}
    assert admin(secure_kafka.address("tls"), **settings).list_topics(timeout=20).brokers
    strange = settings | {"ssl.ca.location": str(certificates.stranger)}
    assert "_SSL" in _refusals(secure_kafka.address("tls"), strange)


def test_s3_puts_only_when_absent(s3: S3, bucket: str) -> None:
    store = s3.store(bucket)
    store.put("a/b", b"one", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("a/b", b"two", mode="create")
    assert store.get("a/b").bytes().to_bytes() == b"one"


def test_spark_reads_kafka_and_writes_delta(spark, kafka: Broker, topic: str, lake: Path) -> None:
    produce(kafka.bootstrap, topic, [b'{"n": %d}' % n for n in range(100)])
    options = {"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    records = spark.read.format("kafka").options(**options).load()
    records.selectExpr("CAST(value AS STRING) AS text").write.format("delta").save(str(lake / "t"))
    assert spark.read.format("delta").load(str(lake / "t")).distinct().count() == 100


def test_spark_writes_delta_on_s3(spark, s3: S3, bucket: str) -> None:
    """The SDK's single modules suffice, without its bundle of everything."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    for key, value in _s3a(s3).items():
        conf.set(f"fs.s3a.bucket.{bucket}.{key}", value)
    spark.range(10).write.format("delta").save(f"s3a://{bucket}/t")
    assert spark.read.format("delta").load(f"s3a://{bucket}/t").count() == 10


def test_workers_import_headrace(spark) -> None:
    def where(batches):
        import headrace

        for _ in batches:
            yield pa.record_batch({"path": [headrace.__path__[0]]})

    assert spark.range(1).mapInArrow(where, "path string").first().path.endswith("headrace")


def test_spark_keeps_its_log_off_the_console(spark, capfd: pytest.CaptureFixture[str]) -> None:
    jvm = spark.sparkContext._jvm
    written = Path(jvm.java.lang.System.getProperty("log4j2.configurationFile").removeprefix("file://")).read_text()
    log = Path(next(line for line in written.splitlines() if ".fileName" in line).split(" = ")[1])
    jvm.org.apache.log4j.LogManager.getLogger("headrace.test").error("said to the log")
    eventually(lambda: "said to the log" in log.read_text(), say=f"{log} has the line")
    assert capfd.readouterr() == ("", "")
    assert log.stat().st_mode & 0o077 == 0


def test_everything_dies_with_the_driver(tmp_path: Path) -> None:
    """Kill -9 of the driver while a task runs: JVM, Python workers and broker are gone within 10 s."""
    script = """
        import sys
        from pathlib import Path
        from headrace.runtime import session
        from headrace.dev.kafka import Broker
        broker = Broker.start(Path(sys.argv[1]))
        spark = session.start("doomed", cores=1, runs_python=True)
        busy = Path(sys.argv[1], "busy")
        def forever(batches):
            import threading
            busy.touch()
            threading.Event().wait()
            yield from batches
        spark.range(1).mapInArrow(forever, "id long").count()
        """
    driver = subprocess.Popen([sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(tmp_path)])
    try:
        eventually((tmp_path / "busy").exists, within=120, say="the task runs")
        tree = psutil.Process(driver.pid).children(recursive=True)
        assert sum(child.name() == "java" for child in tree) == 2
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        _, alive = psutil.wait_procs(tree, timeout=10)
        assert not alive
    finally:
        driver.kill()
        driver.wait()


def test_the_driver_notices_when_the_jvm_dies() -> None:
    out = _run(
        """
        import os, signal
        from headrace.errors import SparkExited
        from headrace.runtime import session
        from services.wait import eventually
        spark = session.start("doomed", cores=1)
        assert session.alive(spark)
        os.kill(session.pid(spark), signal.SIGKILL)
        eventually(lambda: not session.alive(spark), within=5)
        again = session.start("again", cores=1)
        print(again.range(3).count(), session.alive(again), session.alive(spark))
        session.stop_session(again)
        """
    )
    assert out.split()[-3:] == ["3", "True", "False"]


def test_a_start_is_cancelled_while_spark_creates_its_context() -> None:
    """The JVM is killed, nothing is printed, and another session can start."""
    out = _run(
        """
        import os
        from pyspark import SparkContext
        from headrace.errors import StopRequested
        from headrace.runtime import session
        os.dup2(1, 2)
        try:
            session.start("cancelled", cores=1, cancelled=lambda: SparkContext._gateway is not None)
        except StopRequested as stopped:
            print(stopped.message, flush=True)
        again = session.start("again", cores=1)
        print(again.range(3).count())
        session.stop_session(again)
        """
    )
    assert out.splitlines() == ["Stopped while Spark was starting.", "3"]


@pytest.mark.parametrize(("removed", "parent"), [("", "driver"), ("daemon", "jvm")])
def test_the_parent_of_the_worker_daemon(removed: str, parent: str) -> None:
    """It is started with the JVM, by the driver; Spark starts one if that one cannot be reached."""
    out = _run(
        """
        import os, sys, tempfile
        from pathlib import Path
        import psutil
        import pyarrow as pa
        from headrace.runtime import session
        from services.wait import eventually
        spark = session.start("daemon", cores=1, runs_python=True)
        (scratch,) = Path(tempfile.gettempdir()).glob(f"headrace-{os.getpid()}-*")
        eventually((scratch / "daemon").exists, within=60)
        if sys.argv[1]:
            (scratch / sys.argv[1]).unlink()
        def daemon(batches):
            import os
            for _ in batches:
                yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})
        (row,) = session.map_in_arrow(spark.range(1), daemon, {"pid": "long"}).collect()
        print({os.getpid(): "driver", session.pid(spark): "jvm"}[psutil.Process(row.pid).ppid()])
        tree = psutil.Process().children(recursive=True)
        session.stop_session(spark, within=0)
        print(*psutil.wait_procs(tree, timeout=20)[1])
        """,
        removed,
    )
    assert out.split() == [parent]


def test_holders_share_one_jvm(spark) -> None:
    second = session.start(f"second-{uuid.uuid4().hex}")
    assert second is spark
    session.stop_session(second)
    assert session.alive(spark)


@pytest.mark.slow
def test_the_wheel_runs_kafka_spark_and_delta(tmp_path: Path) -> None:
    """Empty cache, no Java: everything is fetched, then a topic is read into a Delta table."""
    out = _run(
        """
        import sys
        from pathlib import Path
        from headrace.runtime import session
        from headrace.runtime.java import find_java
        from headrace.dev.kafka import Broker
        from services.kafka import make_topic, produce
        folder = Path(sys.argv[1])
        assert str(folder) in find_java().command[0]
        with Broker.start(folder / "kafka") as broker:
            produce(broker.bootstrap, make_topic(broker.bootstrap, "t"), [b"x"] * 50)
            spark = session.start("wheel", cores=1)
            options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t", "startingOffsets": "earliest"}
            spark.read.format("kafka").options(**options).load().write.format("delta").save(str(folder / "lake"))
            print(spark.read.format("delta").load(str(folder / "lake")).count())
            session.stop_session(spark)
        """,
        str(tmp_path),
        XDG_CACHE_HOME=str(tmp_path),
        HEADRACE_JAVA="wheel",
    )
    assert out.split()[-1] == "50"


def _refusals(bootstrap: str, settings: dict[str, str]) -> set[str]:
    """The names of the errors a client meets; returns with the first."""
    met: list[KafkaError] = []
    client = admin(bootstrap, error_cb=met.append, **settings)
    eventually(lambda: client.poll(0.1) and met, say="the client is refused")
    return {error.name() for error in met}


def _s3a(s3: S3) -> dict[str, str]:
    return {
        "endpoint": s3.endpoint,
        "endpoint.region": s3.region,
        "access.key": s3.key,
        "secret.key": s3.secret,
        "path.style.access": "true",
    }


def _run(script: str, *arguments: str, **environment: str) -> str:
    """Run a script in a Python of its own and return what it printed."""
    here = Path(__file__).parents[2]
    env = {**os.environ, "PYTHONPATH": f"{here / 'src'}:{here / 'tests'}", **environment}
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
