"""Class data sharing archives: the JVM maps classes from a file instead of parsing jars, which saves CPU at startup."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.runtime.cache import cache_folder, cache_lock, cache_path
from headrace.runtime.java import Java

_MAX_ARCHIVES = 2  # per name: two environments may alternate


def use(name: str, java: Java, jars: Sequence[Path]) -> list[str]:
    """JVM options that use an archive, if one exists for exactly this Java and these jars."""
    path = _path(name, java, jars)
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if path.is_file() else []


@contextmanager
def making(name: str, java: Java, jars: Sequence[Path]) -> Iterator[list[str]]:
    """Options for a JVM that writes the archive on clean exit inside the block; empty if the archive exists."""
    path = _path(name, java, jars)
    with cache_lock(f"{name}-archive") as scratch:
        if path.is_file():
            yield []
            return
        written = scratch / path.name
        yield [f"-XX:ArchiveClassesAtExit={written}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        if written.is_file():
            written.replace(cache_folder("archives") / path.name)
        _delete_old(name)


def _path(name: str, java: Java, jars: Sequence[Path]) -> Path:
    """Path of an archive; its name covers all that the JVM compares before it uses an archive."""
    parts = [str(java.home), _file_identity(java.home / "lib" / "modules"), *map(_file_identity, sorted(jars))]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return cache_path("archives", f"{name}-{digest[:16]}.jsa")


def _file_identity(path: Path) -> str:
    if not path.is_file():
        return str(path)
    status = path.stat()
    return f"{path} {status.st_size} {status.st_mtime_ns}"


def _delete_old(name: str) -> None:
    for old in sorted(cache_folder("archives").glob(f"{name}-*.jsa"), key=lambda p: p.stat().st_mtime)[:-_MAX_ARCHIVES]:
        old.unlink(missing_ok=True)
