"""C heap of a worker: freed memory is reused for the next chunk of records."""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc
_RETAINED = 128 * 1024 * 1024  # free bytes at the end of the heap that are not returned
_LARGE = 32 * 1024 * 1024  # blocks from this size are mapped separately; the maximum of glibc


def keep_freed_memory() -> bool:
    """Make glibc retain freed memory: faulting it in again costs a fifth of the CPU of a batch."""
    if sys.platform != "linux":
        return False
    tune = getattr(ctypes.CDLL(None), "mallopt", None)  # not in musl
    return tune is not None and bool(tune(_MMAP_THRESHOLD, _LARGE) and tune(_TRIM_THRESHOLD, _RETAINED))
