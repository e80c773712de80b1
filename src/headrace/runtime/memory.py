"""Memory of this process and of those that it has started: the JVM and its Python workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_PROCESSES = Path("/proc")


def process_tree(root: int) -> list[int]:
    """A process and its descendants; empty where there is no /proc."""
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    if not children:
        return []
    processes = [root]
    for process in processes:  # grows while it is read
        processes += children.get(process, [])
    return processes


def proportional_bytes(pid: int) -> int:
    """Memory of a process in which shared pages count in part (PSS); resident memory where the kernel has no PSS."""
    with suppress(OSError, ValueError):
        for line in (_PROCESSES / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return _resident_bytes(pid)


def program_of(pid: int) -> str:
    """Name of the program of a process; empty if it has ended."""
    with suppress(OSError):
        return (_PROCESSES / str(pid) / "comm").read_text().strip()
    return ""


def _parents() -> Iterator[tuple[int, int]]:
    """Every process with its parent."""
    with suppress(OSError):
        for entry in _PROCESSES.iterdir():
            if entry.name.isdigit():
                with suppress(OSError, ValueError):  # the process has ended
                    yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])


def _resident_bytes(pid: int) -> int:
    with suppress(OSError, ValueError):
        return int((_PROCESSES / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
