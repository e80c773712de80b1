"""Further diagnostics of a spec with invalid values: the rest is checked without them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as Folder
from typing import Any

from pydantic import ValidationError

from headrace.spec.diagnostics import MISSING_KEY, Document, UnlocatedDiagnostic, from_validation
from headrace.spec.model import Spec
from headrace.spec.yaml_reader import Path, YamlNode
from headrace.validate.rules import check_spec

_ROUNDS = 5
# Rules relate these keys: if one of them was removed as invalid, diagnostics about the others may be wrong.
_ROWS = frozenset({"decode", "explode", "transform", "route", "table", "tables", "branches", "allow_missing"})
_PLAIN = frozenset({"compression", "target_file_size", "min_file_size", "max_file_size", "infer", "source", "strict"})


def more_diagnostics(
    content: Any, diagnostics: Sequence[UnlocatedDiagnostic], document: Document, base: Folder
) -> Iterator[UnlocatedDiagnostic]:
    """Check the spec without its invalid values; omits diagnostics that their removal could have caused."""
    invalid, more = {diagnostic.path for diagnostic in diagnostics}, list[UnlocatedDiagnostic]()
    for _ in range(_ROUNDS):
        moved: dict[Path, Path] = {(): ()}
        remainder = _without(content, invalid, (), (), moved)
        if remainder is None or () in invalid:
            break
        try:
            spec = Spec.model_validate(remainder, context={"base": base})
        except ValidationError as error:
            moved_diagnostics = [
                _back(diagnostic, moved)
                for diagnostic in from_validation(error, _Moved(document.file, document.root, moved))
            ]
            more += [
                diagnostic
                for diagnostic in moved_diagnostics
                if not _touches(diagnostic.path, invalid) and diagnostic.message != MISSING_KEY
            ]
            invalid = invalid | {
                diagnostic.path[:-1] if diagnostic.message == MISSING_KEY else diagnostic.path
                for diagnostic in moved_diagnostics
            }
            continue
        more += [_back(diagnostic, moved) for diagnostic in check_spec(spec)]
        break
    yield from (diagnostic for diagnostic in dict.fromkeys(more) if not _doubtful(diagnostic.path, invalid))


@dataclass(frozen=True)
class _Moved(Document):
    """Document without some list items: maps indexes of the remaining items to the original ones."""

    moved: Mapping[Path, Path] = field(default_factory=dict)

    def at(self, path: Path) -> YamlNode | None:
        return Document.at(self, _original(path, self.moved))


def _without(value: Any, invalid: set[Path], path: Path, here: Path, moved: dict[Path, Path]) -> Any:
    """Content without its invalid values; stores the original path of each list item in `moved`."""
    if isinstance(value, dict):
        entries = {key: inner for key, inner in value.items() if (*path, key) not in invalid}
        return {key: _without(inner, invalid, (*path, key), (*here, key), moved) for key, inner in entries.items()}
    if not isinstance(value, list):
        return value
    indexes = [index for index in range(len(value)) if (*path, index) not in invalid]
    for now, before in enumerate(indexes):
        moved[(*here, now)] = (*path, before)
    return [
        _without(value[before], invalid, (*path, before), (*here, now), moved) for now, before in enumerate(indexes)
    ]


def _original(path: Path, moved: Mapping[Path, Path]) -> Path:
    original: Path = ()
    for at, step in enumerate(path, 1):
        original = moved[path[:at]] if isinstance(step, int) and path[:at] in moved else (*original, step)
    return original


def _back(diagnostic: UnlocatedDiagnostic, moved: dict[Path, Path]) -> UnlocatedDiagnostic:
    return replace(diagnostic, path=_original(diagnostic.path, moved))


def _touches(path: Path, invalid: Iterable[Path]) -> bool:
    """Whether a path is inside an invalid value, or contains one."""
    return any(
        path[: len(invalid_path)] == invalid_path or invalid_path[: len(path)] == path for invalid_path in invalid
    )


def _doubtful(path: Path, invalid: Iterable[Path]) -> bool:
    """Whether a diagnostic at a path may be caused by the removal of a value."""
    weighty = [
        invalid_path
        for invalid_path in invalid
        if not (invalid_path[0] in ("table", "tables") and _PLAIN & {*invalid_path})
    ]
    related = any(invalid_path[0] in _ROWS and path[:1] and path[0] in _ROWS for invalid_path in weighty)
    return _touches(path, invalid) or related or any(invalid_path[:1] == path[:1] for invalid_path in weighty)
