"""Which bytes of a dead letter its detail speaks of."""

from __future__ import annotations

import pytest

from headrace.serve.console.rejected_values import masked_detail, rejected_span, rejected_value

MARKED = [
    (b'{"a": "\xff"}', "byte 7 is not valid UTF-8", b"\xff"),
    (b'{"a": 1', "Expecting ',' delimiter at character 7", b""),
    ('{"é": x}'.encode(), "Expecting value at character 6", b"x"),
    (b'{"a": 1} tail', "the value ends at character 8 of 13", b" tail"),
    (b'{"id": "x"}', "id: expected long, saw text 'x'", b'"x"'),
    (b'{"a": "it\'s"}', "a: expected long, saw text 'it's'", b'"it\'s"'),
    (b'{"a": 12.5}', "a: the number 12.5 does not fit decimal(2,1)", b"12.5"),
    (b'{"k": 1, "k": 2}', "the key text 'k' appears twice in one object", b'"k"'),
    (b'{"a": 1}', "id: required, and absent or null", None),
    (b'{"a": "x", "b": "x"}', "a: expected long, saw text 'x'", None),  # which one is unknown
    (b"", "the value has no bytes", None),
    (b"short", "byte 99 is not valid UTF-8", b""),
]


@pytest.mark.parametrize(("value", "detail", "marked"), MARKED)
def test_the_marked_bytes(value: bytes, detail: str, marked: bytes | None) -> None:
    span = rejected_span(value, detail)
    assert (None if span is None else value[slice(*span)]) == marked


def test_the_second_of_two_equal_keys_is_marked() -> None:
    assert rejected_span(b'{"k": 1, "k": 2}', "the key text 'k' appears twice in one object") == (9, 12)


def test_values_are_cut_around_the_mark() -> None:
    value = b"x" * 5000 + b"\xff" + b"y" * 5000
    shown = rejected_value(value, "byte 5000 is not valid UTF-8", masked=False)
    assert [each.text[:4] for each in shown.pieces] == ["…", "xxxx", "\\xff", "yyyy", "…"]
    assert sum(len(each.text) for each in shown.pieces) < 1100
    assert (shown.size, shown.marked) == (10_001, "byte 5,000")


def test_a_masked_value_has_no_letters_and_no_digits() -> None:
    shown = rejected_value('{"name": "Zoë", "age": 42}'.encode(), "age: saw text '42'", masked=True)
    assert "".join(each.text for each in shown.pieces) == '{"xxxx": "xxx", "xxx": 00}'
    assert masked_detail("id: expected long, saw text 'Zoë'; the number 12.5 is odd") == (
        "id: expected long, saw text '…'; the number … is odd"
    )


def test_null_is_not_empty() -> None:
    assert rejected_value(None, "the value is null", masked=False).size is None
    assert rejected_value(b"", "the value has no bytes", masked=False).size == 0


def test_control_characters_are_escaped() -> None:
    shown = rejected_value("a\x1b[31m\u202eb\n".encode(), "", masked=False)
    assert shown.pieces[0].text == "a\\u001b[31m\\u202eb\n"
