"""The work folder: what this machine keeps while it runs and can lose at any time."""

from __future__ import annotations

import os
from pathlib import Path


def work_folder(pipeline: str) -> Path:
    """A private folder for one pipeline's work, made when it is missing."""
    base = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    folder = base / "headrace" / pipeline
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def shared_folder(name: str) -> Path:
    """A private folder that all pipelines share; no pipeline can have its name."""
    return work_folder(f".{name}")
