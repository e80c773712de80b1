"""A spec with some keys changed, by their dotted paths; validated like any other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headrace.errors import UsageError
from headrace.spec import yaml_reader
from headrace.spec.model import Spec, canonical_json
from headrace.validate.load import loads


def amended(spec: Spec, changes: Iterable[str]) -> Spec:
    """The spec after `key.path=value` (YAML; list items by their number; an empty value takes the key out)."""
    content, given = json.loads(spec.text), list(changes)
    if not given:
        return spec
    for change in given:
        path, equals, text = change.partition("=")
        if not equals or not all(path.split(".")):
            raise UsageError(
                f"Invalid override: '{change}'; expected key.path=value.", hint="Use, for example, limits.depth=128."
            )
        content = _changed(content, path.split("."), _value(change, text), change)
    return loads(canonical_json(content), spec.base, "the spec after --set")[0]


def _value(change: str, text: str) -> Any:
    try:
        found = yaml_reader.parse_yaml(text)
    except yaml_reader.InvalidYaml as trouble:
        raise UsageError(f"'{change}': {trouble.message}.", hint="The value is YAML; quote it if it is text.") from None
    if len(found) > 1:
        raise UsageError(f"'{change}': the value has more than one YAML document.")
    return found[0].plain() if found else None


def _changed(content: Any, path: list[str], value: Any, change: str) -> Any:
    """A copy with one thing changed; what is missing on the way is made."""
    if not path:
        return value
    if isinstance(content, list):
        return _item_changed(content, path, value, change)
    here = dict(content) if isinstance(content, dict) else {}  # a short form gives way to the long one
    made = _changed(here.get(path[0]), path[1:], value, change)
    if made is None and len(path) == 1:
        here.pop(path[0], None)
        return here
    return {**here, path[0]: made}


def _item_changed(content: list[Any], path: list[str], value: Any, change: str) -> list[Any]:
    if not path[0].isdecimal() or int(path[0]) > len(content):
        raise UsageError(
            f"'{change}': index {path[0]} is out of range for a list of {len(content)}.", hint="Indexes start at 0."
        )
    at = int(path[0])
    made = _changed(content[at] if at < len(content) else None, path[1:], value, change)
    return [*content[:at], *([] if made is None else [made]), *content[at + 1 :]]
