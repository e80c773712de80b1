"""YAML that must not harm: each hostile text is refused with its place, quickly, and nothing of it runs."""

from pathlib import Path

import pytest

from headrace.spec.yaml_reader import InvalidYaml, parse_yaml
from headrace.validate.load import examine, examine_text, loads

GOOD = """\
pipeline: web
source: {kafka: {brokers: "localhost:9092", topics: [web_requests]}}
table: {path: ./lake/web_requests}
"""

_LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{b}: &{b} [*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a},*{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_FEW_LAUGHS = "a: &a [" + "1," * 30_000 + "]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"
_DEEP_BY_ALIAS = "a: &a " + "[" * 20 + "]" * 20 + "\n" + "b: &b " + "[" * 20 + "*a" + "]" * 20 + "\n"

HOSTILE = {
    "code": ("a: !!python/object/apply:os.system [id]", "tag"),
    "code by a class": ("!!python/object/new:subprocess.Popen [[id]]", "tag"),
    "a tag of its own": ("a: !secret x", "tag"),
    "a harmless tag": ("a: !!str 1", "tag"),
    "a bare tag": ("a: ! x", "tag"),
    "a tagged key": ("!!str a: 1", "key"),
    "a billion laughs": (_LAUGHS, "aliases"),
    "laughs within the limit of aliases": (_FEW_LAUGHS, "too many values"),
    "an alias of itself": ("a: &a [*a]", "anchor"),
    "an unknown alias": ("a: *b", "anchor"),
    "a deep list": ("a: " + "[" * 500 + "]" * 500, "nested"),
    "a very deep list": ("[" * 200_000, "nested"),
    "a deep mapping": ("".join(" " * n + f"k{n}:\n" for n in range(40)), "nested"),
    "depth by aliases": (_DEEP_BY_ALIAS, "nested"),
    "the same key twice": ("pipeline: a\npipeline: b", "duplicate key"),
    "a merge key": ("a: &a {x: 1}\nb: {<<: *a}", "merge"),
    "a list as key": ("[a, b]: 1", "key"),
    "an alias as key": ("a: &a x\n*a : 1", "key"),
    "a directive": ("%TAG ! tag:example.com,2000:\n---\na: 1", "directive"),
    "another YAML": ("%YAML 1.1\n---\na: yes", "directive"),
    "a control character": ("a: \x07", "character"),
    "a NUL": ("a: \x00", "character"),
    "an open quote": ('a: "b', "invalid YAML"),
    "a tab as indent": ("a:\n\tb: 1", "invalid YAML"),
    "more than a mebibyte": ("# " + "x" * 1024 * 1024, "1 MiB"),
    "many values": ("[" + "1," * 200_000 + "]", "too many values"),
}


def _examine(text):
    return examine_text(text, Path("/base"), "web.yaml")


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused(name):
    text, word = HOSTILE[name]
    with pytest.raises(InvalidYaml) as refused:
        parse_yaml(text)
    assert word in refused.value.message
    assert refused.value.spot.line >= 1


def test_the_place_is_that_of_the_error():
    _, findings = _examine(GOOD + "table: x\n")
    assert [(each.line, each.column) for each in findings] == [(4, 1)]
    assert "duplicate key" in findings[0].message


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", "y", "2025-01-31", "1:30", "0x1F", ".inf", ".nan", "1e999"])
def test_only_yaml_1_2_has_a_say_in_what_a_word_means(word):
    assert parse_yaml(f"a: {word}")[0].plain() == {"a": word}


def test_plain_values():
    text = "{a: true, b: ~, c: 12, d: -1.5, e: '12', f: 010, g: 1e3, h: , i: [x, {y: z}]}"
    plain = {
        "a": True,
        "b": None,
        "c": 12,
        "d": -1.5,
        "e": "12",
        "f": 10,
        "g": 1000.0,
        "h": None,
        "i": ["x", {"y": "z"}],
    }
    assert parse_yaml(text)[0].plain() == plain


def test_a_huge_number_stays_text_and_costs_nothing():
    assert parse_yaml("a: " + "9" * 100_000)[0].plain() == {"a": "9" * 100_000}


def test_a_few_aliases_are_fine():
    assert parse_yaml("a: &a [1]\nb: *a\nc: *a")[0].plain() == {"a": [1], "b": [1], "c": [1]}


def test_several_documents_are_several_pipelines():
    specs = loads(GOOD + "---\n" + GOOD.replace("web", "shop") + "---\n")
    assert [spec.pipeline for spec in specs] == ["web", "shop"]


def test_an_empty_text_is_no_spec():
    assert _examine("# nothing\n")[1][0].message == "no pipeline"


@pytest.mark.parametrize(
    ("content", "word"), [(b"pipeline: \xff", "not valid UTF-8"), (GOOD.encode("utf-16"), "not valid UTF-8")]
)
def test_a_file_in_another_encoding_is_refused(tmp_path, content, word):
    (tmp_path / "web.yaml").write_bytes(content)
    assert word in examine(tmp_path / "web.yaml")[1][0].message


def test_a_byte_order_mark_is_no_error(tmp_path):
    (tmp_path / "web.yaml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())
    specs, findings = examine(tmp_path / "web.yaml")
    assert [spec.pipeline for spec in specs] == ["web"]
    assert findings == []


def test_a_file_that_is_not_there_is_a_diagnostic(tmp_path):
    assert "No such file" in examine(tmp_path / "web.yaml")[1][0].message
