"""The work folder: what this machine keeps while it runs and can lose at any time."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.errors import SetupError


def work_folder(pipeline: str) -> Path:
    """A private folder for one pipeline's work, made when it is missing."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return made(base / "headrace" / pipeline, "XDG_STATE_HOME", 0o700)


def made(folder: Path, setting: str, mode: int = 0o777) -> Path:
    """A folder, created when it is missing; SetupError with the setting that names another one when it cannot be."""
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"Cannot create the directory {folder}: {error.strerror}.",
            hint=f"Set {setting} to a writable directory.",
        ) from None
    return folder


def shared_folder(name: str) -> Path:
    """A private folder that all pipelines share; no pipeline can have its name."""
    return work_folder(f".{name}")
