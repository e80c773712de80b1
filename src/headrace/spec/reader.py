"""Parse a spec without the rules between keys, for text that has been validated before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from headrace.errors import SpecError
from headrace.spec import yaml_reader
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec, canonical_json, is_secret
from headrace.spec.secrets import BadReference, resolve_reference


def reread(text: str, base: Path) -> Spec:
    """The spec that an intent was planned with; a rule that is newer than the intent does not stop its batch."""
    try:
        return _parsed(yaml_reader.parse_yaml(text)[0], base)
    except ValidationError as invalid:
        causes = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in invalid.errors(include_input=False)]
        raise SpecError(
            f"The spec that the open batch was planned with is not valid in this version: {'; '.join(causes)}.",
            hint="Run the pipeline once with the version of Headrace that began the batch, then with this one.",
        ) from None


def _parsed(root: yaml_reader.YamlNode, base: Path) -> Spec:
    raw, complaints = root.plain(), list[UnlocatedDiagnostic]()
    followed = follow(raw, (), base, complaints)
    if complaints:
        raise SpecError("; ".join(f"{'.'.join(map(str, each.path))}: {each.message}" for each in complaints))
    spec = Spec.model_validate(followed, context={"base": base})
    spec.remember(canonical_json(raw), base, yaml_reader.SpecSource("<spec>", root))
    return spec


def follow(value: Any, path: yaml_reader.Path, base: Path, complaints: list[UnlocatedDiagnostic]) -> Any:
    """Plain data with references resolved, except secrets."""
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
