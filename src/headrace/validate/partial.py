"""What else is wrong with a spec that has invalid values: the rest is checked without them."""

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
# Rules between keys rest on these: where one of them is left out, what they say of each other may be untrue.
_ROWS = frozenset({"decode", "explode", "transform", "route", "table", "tables", "branches", "allow_missing"})
_PLAIN = frozenset({"compression", "target_file_size", "min_file_size", "max_file_size", "infer", "source", "strict"})


def salvage(
    content: Any, complaints: Sequence[UnlocatedDiagnostic], document: Document, base: Folder
) -> Iterator[UnlocatedDiagnostic]:
    """More complaints, found in the spec without its invalid values; none that could come from leaving them out."""
    bad, more = {each.path for each in complaints}, list[UnlocatedDiagnostic]()
    for _ in range(_ROUNDS):
        moved: dict[Path, Path] = {(): ()}
        left = _without(content, bad, (), (), moved)
        if left is None or () in bad:
            break
        try:
            spec = Spec.model_validate(left, context={"base": base})
        except ValidationError as trouble:
            found = [
                _back(each, moved) for each in from_validation(trouble, _Moved(document.file, document.root, moved))
            ]
            more += [each for each in found if not _touches(each.path, bad) and each.message != MISSING_KEY]
            bad = bad | {each.path[:-1] if each.message == MISSING_KEY else each.path for each in found}
            continue
        more += [_back(each, moved) for each in check_spec(spec)]
        break
    yield from (each for each in dict.fromkeys(more) if not _doubtful(each.path, bad))


@dataclass(frozen=True)
class _Moved(Document):
    """A document as it is without some of its values: lists are shorter."""

    moved: Mapping[Path, Path] = field(default_factory=dict)

    def at(self, path: Path) -> YamlNode | None:
        return Document.at(self, _original(path, self.moved))


def _without(value: Any, bad: set[Path], path: Path, here: Path, moved: dict[Path, Path]) -> Any:
    """The content without its invalid values; `moved` learns where each item of a list was."""
    if isinstance(value, dict):
        kept = {key: inner for key, inner in value.items() if (*path, key) not in bad}
        return {key: _without(inner, bad, (*path, key), (*here, key), moved) for key, inner in kept.items()}
    if not isinstance(value, list):
        return value
    kept_items = [index for index in range(len(value)) if (*path, index) not in bad]
    for now, before in enumerate(kept_items):
        moved[(*here, now)] = (*path, before)
    return [_without(value[before], bad, (*path, before), (*here, now), moved) for now, before in enumerate(kept_items)]


def _original(path: Path, moved: Mapping[Path, Path]) -> Path:
    found: Path = ()
    for at, step in enumerate(path, 1):
        found = moved[path[:at]] if isinstance(step, int) and path[:at] in moved else (*found, step)
    return found


def _back(complaint: UnlocatedDiagnostic, moved: dict[Path, Path]) -> UnlocatedDiagnostic:
    return replace(complaint, path=_original(complaint.path, moved))


def _touches(path: Path, bad: Iterable[Path]) -> bool:
    """Whether a path is within an invalid value, or around one."""
    return any(path[: len(each)] == each or each[: len(path)] == path for each in bad)


def _doubtful(path: Path, bad: Iterable[Path]) -> bool:
    """Whether what is said of a path may come from a value that was left out."""
    weighty = [each for each in bad if not (each[0] in ("table", "tables") and _PLAIN & {*each})]
    related = any(each[0] in _ROWS and path[:1] and path[0] in _ROWS for each in weighty)
    return _touches(path, bad) or related or any(each[:1] == path[:1] for each in weighty)
