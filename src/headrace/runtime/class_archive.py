"""Class archives: a JVM that maps its classes from a file instead of parsing jars starts on a fraction of the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.runtime.cache import cache_folder, cache_lock
from headrace.runtime.java import Java

_KEPT = 2  # per name: two environments may take turns


def use(name: str, java: Java, jars: Sequence[Path]) -> list[str]:
    """The options that use an archive, if there is one for exactly this Java and these jars."""
    path = _path(name, java, jars)
    return [f"-XX:SharedArchiveFile={path}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"] if path.is_file() else []


@contextmanager
def making(name: str, java: Java, jars: Sequence[Path]) -> Iterator[list[str]]:
    """Options for a JVM that writes the archive when it ends in good order inside the block; none if there is one."""
    path = _path(name, java, jars)
    with cache_lock(f"{name}-archive") as scratch:
        if path.is_file():
            yield []
            return
        written = scratch / path.name
        yield [f"-XX:ArchiveClassesAtExit={written}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
        if written.is_file():
            written.replace(path)
        _forget(name)


def _path(name: str, java: Java, jars: Sequence[Path]) -> Path:
    """Named by all that the JVM compares before it trusts an archive."""
    parts = [str(java.home), _facts(java.home / "lib" / "modules"), *map(_facts, sorted(jars))]
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
    return cache_folder("archives") / f"{name}-{digest[:16]}.jsa"


def _facts(path: Path) -> str:
    if not path.is_file():
        return str(path)
    seen = path.stat()
    return f"{path} {seen.st_size} {seen.st_mtime_ns}"


def _forget(name: str) -> None:
    for old in sorted(cache_folder("archives").glob(f"{name}-*.jsa"), key=lambda p: p.stat().st_mtime)[:-_KEPT]:
        old.unlink(missing_ok=True)
