"""Read scalars from their JSON text, column by column.

Every function returns the column and the mask of the values that are certain (None: all of them).
"""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.decode.byte_scan import Mask, TextBytes, bools, cut, owners
from headrace.decode.payload import PayloadNode
from headrace.decode.scalars import SHOWN, describe, json_types, proven

JsonKind = Literal["text", "number", "boolean", "array", "object"]
EXAMPLES: dict[JsonKind, object] = {"text": "?", "number": 7, "boolean": True, "array": [], "object": {}}
Certain = tuple[pa.Array, Mask | None]

_UNSIGNED = r"(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?"
_NUMBER = rf"^-?{_UNSIGNED}$"
_HEX = "[0-9a-fA-F]"
# An escape; half of a surrogate pair is none.
_ESCAPE = (
    rf'\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF]{_HEX}{{3}}|[dD][0-7]{_HEX}{{2}}|'
    rf"[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}))"
)
_TEXT = rf'(?:[^"\\\x00-\x1f]|{_ESCAPE})*'
_SCALAR = rf'(?:"{_TEXT}"|-?{_UNSIGNED}|true|false|null)'
JSON_SCALARS = rf"^(?:{_SCALAR}|\[(?:{_SCALAR}(?:, ?{_SCALAR})*)?\])$"
"""A scalar, or an array of scalars."""
JSON_ELEMENTS = rf"^(?:{_SCALAR}(?:, ?{_SCALAR})*)?$"
"""The text between the brackets of an array of scalars."""
_DIGITS = {8: 2, 16: 4, 32: 9, 64: 18}  # digits that always fit an integer of so many bits
_PRINTED = 1_000  # characters of a number beyond which its detail is left to the exact path
_QUOTE, _BACKSLASH, _SPACE = b'"\\ '
_ZERO, _MINUS, _POINT = (np.uint8(each) for each in b"0-.")


def quoted_texts(node: PayloadNode) -> bool:
    """Whether the JSON of a leaf is a string."""
    return json_types(node) == ("VARCHAR",)


def leaf(node: PayloadNode, texts: pa.StringArray) -> Certain:
    """A leaf's column from its JSON texts (without quotes); NULL stays NULL."""
    column, good = _read(node, texts)
    values = proven(node, column)
    if values.null_count != column.null_count:
        good = _both(good, bools(pc.or_(values.is_valid(), column.is_null())))
    return values, good


def valid_scalars(node: PayloadNode, texts: pa.StringArray) -> Mask | None:
    """Which texts (without quotes) are certainly JSON of the leaf's kind, whatever its type takes; None: all."""
    if quoted_texts(node):
        return _plain(texts)
    if pa.types.is_boolean(node.type):
        return _booleans(texts)[1]
    numbers = pc.match_substring_regex(texts, _NUMBER)
    return None if pc.all(numbers).as_py() else bools(numbers)


def _read(node: PayloadNode, texts: pa.StringArray) -> Certain:
    if quoted_texts(node):
        return _strings(texts)
    if pa.types.is_boolean(node.type):
        return _booleans(texts)
    if pa.types.is_decimal(node.type):
        return texts, None  # a text that is not a JSON number is not a decimal either
    if pa.types.is_floating(node.type):
        return _doubles(texts)
    return _integers(texts, node.type if pa.types.is_integer(node.type) else pa.int64())


def _plain(texts: pa.StringArray) -> Mask | None:
    """Strings without escapes and without characters that need one."""
    content = TextBytes(texts)
    odd = content.content < _SPACE
    odd |= content.content == _QUOTE
    odd |= content.content == _BACKSLASH
    return ~content.holding(odd) if odd.any() else None


def _strings(texts: pa.StringArray) -> Certain:
    """Strings, with their escapes resolved."""
    plain = _plain(texts)
    if plain is None:
        return texts, None
    special = ~plain
    distinct = texts.filter(pa.array(special)).dictionary_encode()
    valid = pc.match_substring_regex(distinct.dictionary, f"^{_TEXT}$")
    # Valid texts have no bare quote, so that these cannot be confused with those of the array.
    resolved = json.loads('["' + '","'.join(distinct.dictionary.filter(valid).to_pylist()) + '"]')
    resolved = resolved if pc.any(valid).as_py() else []
    places = pa.array(np.where(bools(valid), np.cumsum(bools(valid)) - 1, -1), mask=~bools(valid))
    values = pa.array(resolved, pa.string()).take(places).take(distinct.indices)
    good = np.ones(len(texts), bool)
    good[special] = bools(values.is_valid())
    return pc.replace_with_mask(texts, pa.array(special), pc.fill_null(values, "")), good


def _booleans(texts: pa.StringArray) -> Certain:
    column = pc.equal(texts, "true")
    known = pc.or_(column, pc.equal(texts, "false"))
    return column, None if pc.all(known).as_py() else bools(known)


def _doubles(texts: pa.StringArray) -> Certain:
    try:
        column, good = texts.cast(pa.float64()), _numbers(texts)
    except pa.ArrowInvalid:
        texts, good = _only(texts, _NUMBER)
        column = texts.cast(pa.float64())
    zeros = pc.and_(pc.equal(column, 0.0), pc.equal(texts, "-0"))  # an integer, so it has no sign
    return column, good if not zeros.true_count else _both(good, ~bools(zeros))


def _numbers(texts: pa.StringArray) -> Mask | None:
    """Which numbers that Arrow accepts are JSON: no leading plus, no 01, no .5, no 5., no words."""
    content = TextBytes(texts)
    first, second, last = content.byte(0), content.byte(1), content.byte(-1)
    if (minus := first == _MINUS).any():
        first, second = np.where(minus, second, first), np.where(minus, content.byte(2), second)
    good = _digit(first) & _digit(last) & ~((first == _ZERO) & _digit(second))
    points = np.flatnonzero(content.content[:-1] == _POINT)  # the last byte of each text is a digit
    if not _digit(content.content[points + 1]).all():
        good = bools(pc.match_substring_regex(texts, _NUMBER))
    certain: Mask = good | (content.sizes == 0)
    return None if certain.all() else certain


def _digit(bytes_: np.ndarray[Any, np.dtype[np.uint8]]) -> Mask:
    digit: Mask = (bytes_ - _ZERO) <= 9  # unsigned: a byte below `0` wraps to a large number
    return digit


def _integers(texts: pa.StringArray, kind: pa.DataType) -> Certain:
    try:
        column = texts.cast(kind)
    except pa.ArrowInvalid:
        texts, good = _only(texts, rf"^-?(?:0|[1-9]\d{{0,{_DIGITS[kind.bit_width] - 1}}})$")
        return texts.cast(kind), good
    # Arrow also accepts 007 and 0x7.
    content = TextBytes(texts)
    first, size = content.byte(0), content.sizes
    led = (first == _ZERO) & (size > 1)
    if (minus := first == _MINUS).any():
        led |= minus & (content.byte(1) == _ZERO) & (size > 2)
    return column, ~led if led.any() else None


def _only(texts: pa.StringArray, pattern: str) -> Certain:
    """The texts that match; NULL for the others, which are not certain."""
    fits = pc.match_substring_regex(texts, pattern)
    if pc.all(fits).as_py():
        return texts, None
    good = bools(pc.or_(pc.fill_null(fits, False), texts.is_null()))
    return pc.if_else(fits, texts, pa.scalar(None, texts.type)), good


def _both(one: Mask | None, two: Mask) -> Mask:
    return two if one is None else one & two


def list_of_leaves(node: PayloadNode, texts: pa.StringArray, comma: str, good: Mask) -> pa.Array:
    """A column of lists from the text between their brackets; lists that are not certain are not `good`."""
    text = TextBytes(texts)
    element = node.children["*"]
    quotes = quoted_texts(element)
    if quotes:
        filled = text.sizes > 0
        good &= ~filled | ((text.byte(0) == _QUOTE) & (text.byte(-1) == _QUOTE) & (text.sizes > 1))
        texts = _cut_ends(texts, text, filled)
    divided = pc.split_pattern(texts, f'"{comma}"' if quotes else comma)
    sizes = np.where(text.sizes > 0, np.diff(divided.offsets.to_numpy()), 0)
    elements = divided.flatten()
    owner = owners(divided)
    if (empty := text.sizes == 0).any():
        kept = ~empty[owner]
        elements, owner = elements.filter(pa.array(kept)), owner[kept]
    values, certain = leaf(element, elements)
    if certain is not None:
        good[owner[~certain]] = False
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    gaps = texts.is_null() if texts.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), values, type=node.type, mask=gaps)


def _cut_ends(texts: pa.StringArray, text: TextBytes, filled: Mask) -> pa.StringArray:
    starts = text.starts[:-1] + filled
    pieces = cut(text.content, starts, np.maximum(starts, text.starts[1:] - filled), pa.string())
    return pieces if not texts.null_count else pc.if_else(texts.is_null(), pa.scalar(None, pa.string()), pieces)


def plainly_printed(numbers: pa.StringArray) -> pa.BooleanArray:
    """Which numbers a detail shows as they are written: it has 0 for -0, and replaces thousands of digits."""
    return pc.and_(pc.not_equal(numbers, "-0"), pc.less_equal(pc.binary_length(numbers), _PRINTED))


def described(kind: JsonKind, texts: pa.StringArray) -> pa.StringArray:
    """`describe` for texts of JSON values of one kind, strings without quotes; null is among the booleans."""
    if kind == "boolean":
        return texts
    if kind == "array":
        return pa.repeat(describe([]), len(texts))
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > SHOWN:
        longer = pc.greater(pc.utf8_length(texts), SHOWN)
        shortened = pc.binary_join_element_wise(pc.utf8_slice_codeunits(texts, 0, SHOWN), "…", "")
        texts = pc.if_else(longer, shortened, texts)
    before, _, after = describe(EXAMPLES[kind]).rpartition(str(EXAMPLES[kind]))
    return pc.binary_join_element_wise(before, texts, after, "")
