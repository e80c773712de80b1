"""Packages of a lock file in a folder of their own: kept in the cache until the lock changes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from headrace.runtime import cache

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def locked_packages(lock: Path) -> Path:
    """The packages of a lock and no others."""
    name = f"packages-{lock.stem}"
    key = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()[:16]
    with cache.cache_lock(name) as scratch:
        kept = cache.cache_folder(name)
        if not (kept / key).exists():
            command = [*PIP, "install", "--require-hashes", "--target", str(scratch / key), "-r", str(lock)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
            assert done.returncode == 0, done.stderr
            for outdated in kept.iterdir():
                shutil.rmtree(outdated)
            (scratch / key).rename(kept / key)
    return kept / key
