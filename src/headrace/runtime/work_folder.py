"""Work directories: local scratch data that may be lost at any time."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import SetupError


def create_folder(folder: Path, setting: str, mode: int = 0o777) -> Path:
    """Create a directory if missing; SetupError with the setting that selects another one if that fails."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"Cannot create the directory {folder}: {error.strerror}.",
            hint=f"Set {setting} to a writable directory.",
        ) from None
    return folder


def shared_folder(name: str) -> Path:
    """Private directory of all pipelines; created if missing."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return create_folder(base / "headrace" / f".{name}", "XDG_STATE_HOME", 0o700)
