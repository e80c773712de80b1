"""Jars: pinned with checksums in `jars.toml`, downloaded once into the cache with the Ivy of PySpark."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from headrace.errors import SetupError, plural
from headrace.runtime.cache import cache_folder, cache_lock
from headrace.runtime.java import find_java

ReportDownload = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Jar:
    """Pinned jar; `at` is its Maven coordinate, group:artifact:version[:classifier][@type]."""

    at: str
    sha256: str

    @property
    def file(self) -> str:
        """File name in a Maven repository."""
        name, _, kind = self.at.partition("@")
        return "-".join(name.split(":")[1:]) + f".{kind or 'jar'}"

    @property
    def path(self) -> Path:
        """Path in the cache; files there have passed the checksum."""
        return cache_folder("jars") / self.file


@cache
def pinned() -> Mapping[str, tuple[Jar, ...]]:
    """Jars of the lock file by group."""
    lock = tomllib.loads(files("headrace.runtime").joinpath("jars.toml").read_text())
    return {group: tuple(Jar(at, sha) for at, sha in jars.items()) for group, jars in lock.items()}


def ensure(group: str, *, progress: ReportDownload | None = None) -> list[Path]:
    """Paths of the jars of a group; missing ones are downloaded."""
    jars = pinned()[group]
    if _missing(jars):
        with cache_lock("jars") as scratch:
            if missing := _missing(jars):
                _fetch(missing, scratch, progress or (lambda _: None))
    return [jar.path for jar in jars]


def verify_jars(group: str) -> None:
    """Delete cached jars of a group that do not match their checksum, so that `ensure` downloads them again."""
    for jar in pinned()[group]:
        if jar.path.is_file() and sha256(jar.path) != jar.sha256:
            jar.path.unlink()


def sha256(path: Path) -> str:
    """SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _missing(jars: Iterable[Jar]) -> list[Jar]:
    return [jar for jar in jars if not jar.path.is_file()]


def _fetch(jars: list[Jar], scratch: Path, progress: ReportDownload) -> None:
    """Download jars, verify them and move them into the cache."""
    progress(f"Downloading {plural(len(jars), 'jar')} to {cache_folder('jars')}")
    fetched = resolve_jars([jar.at for jar in jars], scratch, progress)
    for jar in jars:
        _move_verified(jar, fetched[jar.at])


def _move_verified(jar: Jar, file: Path) -> None:
    checksum = sha256(file)
    if checksum != jar.sha256:
        raise SetupError(
            f"Checksum mismatch for {jar.at}: expected {jar.sha256}, saw {checksum}.",
            hint="The download was discarded. Check for a repository or proxy that modifies files.",
        )
    with file.open("rb") as stream:
        os.fsync(stream.fileno())
    file.replace(jar.path)


def resolve_jars(coordinates: list[str], scratch: Path, progress: ReportDownload) -> dict[str, Path]:
    """Download exactly these coordinates with Ivy, without their dependencies."""
    settings, module, out = scratch / "settings.xml", scratch / "ivy.xml", scratch / "out"
    settings.write_text(_settings())
    module.write_text(_ivy_module(coordinates))
    java = find_java(progress=progress)
    command = [*java.command, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *_proxy(), "-jar", str(_ivy())]
    command += ["-settings", str(settings), "-ivy", str(module), "-cache", str(scratch / "ivy")]
    command += ["-retrieve", f"{out}/[organisation]/[artifact]-[revision](-[classifier]).[ext]"]
    output = _run(command, progress)
    fetched = {at: out / at.split(":")[0] / Jar(at, "").file for at in coordinates}
    absent = [at for at, path in fetched.items() if not path.is_file()]
    if absent:
        raise _download_error(absent, output)
    return fetched


def _run(command: list[str], progress: ReportDownload) -> list[str]:
    """Run Ivy, report each download, and return the output."""
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        for line in ivy.stdout or ():
            lines.append(line.strip())
            if match := re.match(r"downloading \S+/(\S+\.(?:jar|tar\.gz))", line):
                progress(f"  {match[1]}")
    return lines


def _download_error(absent: list[str], lines: list[str]) -> SetupError:
    """Error with the coordinates that Ivy names, or with all if it names none."""
    text = "\n".join(lines)
    blamed = [at for at in absent if "#{1};{2}: ".format(*at.partition("@")[0].split(":")) in text] or absent
    error = re.search(r"Server access error[^\n]*|[^\n]*(?:UnknownHost|Connect|SSL|Socket)\w*Exception[^\n]*", text)
    return SetupError(
        f"Cannot download {_few(blamed)}: {error[0].strip() if error else 'not found in the repository'}.",
        hint=f"Set HEADRACE_MAVEN to a Maven repository that has it, or copy the file to {cache_folder('jars')}.",
    )


def _few(names: list[str], limit: int = 3) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _settings() -> str:
    """Settings of Ivy: HEADRACE_MAVEN or the default repository; no POMs: the lock file has all dependencies."""
    root = f" root={quoteattr(mirror)}" if (mirror := os.environ.get("HEADRACE_MAVEN")) else ""
    return f"""<ivysettings>
  <settings defaultResolver="maven" defaultConflictManager="all"/>
  <resolvers><ibiblio name="maven" m2compatible="true" usepoms="false" useMavenMetadata="false"{root}/></resolvers>
</ivysettings>"""


def _ivy_module(coordinates: Iterable[str]) -> str:
    dependencies = "\n".join(_dependency(at) for at in coordinates)
    return f"""<ivy-module version="2.0" xmlns:e="http://ant.apache.org/ivy/extra">
  <info organisation="headrace" module="jars"/>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>"""


def _dependency(at: str) -> str:
    name, _, kind = at.partition("@")
    group, artifact, version, *classifier = name.split(":")
    extra = f' e:classifier="{classifier[0]}"' if classifier else ""
    kind = kind or "jar"
    return (
        f'    <dependency org="{group}" name="{artifact}" rev="{version}" conf="default" transitive="false">'
        f'<artifact name="{artifact}" type="{kind}" ext="{kind}"{extra}/></dependency>'
    )


def _ivy() -> Path:
    """Path of the Ivy jar in the PySpark package, without importing PySpark."""
    spec = find_spec("pyspark")
    paths = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not paths:
        raise SetupError(
            "PySpark is not installed, or its jars are missing.", hint="Install pyspark==4.2.0 and try again."
        )
    return paths[-1]


def _proxy() -> list[str]:
    """Java options for HTTPS_PROXY, which Java itself does not read."""
    address = os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy") or ""
    proxy = urlsplit(address if "//" in address else f"//{address}")
    if not proxy.hostname:
        return []
    return [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 443}"]


def write_lock(lock: Path) -> None:
    """Rewrite the lock file with the current checksums of its coordinates."""
    groups = tomllib.loads(lock.read_text())
    with TemporaryDirectory() as scratch:
        fetched = resolve_jars(sorted(set(chain.from_iterable(groups.values()))), Path(scratch), print)
        sums = {at: sha256(path) for at, path in fetched.items()}
    head = re.match(r"(?:#.*\n)*", lock.read_text())
    blocks = ["".join([f"[{g}]\n", *(f'"{at}" = "{sums[at]}"\n' for at in jars)]) for g, jars in groups.items()]
    lock.write_text((head[0] if head else "") + "\n" + "\n".join(blocks))


if __name__ == "__main__":
    if sys.argv[1:] != ["--relock"]:
        sys.exit("usage: python -m headrace.runtime.jars --relock")
    write_lock(Path(__file__).with_name("jars.toml"))
