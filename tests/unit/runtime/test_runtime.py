"""Java, jars, archives and children, without a JVM."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from headrace.cli.setup import GROUPS
from headrace.dev.kafka import Broker, BrokerTls, _properties, free_ports
from headrace.errors import SetupError
from headrace.runtime import cache, class_archive, jars, java, session, trust_store
from headrace.runtime.child_process import spawn
from services.wait import eventually

ONE = "org.example:one:1.0"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def repository(home: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """One pinned group, served from memory in place of a Maven repository; counts in `served`."""
    content = {ONE: b"one", "org.example:two:2.0:all": b"two"}
    pins = tuple(jars.Jar(at, hashlib.sha256(data).hexdigest()) for at, data in content.items())
    monkeypatch.setattr(jars, "pinned", lambda: {"g": pins})

    def resolve(coordinates: list[str], scratch: Path, progress: jars.ReportDownload) -> dict[str, Path]:
        served.append(coordinates)
        for at in coordinates:
            (scratch / at.replace(":", "_")).write_bytes(content[at])
        return {at: scratch / at.replace(":", "_") for at in coordinates}

    served: list[list[str]] = []
    monkeypatch.setattr(jars, "resolve_jars", resolve)
    content["served"] = served  # type: ignore[assignment]
    return content


def test_the_lock_pins_every_group_of_the_command() -> None:
    assert set(jars.pinned()) == set(GROUPS)
    for jar in (jar for group in jars.pinned().values() for jar in group):
        assert len(jar.at.split(":")) in (3, 4)
        assert len(bytes.fromhex(jar.sha256)) == 32


def test_no_two_jars_share_a_file() -> None:
    every = {jar for group in jars.pinned().values() for jar in group}
    assert len({jar.file for jar in every}) == len(every)


def test_a_complete_cache_is_only_looked_at(repository) -> None:
    said: list[str] = []
    first = jars.ensure("g", progress=said.append)
    assert [path.read_bytes() for path in first] == [b"one", b"two"]
    assert [path.name for path in first] == ["one-1.0.jar", "two-2.0-all.jar"]
    assert said
    assert jars.ensure("g") == first
    assert len(repository["served"]) == 1


def test_only_what_is_missing_is_fetched(repository) -> None:
    jars.ensure("g")[0].unlink()
    jars.ensure("g")
    assert repository["served"][-1] == [ONE]


def test_what_differs_from_its_checksum_is_refused_and_not_kept(repository) -> None:
    repository[ONE] = b"something else"
    with pytest.raises(SetupError, match=f"Checksum mismatch for {ONE}: expected .*, saw "):
        jars.ensure("g")
    assert not (cache.cache_folder("jars") / "one-1.0.jar").exists()


def test_a_jar_that_changed_in_the_cache_is_fetched_again(repository) -> None:
    path = jars.ensure("g")[0]
    path.write_bytes(b"spoilt")
    jars.verify_jars("g")
    assert jars.ensure("g")[0].read_bytes() == b"one"


def test_two_at_once_fetch_once(repository) -> None:
    threads = [threading.Thread(target=jars.ensure, args=("g",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(repository["served"]) == 1


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ([":: org.example#one;1.0: not found"], "Cannot download org.example:one:1.0: not found in the repository"),
        (["Server access error at url x (java.net.UnknownHostException: x)"], "UnknownHostException"),
        ([], "one:1.0, org.example:two:2.0, org.example:three:3.0 and 1 more"),
    ],
)
def test_what_cannot_be_had_is_named(home: Path, said: list[str], seen: str) -> None:
    absent = [ONE, "org.example:two:2.0", "org.example:three:3.0", "org.example:four:4.0"]
    error = jars._download_error(absent, said)
    assert seen in str(error)
    assert "HEADRACE_MAVEN" in str(error)


def test_ivy_is_told_of_a_mirror_and_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "HEADRACE_MAVEN"):
        monkeypatch.delenv(name, raising=False)
    assert "root=" not in jars._settings()
    assert jars._proxy() == []
    monkeypatch.setenv("HEADRACE_MAVEN", 'https://mirror.test/"m2"&')
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.test:3128")
    assert """root='https://mirror.test/"m2"&amp;'""" in jars._settings()
    assert jars._proxy() == ["-Dhttps.proxyHost=proxy.test", "-Dhttps.proxyPort=3128"]


def test_the_project_names_no_registry() -> None:
    folder = Path(jars.__file__).parent
    for path in folder.iterdir():
        if path.is_file():
            assert "maven.org" not in path.read_text(), path


@pytest.mark.parametrize(
    ("release", "major"), [('JAVA_VERSION="17.0.15"', 17), ('JAVA_VERSION="1.8.0_402"', 0), ('JAVA_VERSION="25"', 25)]
)
def test_java_is_evaluated_by_its_release_file(tmp_path: Path, release: str, major: int) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "java").chmod(0o755)
    (tmp_path / "release").write_text(f'IMPLEMENTOR="x"\n{release}\n')
    found = java._supported(tmp_path)
    assert (found.version if found else 0) == major


def test_a_java_that_was_named_must_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JAVA", str(tmp_path))
    with pytest.raises(SetupError, match="17 or newer"):
        java.find_java()


def test_without_java_and_without_a_wheel_the_way_out_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_JAVA", "wheel")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(SetupError, match="Install Java 17 or newer"):
        java.find_java()
    assert not list(cache.cache_folder("jdk").iterdir())


def test_a_key_store_is_sealed_and_the_same_twice(home: Path) -> None:
    store = trust_store.key_store([b"certificate"])
    assert store[:12] == bytes.fromhex("feedfeed0000000200000001")
    assert store == trust_store.key_store([b"certificate"])
    assert trust_store.options() == trust_store.options()


def test_an_archive_is_used_only_for_the_jars_it_was_made_of(home: Path) -> None:
    here, jar = java.Java(home, 17), home / "a.jar"
    jar.write_bytes(b"a")
    assert class_archive.use("x", here, [jar]) == []
    assert not cache.cache_path("archives").exists()  # which may be on a read-only file system
    with class_archive.making("x", here, [jar]) as options:
        Path(options[0].split("=", 1)[1]).write_bytes(b"archive")
    assert class_archive.use("x", here, [jar])
    with class_archive.making("x", here, [jar]) as options:
        assert options == []
    jar.write_bytes(b"other")
    assert class_archive.use("x", here, [jar]) == []


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """Also when the thread that asked for it is long gone, and the parent has no time to say goodbye."""
    script = (
        "import threading, os, signal, sys\n"
        "from pathlib import Path; from headrace.runtime.child_process import spawn\n"
        "def go(): print(spawn(['/bin/sleep', '600'], log=Path(sys.argv[1])).pid, flush=True)\n"
        "thread = threading.Thread(target=go); thread.start(); thread.join(); sys.stdin.read()\n"
    )
    src = str(Path(jars.__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": src},
    )
    with parent:
        assert parent.stdout
        child = psutil.Process(int(parent.stdout.readline()))
        eventually(lambda: child.name() == "sleep", say="the child has become the program")
        parent.kill()
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()


def test_a_child_stops_and_its_output_is_private(tmp_path: Path) -> None:
    child = spawn(["/bin/sh", "-c", "echo said; exec sleep 600"], log=tmp_path / "log")
    eventually(lambda: (tmp_path / "log").read_text() == "said\n", say="the child speaks")
    child.stop()
    assert child.poll() is not None
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_a_child_may_leave_signals_to_its_parent(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", "echo up; exec cat"]
    child = spawn(command, log=tmp_path / "log", ignored_signals=(signal.SIGINT, signal.SIGTERM))
    eventually(lambda: (tmp_path / "log").read_text() == "up\n", say="the child runs")
    child.terminate()
    assert child.stdin
    child.stdin.write(b"still here\n")
    child.stdin.flush()
    eventually(lambda: "still here" in (tmp_path / "log").read_text(), say="it has outlived the signal")
    child.crash()
    assert child.returncode == -signal.SIGKILL


def test_a_program_that_is_not_there_is_an_ended_child(tmp_path: Path) -> None:
    child = spawn(["/no/such/program"], log=tmp_path / "log")
    assert child.wait(20) != 0
    child.stop()
    assert "No such file" in (tmp_path / "log").read_text()


def test_the_properties_of_a_secure_broker(tmp_path: Path) -> None:
    ports = dict(zip(("plain", "sasl_tls", "controller"), free_ports(), strict=False))
    tls = BrokerTls(tmp_path / "server.pem", tmp_path / "ca.pem")
    text = _properties(tmp_path, ports, tls, {"ann": "secret"}, {"log.segment.bytes": "1048576"})
    lines = dict(line.split("=", 1) for line in text.splitlines())
    assert lines["listeners"].count("127.0.0.1") == 3
    assert "CONTROLLER" not in lines["advertised.listeners"]
    assert lines["listener.security.protocol.map"] == "PLAIN:PLAINTEXT,SASL_TLS:SASL_SSL,CONTROLLER:PLAINTEXT"
    assert 'user_ann="secret"' in lines["listener.name.sasl_tls.plain.sasl.jaas.config"]
    assert lines["log.segment.bytes"] == "1048576"
    assert "secret" not in repr(Broker(tmp_path, ports, {"ann": "secret"}, []))


def test_logs_go_where_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.log_folder(tmp_path) == tmp_path / "log"
    monkeypatch.setenv("HEADRACE_LOG_DIR", str(tmp_path / "else"))
    assert session.log_folder(tmp_path) == tmp_path / "else"
    assert (tmp_path / "else").stat().st_mode & 0o077 == 0


def test_what_the_dead_left_behind_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session.tempfile, "gettempdir", lambda: str(tmp_path))
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    left, own = tmp_path / f"headrace-{dead.pid}-x", tmp_path / f"headrace-{os.getpid()}-x"
    left.mkdir()
    own.mkdir()
    for n in range(25):
        (tmp_path / f"spark-{n}.log").touch()
    session._clean_up(tmp_path)
    assert not left.exists()
    assert own.exists()
    assert len(list(tmp_path.glob("spark-*.log"))) == 20


def test_importing_the_runtime_imports_no_pyspark() -> None:
    script = (
        "import sys, headrace.runtime.session, headrace.dev.kafka, headrace.cli.setup\nprint('pyspark' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(jars.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True).stdout == "False\n"


def test_freed_memory_stays_with_the_process() -> None:
    """What a second chunk of records allocates is not faulted in anew."""
    look = """
import resource, numpy
from headrace.runtime.heap import keep_freed_memory
assert keep_freed_memory()
def chunk(): return [numpy.ones(8_000_000, numpy.uint8) for _ in range(4)]
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
chunk()
before = faults()
for _ in range(10): chunk()
print(faults() - before)
"""
    found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 8_000  # giving it back costs 80,000
