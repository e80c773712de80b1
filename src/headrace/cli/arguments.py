"""Parsers of command-line arguments; UsageError for invalid ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.table import Table


def open_table(path: str, spec_file: Path | None, direct_commit: bool = False) -> Table:
    """Table at a path, with the storage settings and the pipeline states of an optional spec."""
    from headrace.table import Table
    from headrace.validate.load import load

    states = {spec.pipeline: spec.state_uri for spec in load(spec_file)} if spec_file else {}
    return Table(path, storage_profile(spec_file), states=states, direct_commit=direct_commit)


def storage_profile(spec_file: Path | None) -> Any:
    """Storage settings of an optional spec."""
    from headrace.validate.load import load

    return load(spec_file)[0].storage_profile() if spec_file else None


def name_values(texts: Sequence[str] | None) -> dict[str, str]:
    """Parse `name=value` pairs."""
    from headrace.errors import UsageError

    if invalid := [text for text in texts or () if text.find("=") < 1]:
        raise UsageError(f"Invalid value: '{invalid[0]}'.", hint="Use name=value.")
    return {name: value for name, _, value in (text.partition("=") for text in texts or ())}


def file_content(file: str) -> bytes:
    """Content of a file, or of stdin for `-`."""
    from headrace.errors import UsageError

    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"Cannot read {file}: {error.strerror}.", hint="Specify a file, or - for stdin.") from None
