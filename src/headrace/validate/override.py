"""Overrides of spec keys by dotted path, for dry runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from headrace.errors import UsageError
from headrace.spec import yaml_reader
from headrace.spec.model import Spec, canonical_json
from headrace.validate.load import loads


def override_spec(spec: Spec, texts: Iterable[str]) -> Spec:
    """Apply `key.path=value` overrides: YAML values, list items by index; an empty value removes the key."""
    content, overrides = json.loads(spec.text), list(texts)
    if not overrides:
        return spec
    for change in overrides:
        path, equals, text = change.partition("=")
        if not equals or not all(path.split(".")):
            raise UsageError(f"Invalid override: '{change}'.", hint="Use key.path=value, such as limits.depth=128.")
        content = _changed(content, path.split("."), _value(change, text), change)
    return loads(canonical_json(content), spec.base, "the spec with --set")[0]


def _value(change: str, text: str) -> Any:
    try:
        documents = yaml_reader.parse_yaml(text)
    except yaml_reader.InvalidYaml as error:
        raise UsageError(f"'{change}': {error.message}.", hint="The value is YAML; quote it if it is text.") from None
    if len(documents) > 1:
        raise UsageError(f"'{change}': the value has more than one YAML document.")
    return documents[0].plain() if documents else None


def _changed(content: Any, path: list[str], value: Any, change: str) -> Any:
    """Copy with one value changed; missing mappings are created."""
    if not path:
        return value
    if isinstance(content, list):
        return _item_changed(content, path, value, change)
    here = dict(content) if isinstance(content, dict) else {}  # a short form is replaced by a mapping
    changed = _changed(here.get(path[0]), path[1:], value, change)
    if changed is None and len(path) == 1:
        here.pop(path[0], None)
        return here
    return {**here, path[0]: changed}


def _item_changed(content: list[Any], path: list[str], value: Any, change: str) -> list[Any]:
    if not path[0].isdecimal() or int(path[0]) > len(content):
        raise UsageError(
            f"'{change}': index {path[0]} is out of range for a list of {len(content)}.", hint="Indexes start at 0."
        )
    index = int(path[0])
    changed = _changed(content[index] if index < len(content) else None, path[1:], value, change)
    return [*content[:index], *([] if changed is None else [changed]), *content[index + 1 :]]
