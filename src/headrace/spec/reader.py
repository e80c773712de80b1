"""A spec from its text, without the rules between keys: for text that was checked when it was first read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import SpecError
from headrace.spec import yaml_reader
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec, canonical_json, is_secret
from headrace.spec.secrets import BadReference, resolve_reference


def reread(text: str, base: Path) -> Spec:
    """The spec that an intent was planned with; a rule that is newer than the intent does not stop its batch."""
    root = yaml_reader.parse_yaml(text)[0]
    raw, complaints = root.plain(), list[UnlocatedDiagnostic]()
    followed = follow(raw, (), base, complaints)
    if complaints:
        raise SpecError("; ".join(f"{'.'.join(map(str, each.path))}: {each.message}" for each in complaints))
    spec = Spec.model_validate(followed, context={"base": base})
    spec.remember(canonical_json(raw), base, yaml_reader.SpecSource("<spec>", root))
    return spec


def follow(value: Any, path: yaml_reader.Path, base: Path, complaints: list[UnlocatedDiagnostic]) -> Any:
    """Plain data with its references followed, but for secrets, which stay references."""
    if isinstance(value, dict):
        return {key: follow(inner, (*path, key), base, complaints) for key, inner in value.items()}
    if isinstance(value, list):
        return [follow(inner, (*path, index), base, complaints) for index, inner in enumerate(value)]
    if not isinstance(value, str) or is_secret(path):
        return value
    try:
        return resolve_reference(value, base)
    except BadReference as trouble:
        complaints.append(UnlocatedDiagnostic(path, trouble.message.removesuffix("."), trouble.hint.removesuffix(".")))
        return value
