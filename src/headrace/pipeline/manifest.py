"""What a Spark task reports to the driver."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

from headrace.decode.inference import Structure
from headrace.delta.staged_file import StagedFile, staged_file
from headrace.plan.accounting import Counts
from headrace.plan.unknown_names import UnknownName
from headrace.spec.route_id import RouteId


@dataclass(frozen=True, slots=True)
class Manifest:
    """The result of a task: files, counts, newly discovered fields and routes, or an error; never rows."""

    files: tuple[StagedFile, ...] = ()
    counts: Counts = field(default_factory=Counts)
    discovered: Mapping[RouteId, Structure] = field(default_factory=dict)  # fields that the route schema lacks
    assumed: tuple[RouteId, ...] = ()  # routes that were staged as the spec declares them
    unknown: Mapping[RouteId, Set[UnknownName]] = field(default_factory=dict)  # names in the spec that nothing has
    error: Mapping[str, Any] | None = None  # the error that ended the task, by `HeadraceError.to_dict`

    def to_json(self) -> str:
        """Serialize to one line of JSON."""
        raw = {
            "files": [asdict(item) for item in self.files],
            "counts": asdict(self.counts),
            "discovered": {str(route_id): structure for route_id, structure in self.discovered.items()},
            "assumed": [str(route_id) for route_id in self.assumed],
            "unknown": {str(route_id): [astuple(name) for name in names] for route_id, names in self.unknown.items()},
            "error": self.error,
        }
        return json.dumps(raw, separators=(",", ":"), default=str)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse the JSON of `to_json`."""
        raw = json.loads(text)
        unknown = raw["unknown"].items()
        return cls(
            tuple(staged_file(item) for item in raw["files"]),
            Counts(**raw["counts"]),
            {RouteId.parse(route): structure for route, structure in raw["discovered"].items()},
            tuple(RouteId.parse(route) for route in raw["assumed"]),
            {RouteId.parse(route): frozenset(UnknownName(*name) for name in names) for route, names in unknown},
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
