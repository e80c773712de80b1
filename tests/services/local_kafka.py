"""`headrace kafka` as a user runs it: in a terminal of its own, until it is asked to end."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.pipelines import HEADRACE


@contextmanager
def local_kafka(folder: Path, port: int, program: str | Path = HEADRACE, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """A broker in a folder, once it says that it listens; asked to end with SIGTERM."""
    command = [str(program), "kafka", str(folder), "--port", str(port)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **how)
    try:
        assert child.stdout is not None
        said = child.stdout.readline()
        assert said.startswith(f"Kafka is listening on localhost:{port}; "), said
        yield child
    finally:
        child.terminate()
        child.communicate(timeout=60)
