"""The reference of the spec is the models': every key, its kind, default and meaning; its examples are right.

To write it anew: `python tests/docs/test_spec_reference.py`.
"""

import re
from pathlib import Path

import pytest

from headrace.spec.base import model_keys, parts_in
from headrace.spec.json_schema import json_schema_text, settings_reference, spec_reference
from headrace.spec.model import Spec
from headrace.validate.load import examine_text

DOCS = Path(__file__).parents[2] / "docs" / "reference"
PAGE, SCHEMA = DOCS / "spec.md", DOCS / "headrace.schema.json"
MADE = {"keys: from the models": spec_reference, "settings: from the list": settings_reference}


def rewritten(page):
    """The page with its made parts made anew."""
    for name, make in MADE.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name.partition(':')[0]} -->"
        head, _, rest = page.partition(begin)
        page = head + begin + make().rstrip("\n") + "\n" + end + rest.partition(end)[2]
    return page


def test_the_reference_is_up_to_date():
    assert PAGE.read_text() == rewritten(PAGE.read_text())


def test_the_json_schema_is_up_to_date():
    assert SCHEMA.read_text() == json_schema_text()


def test_every_key_is_explained():
    def fields(part):
        for key, field in model_keys(part).items():
            yield f"{part.__name__}.{key}", field
            for inner in parts_in(field.annotation):
                yield from fields(inner)

    assert [name for name, field in fields(Spec) if not (field.description or "").endswith(".")] == []


@pytest.mark.parametrize("example", re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_the_examples_are_right(example, tmp_path, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", "x")
    _, findings = examine_text(example, tmp_path, "spec.md")
    assert [str(each) for each in findings] == []


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
    SCHEMA.write_text(json_schema_text())
