"""What a Spark task reports to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.delta.staged_file import StagedFile, staged_file
from headrace.plan.accounting import Counts


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that a task tells the driver: files, counts, and what it discovered; never rows."""

    files: tuple[StagedFile, ...] = ()
    counts: Counts = field(default_factory=Counts)
    discovered: Mapping[str, Any] = field(default_factory=dict)  # route -> structure seen (decode's own form)
    assumed: tuple[str, ...] = ()  # routes that were staged as the spec declares them
    unknown: Mapping[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)  # by route: names it lacks
    stop: str = ""  # a named error found in a task: its name, what was seen and what to do next, as JSON

    def to_json(self) -> str:
        """One line of JSON for the way out of the task."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """The way back in."""
        raw = json.loads(text)
        return cls(
            tuple(staged_file(item) for item in raw["files"]),
            Counts(**raw["counts"]),
            raw["discovered"],
            tuple(raw["assumed"]),
            {route: tuple((at, name, meant) for at, name, meant in found) for route, found in raw["unknown"].items()},
            raw["stop"],
        )


def merge_manifests(manifests: Iterable[Manifest]) -> tuple[tuple[StagedFile, ...], Counts]:
    """All files and the whole account of a batch's tasks."""
    files: list[StagedFile] = []
    counts = Counts()
    for manifest in manifests:
        files.extend(manifest.files)
        counts = counts + manifest.counts
    return tuple(files), counts
