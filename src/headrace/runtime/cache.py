"""Per-user cache of downloaded jars, the JRE and class archives."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.runtime.work_folder import create_folder


def cache_path(*parts: str) -> Path:
    """Path in the cache, which may be read-only, and in which it may be missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base.joinpath("headrace", *parts)


def cache_folder(*parts: str) -> Path:
    """Directory in the cache; created if missing."""
    return create_folder(cache_path(*parts), "XDG_CACHE_HOME")


@contextmanager
def cache_lock(name: str) -> Iterator[Path]:
    """Hold a lock of the cache, with an empty scratch directory; the kernel releases it if the process dies."""
    with (cache_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        scratch = cache_folder() / f"{name}.part"
        shutil.rmtree(scratch, ignore_errors=True)  # of a killed process
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
