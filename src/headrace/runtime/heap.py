"""The C heap of a worker: memory that one chunk of records frees is what the next one needs."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for them
_KEPT = 128 * 1024 * 1024  # free bytes at the heap's end that stay with the process
_LARGE = 32 * 1024 * 1024  # from here on a block is mapped by itself; glibc takes no more


def keep_freed_memory() -> bool:
    """Ask glibc not to give freed memory back at once: to fault it in again costs a fifth of a batch's CPU."""
    if sys.platform != "linux":
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return tune is not None and bool(tune(_MMAP_THRESHOLD, _LARGE) and tune(_TRIM_THRESHOLD, _KEPT))
