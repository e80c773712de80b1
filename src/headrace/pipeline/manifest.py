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
    """The result of a task: files, counts, newly discovered fields and routes, or an error; never rows."""

    files: tuple[StagedFile, ...] = ()
    counts: Counts = field(default_factory=Counts)
    discovered: Mapping[str, Any] = field(default_factory=dict)  # route -> structure seen (decode's own form)
    assumed: tuple[str, ...] = ()  # routes that were staged as the spec declares them
    unknown: Mapping[str, tuple[tuple[str, str, str], ...]] = field(default_factory=dict)  # by route: names it lacks
    error: Mapping[str, Any] | None = None  # the error that ended the task, by `HeadraceError.to_dict`

    def to_json(self) -> str:
        """Serialize to one line of JSON."""
        return json.dumps(asdict(self), separators=(",", ":"), default=str)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse the JSON of `to_json`."""
        raw = json.loads(text)
        return cls(
            tuple(staged_file(item) for item in raw["files"]),
            Counts(**raw["counts"]),
            raw["discovered"],
            tuple(raw["assumed"]),
            {route: tuple((at, name, meant) for at, name, meant in found) for route, found in raw["unknown"].items()},
            raw["error"],
        )


def merge_manifests(manifests: Iterable[Manifest]) -> tuple[tuple[StagedFile, ...], Counts]:
    """All files and the whole account of a batch's tasks."""
    files: list[StagedFile] = []
    counts = Counts()
    for manifest in manifests:
        files.extend(manifest.files)
        counts = counts + manifest.counts
    return tuple(files), counts
