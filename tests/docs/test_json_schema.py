"""The JSON Schema that editors are given, held to a validator that is not ours."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import yaml
from jsonschema import Draft202012Validator

from docs.pages import SMALLEST, Block, blocks, whole
from headrace.spec.json_schema import json_schema

VALIDATOR = Draft202012Validator(json_schema())


class AsEditors(yaml.SafeLoader):
    """YAML 1.2 knows no dates: what looks like one is text."""

    yaml_implicit_resolvers: ClassVar = {
        first: [each for each in known if each[0] != "tag:yaml.org,2002:timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def findings(document: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(json_schema())


# A block with the name of a file is a configuration of another system.
@pytest.mark.parametrize("block", [each for each in blocks("yaml") if not each.mark.endswith(".yaml")], ids=str)
def test_every_example_fits_it(block: Block):
    documents = list(yaml.load_all(whole(block), AsEditors))
    assert documents
    assert [found for document in documents for found in findings(document)] == []


def mappings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where a spec holds a mapping of keys that we name."""
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from mappings(inner, (*path, key))


@pytest.mark.parametrize("path", list(mappings(SMALLEST)), ids=lambda path: ".".join(path) or "the spec itself")
def test_an_unknown_key_does_not(path: tuple[str, ...]):
    spec = copy.deepcopy(SMALLEST)
    assert findings(spec) == []
    part: Any = spec
    for key in path:
        part = part[key]
    part["brokres"] = "x"
    assert any("brokres" in found for found in findings(spec))


@pytest.mark.parametrize(
    "wrong",
    [
        {"pipeline": "Not A Name"},
        {"table": {}},
        {"flush": {"every": "soon"}},
        {"route": {"by": "whim"}},
        {"table": {"path": "./lake", "columns": [{"name": "id"}]}},
    ],
    ids=str,
)
def test_what_the_models_refuse_by_its_form_does_not_fit_either(wrong: dict[str, Any]):
    assert findings({**SMALLEST, **wrong})
