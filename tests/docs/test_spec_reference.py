"""The spec reference: tables generated from the models, and an example for each block.

To regenerate the tables: `cd tests; python -m docs.test_spec_reference`. Text below a table (its example) is kept.
"""

import re
from pathlib import Path

import pytest
import yaml

from docs.pages import paths, section
from headrace.spec.base import model_keys, parts_in
from headrace.spec.json_schema import json_schema_text, settings_reference, spark_settings_reference, spec_reference
from headrace.spec.model import Spec
from headrace.validate.load import examine_text

DOCS = Path(__file__).parents[2] / "docs" / "reference"
SCALING = DOCS.parent / "operate" / "scaling.md"
PAGE, SETTINGS, SCHEMA = DOCS / "spec.md", DOCS / "sources" / "kafka.md", DOCS / "headrace.schema.json"


def with_tables(page):
    """The page with its generated tables replaced, and the text below each table kept."""
    head, keys, tail = _parts_of(page, "keys: from the models")
    notes = {heading: _below_table(text) for heading, text in _sections(keys)}
    parts = [
        f"### {heading}\n{text.rstrip()}\n{notes.get(heading, '')}" for heading, text in _sections(spec_reference())
    ]
    return head + "\n".join(parts) + tail


def with_settings(page):
    """The page with the generated table of consumer settings replaced."""
    head, _, tail = _parts_of(page, "settings: from the list")
    return head + settings_reference().rstrip("\n") + "\n" + tail


def with_spark_settings(page):
    """The page with the generated table of Spark settings replaced."""
    head, _, tail = _parts_of(page, "spark settings: from the list")
    return head + spark_settings_reference().rstrip("\n") + "\n" + tail


def _parts_of(page, name):
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name.partition(':')[0]} -->"
    head, _, rest = page.partition(begin)
    generated, _, tail = rest.partition(end)
    return head + begin, generated, end + tail


def _sections(markdown):
    return [part.split("\n", 1) for part in re.split(r"^### ", markdown, flags=re.MULTILINE)[1:]]


def _below_table(text):
    below = re.split(r"(?:^\|[^\n]*\n)+", text, maxsplit=1, flags=re.MULTILINE)[1].strip()
    return f"\n{below}\n" if below else ""


def test_the_reference_is_up_to_date():
    assert PAGE.read_text() == with_tables(PAGE.read_text())
    assert SETTINGS.read_text() == with_settings(SETTINGS.read_text())
    assert SCALING.read_text() == with_spark_settings(SCALING.read_text())


@pytest.mark.parametrize("heading", [heading for heading, _ in _sections(spec_reference())])
def test_every_block_has_an_example(heading):
    text = section("docs/reference/spec.md", f"### {heading}")
    examples = re.findall(r"^```yaml[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    used = {path for example in examples for path in paths(yaml.safe_load(example), Spec)}
    prefix = "" if heading == "Pipeline" else heading.strip("`").replace("[]", "") + "."
    assert any(path.startswith(prefix) for path in used)


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
    PAGE.write_text(with_tables(PAGE.read_text()))
    SETTINGS.write_text(with_settings(SETTINGS.read_text()))
    SCALING.write_text(with_spark_settings(SCALING.read_text()))
    SCHEMA.write_text(json_schema_text())
