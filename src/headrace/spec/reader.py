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


def parse_intent_spec(text: str, base: Path) -> Spec:
    """Parse the spec of an intent; rules that are newer than the intent do not stop its batch."""
    try:
        return _parsed(yaml_reader.parse_yaml(text)[0], base)
    except ValidationError as error:
        causes = [
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors(include_input=False)
        ]
        raise SpecError(
            f"The spec of the unfinished batch is not valid in this version of Headrace: {'; '.join(causes)}.",
            hint="Run the pipeline once with the version of Headrace that started the batch, then with this version.",
        ) from None


def _parsed(root: yaml_reader.YamlNode, base: Path) -> Spec:
    raw, diagnostics = root.plain(), list[UnlocatedDiagnostic]()
    content = follow(raw, (), base, diagnostics)
    if diagnostics:
        raise SpecError(
            "; ".join(f"{'.'.join(map(str, diagnostic.path))}: {diagnostic.message}" for diagnostic in diagnostics)
        )
    spec = Spec.model_validate(content, context={"base": base})
    spec.set_source_text(canonical_json(raw), base, yaml_reader.SpecSource("<spec>", root))
    return spec


def follow(value: Any, path: yaml_reader.Path, base: Path, diagnostics: list[UnlocatedDiagnostic]) -> Any:
    """Plain data with references resolved, except secrets."""
    if isinstance(value, dict):
        return {key: follow(inner, (*path, key), base, diagnostics) for key, inner in value.items()}
    if isinstance(value, list):
        return [follow(inner, (*path, index), base, diagnostics) for index, inner in enumerate(value)]
    if not isinstance(value, str) or is_secret(path):
        return value
    try:
        return resolve_reference(value, base)
    except BadReference as error:
        diagnostics.append(UnlocatedDiagnostic(path, error.message.removesuffix("."), error.hint.removesuffix(".")))
        return value
