"""Texts that are not JSON objects: explained together as the parser explains each of them, word for word."""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.decode.base import REASONS, DecodeLimits, Rejects
from headrace.decode.byte_scan import TextBytes
from headrace.decode.json import first_error
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.json.first_error import FirstErrors
from headrace.decode.json.strict import Parser
from headrace.decode.scalars import UnfitValue

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
PIECES = [
    *'{}[]",:\\ \n\t0123456789.-+eEtrufalsnNIiy',
    "\u00e9",
    "\u20ac",
    "\U0001f600",
    "\x01",
    "\ufeff",
    "true",
    "null",
    "NaN",
]
PIECES += ["Infinity", "-Infinity", '"a"', '"x":', "\\u00e9", "\\ud83d", "\\n", '{"":', "[1,", "0.5e+3", '{"id":1}']
VALID = [
    '{"id":1,"name":"x","user":{"id":-0.5e+3,"city":"K\u00f6ln"},"tags":["a","b"],"ok":true,"none":null}',
    '{"a":[1,{"b":"c\\"d\\\\","\u00e9":"\u00fc"},[],{}], "y" : [true,false,null]}',
    '"str\\u12ab"',
    "12.5e3",
    "[[],{}]",
    '  {"a" : 1 }  ',
]


@pytest.fixture(autouse=True)
def _few_texts_too(monkeypatch):
    """Otherwise few texts are left to the parser, which is faster for them."""
    monkeypatch.setattr(first_error, "_PER_BYTE", 0.001)


def _changed(text: str, rng: random.Random) -> str:
    for _ in range(rng.randrange(1, 3)):
        at = rng.randrange(len(text) + 1)
        text = rng.choice(
            (
                text[:at],
                text[:at] + rng.choice(PIECES) + text[at + rng.randrange(2) :],
                text[:at] + text[at + 1 :],
                text + rng.choice(PIECES),
            )
        )
    return text


def _texts(count: int, seed: str) -> list[str]:
    rng = random.Random(seed)
    changed = [_changed(rng.choice(VALID), rng) for _ in range(count)]
    return changed + ["".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 12))) for _ in range(count)]


def _asked(parser: Parser, text: str) -> tuple[str, str] | None:
    try:
        parser._whole(text.removeprefix("\ufeff"))
    except UnfitValue as unfit:
        return unfit.reason, unfit.detail
    return None


@pytest.mark.parametrize("limits", [DecodeLimits(), DecodeLimits(depth=3)], ids=["", "depth"])
def test_the_first_error_is_that_of_the_parser(limits):
    texts, parser = _texts(4_000, "first"), Parser(limits)
    errors, valid = FirstErrors(parser, limits).find(pa.array(texts))
    explained = zip(errors.index.tolist(), errors.code.tolist(), errors.details().to_pylist(), strict=True)
    for at, code, detail in explained:
        assert (REASONS[code], detail) == _asked(parser, texts[at]), texts[at]
    assert [_asked(parser, texts[at]) for at in valid.tolist()] == [None] * len(valid)
    known = len(errors.index) + len(valid)
    assert known > 0.95 * len(texts) if limits == DecodeLimits() else known > 0.5 * len(texts)


def test_an_error_does_not_depend_on_other_texts():
    """Such as one that ends with a backslash, or in the middle of a string."""
    texts = ['"a\\', '"b', '{"c', "\\", '"\\"d', "\u00e9", '{"\u20ac":"', '"e" x', " 1  2", "7"]
    finder = FirstErrors(Parser(DecodeLimits()), DecodeLimits())
    alone = [_details(finder, [text]) for text in texts]
    assert alone[1:3] == [
        ["Unterminated string starting at at character 0"],
        ["Unterminated string starting at at character 1"],
    ]
    for seed in range(20):
        order = random.Random(seed).sample(range(len(texts)), len(texts))
        assert _details(finder, [texts[at] for at in order]) == [line for at in order for line in alone[at]]


def _details(finder: FirstErrors, texts: list[str]) -> list[str]:
    errors, _ = finder.find(pa.array(texts))
    return errors.details().to_pylist()


def test_spaces_before_an_error_are_skipped_at_once():
    """Not one by one, each with a pass over all texts."""
    calls = []
    for spaces in (2, 2_000):
        texts = TextBytes(pa.array([f"1{' ' * spaces}x", "2 y", "3z"]))
        at = np.array([1 + spaces, texts.starts[1] + 2, texts.starts[2] + 1])
        assert (first_error._value_ends(texts.content, at) - texts.starts[:-1]).tolist() == [1, 1, 1]
        calls.append(_calls(partial(first_error._value_ends, texts.content, at)))
    assert calls[0] == calls[1]


def test_quotes_are_found_without_sorting_them():
    texts = TextBytes(pa.array(['"' + '\\"' * 1000, '"a\\', '"b', ""]))
    at = texts.starts[1:-1].astype(np.int64)
    assert first_error._opening_quotes(texts, at).tolist() == texts.starts[:-2].tolist()
    assert not {"sort", "argsort", "unique"} & _calls(lambda: first_error._opening_quotes(texts, at)).keys()


def _calls(work: Callable[[], object]) -> Counter[str]:
    """How often each function is called, built-in ones included."""
    names, before = Counter[str](), sys.getprofile()

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event in ("call", "c_call"):
            names[frame.f_code.co_name if event == "call" else function.__name__] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return names


OTHER_VALUES = {
    "log lines": lambda rng: f"2026-01-01 12:00:{rng.randrange(10, 60)} INFO started",
    "XML": lambda rng: f"<event id='{rng.randrange(99)}'/>",
    "numbers": lambda rng: rng.choice(["0", "-1.5", "1e3", "7 ", " 8", "1" * 50]),
    "words": lambda rng: rng.choice(["true", "false", "null"]),
    "texts": lambda rng: json.dumps(
        "".join(rng.choice('ab"\\/\u00fc') for _ in range(rng.randrange(90))), ensure_ascii=False
    ),
    "arrays": lambda rng: json.dumps([{"id": rng.randrange(99), "name": "x"}] * rng.randrange(4)),
    "cut off": lambda rng: VALID[0][: rng.randrange(1, len(VALID[0]))],
    "two values": lambda rng: VALID[0] + " " * rng.randrange(3) + VALID[0],
}


@pytest.mark.parametrize("kind", OTHER_VALUES)
def test_values_that_are_no_objects_are_rejected_in_columns(kind, monkeypatch):
    rng = random.Random(kind)
    column = pa.array([OTHER_VALUES[kind](rng).encode() for _ in range(200)], pa.binary())
    expected = _exact().decode(column).rejects
    assert len(expected) == len(column)
    fast = JsonDecoder(SCHEMA, "ignore", DecodeLimits())
    assert fast.decode(column).rejects == expected
    read, exactly = list[str](), fast._exact.read
    monkeypatch.setattr(fast._exact, "read", lambda text: (read.append(text), exactly(text))[1])
    assert fast.decode(column).rejects == expected
    assert len(read) * 10 < len(column)  # few of one kind are left to the exact path


def test_other_faults_of_values_that_are_no_objects_are_found():
    odd = [
        "[1,",
        '[{"a":1,"a":2}]',
        '["\\ud800"]',
        '"\\ud800"',
        '"\\u00e9"',
        "-0",
        "1" * 5000,
        "[" * 70,
        '"a\\nb"',
        "[]",
    ]
    values = [value.encode() for value in odd * 20]
    fast = JsonDecoder(SCHEMA, "ignore", DecodeLimits())
    for _ in range(2):
        assert (
            fast.decode(pa.array(values, pa.binary())).rejects == _exact().decode(pa.array(values, pa.binary())).rejects
        )


def _exact() -> JsonDecoder:
    exact = JsonDecoder(SCHEMA, "ignore", DecodeLimits())
    exact._prover = None
    return exact


def test_details_of_any_text_beside_any_other():
    fast = JsonDecoder(SCHEMA, "ignore", DecodeLimits())
    for nth in range(6):
        values = [text.encode() for text in _texts(300, f"any{nth}")]
        rejects: Rejects = fast.decode(pa.array(values, pa.binary())).rejects
        assert rejects == _exact().decode(pa.array(values, pa.binary())).rejects
