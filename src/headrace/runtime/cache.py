"""The per-user cache: what a fresh machine fetches once and then keeps."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.runtime.work_folder import made


def cache_folder(*parts: str) -> Path:
    """A folder of the cache, made when it is missing."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return made(base.joinpath("headrace", *parts), "XDG_CACHE_HOME")


@contextmanager
def cache_lock(name: str) -> Iterator[Path]:
    """Hold one of the cache's locks, with an empty folder to work in; the kernel lets go of it when the holder dies."""
    with (cache_folder() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        scratch = cache_folder() / f"{name}.part"
        shutil.rmtree(scratch, ignore_errors=True)  # what a killed holder left
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
