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
_ROWS = frozenset({"decode", "explode", "transform", "route", "table", "tables", "branches", "topics", "allow_missing"})
# Keys of a table that no rule relates to other keys, unless the diagnostic names them in `depends_on`.
_PLAIN = frozenset({"compression", "target_file_size", "min_file_size", "max_file_size", "infer", "source", "strict"})
_RELATED_COLUMN_KEYS = frozenset({"name", "type", "unit"})  # of a column; a rule relates the others only inside of it


def more_diagnostics(
    content: Any, diagnostics: Sequence[UnlocatedDiagnostic], document: Document, base: Folder
) -> Iterator[UnlocatedDiagnostic]:
    """Check the spec without its invalid values; omits diagnostics that their removal could have caused."""
    invalid, more = {diagnostic.path for diagnostic in diagnostics}, list[UnlocatedDiagnostic]()
    meant = {path for diagnostic in diagnostics for path in _meant(diagnostic)}
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
            meant |= {path for diagnostic in moved_diagnostics for path in _meant(diagnostic)}
            invalid = invalid | {
                diagnostic.path[:-1] if diagnostic.message == MISSING_KEY else diagnostic.path
                for diagnostic in moved_diagnostics
            }
            continue
        more += [_back(diagnostic, moved) for diagnostic in check_spec(spec)]
        break
    yield from (diagnostic for diagnostic in dict.fromkeys(more) if not _doubtful(diagnostic, invalid, meant))


def _meant(diagnostic: UnlocatedDiagnostic) -> Iterator[Path]:
    """Key that an unknown key probably stands for: its value could not be read either."""
    if diagnostic.on_key and diagnostic.suggestion:
        yield (*diagnostic.path[:-1], diagnostic.suggestion)


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
    depends_on = diagnostic.depends_on and tuple(_original(path, moved) for path in diagnostic.depends_on)
    return replace(diagnostic, path=_original(diagnostic.path, moved), depends_on=depends_on)


def _touches(path: Path, invalid: Iterable[Path]) -> bool:
    """Whether a path is inside an invalid value, or contains one."""
    return any(
        path[: len(invalid_path)] == invalid_path or invalid_path[: len(path)] == path for invalid_path in invalid
    )


def _doubtful(diagnostic: UnlocatedDiagnostic, invalid: set[Path], meant: set[Path]) -> bool:
    """Whether a diagnostic may be caused by the removal of a value."""
    path, unread = diagnostic.path, invalid | meant
    if diagnostic.depends_on is not None:
        inside = any(path[: len(invalid_path)] == invalid_path for invalid_path in unread)
        return inside or any(_touches(dependency, unread) for dependency in diagnostic.depends_on)
    weighty = [invalid_path for invalid_path in unread if _is_weighty(invalid_path)]
    related = path[:1] and path[0] in _ROWS and any(invalid_path[0] in _ROWS for invalid_path in weighty)
    same_column = any(_column(path) and _column(path) == _column(invalid_path) for invalid_path in unread)
    same_key = any(invalid_path[:1] == path[:1] for invalid_path in weighty)
    return bool(_touches(path, unread) or related or same_column or same_key)


def _is_weighty(path: Path) -> bool:
    """Whether rules relate a value to other keys."""
    table = _table(path)
    if not table:
        return True
    key, *below = path[len(table) :] or ("",)
    if key == "columns" and len(below) > 1:
        return below[1] in _RELATED_COLUMN_KEYS
    return key not in _PLAIN


def _table(path: Path) -> Path:
    """Path of the table options that contain a value: `table`, `tables[1]` or those of an output; empty if none do."""
    start = 2 if path[:1] in (("branches",), ("topics",)) else 0
    length = {"table": 1, "tables": 2}.get(str(path[start]), 0) if len(path) > start else 0
    return path[: start + length] if length else ()


def _column(path: Path) -> Path:
    """Path of the column that contains a value; empty if none does."""
    at = len(_table(path))
    return path[: at + 2] if at and path[at : at + 1] == ("columns",) and len(path) > at + 1 else ()
