"""JMESPath as in kafka-delta-ingest (KDI): the `jmespath` package with the semantics of the Rust crate.

Differences that matter: objects are sorted by key, only numbers can be ordered, numbers are doubles in functions,
`to_number` parses any JSON text, values of different types never compare equal.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions, signature
from jmespath.parser import Parser
from jmespath.visitor import TreeInterpreter

from headrace.decode.json.strict import Real, integer
from headrace.errors import UsageError, did_you_mean

LONGEST = 8 * 1024  # bytes of an expression
DEEPEST = 64
LONGEST_RESULT = 16 * 1024 * 1024  # characters of a resulting text

KAFKA = {
    "kafka.topic": "topic",
    "kafka.partition": "partition",
    "kafka.offset": "offset",
    "kafka.timestamp": "timestamp",
    "kafka.timestamp_type": "timestamp_type",
}
"""Sources that are a part of the record's envelope; each must be the whole of the expression."""

Node = dict[str, Any]

_EPSILON = 2.0**-52
_NORMAL = 2.0**-1022
_INT64 = 1 << 63
_LONG_NUMBER = re.compile(r"\d{19}")
_NEVER_NULL = frozenset({"substr", "to_string", "join", "type", "length", "contains", "starts_with", "ends_with"})


class Failed(Exception):
    """An expression has no result for a record; the text is the reason."""


def check_jmespath(text: str) -> tuple[str, ...]:
    """Errors of an expression; empty if it is valid."""
    if text in KAFKA:
        return ()
    if text.startswith("kafka.") and (near := difflib.get_close_matches(text, KAFKA, n=1, cutoff=0.75)):
        return (f"unknown field '{text}'{did_you_mean(*near)}",)
    try:
        tree = parse_jmespath(text)
    except UsageError as refused:
        return (refused.message,)
    return tuple(dict.fromkeys(_findings(tree)))


@lru_cache(maxsize=1024)
def parse_jmespath(text: str) -> Node:
    """Parse an expression to a tree, which must not be changed; raises UsageError."""
    if len(text.encode("utf-8", "replace")) > LONGEST:
        raise UsageError(f"the expression is longer than {LONGEST} bytes")
    try:
        tree: Node = Parser().parse(text).parsed
    except RecursionError:
        raise UsageError(f"the expression is nested deeper than {DEEPEST}") from None
    except (JMESPathError, ValueError) as error:
        raise UsageError(f"not a JMESPath expression: {_one_line(error)}") from None
    if _depth(tree) > DEEPEST:
        raise UsageError(f"the expression is nested deeper than {DEEPEST}")
    return tree


def in_micros(text: str) -> bool:
    """Whether the result of an expression is always in microseconds."""
    if text in KAFKA:
        return text == "kafka.timestamp"
    tree = parse_jmespath(text)
    return bool(tree["type"] == "function_expression" and tree["value"] == "epoch_millis_to_micro")


def never_null(text: str) -> bool:
    """Whether an expression's result is never null: a value, or an error."""
    if text in KAFKA:
        return text != "kafka.timestamp"
    tree = parse_jmespath(text)
    match tree["type"]:
        case "function_expression":
            name = str(tree["value"])
            return name in _NEVER_NULL or name.startswith(("epoch_", "now_"))
        case "literal":
            return tree["value"] is not None
        case "comparator":
            return tree["value"] in ("eq", "ne")
        case kind:
            return bool(kind == "not_expression")


def always_null(text: str) -> bool:
    """Whether an expression is the name or literal null."""
    tree = parse_jmespath(text) if text not in KAFKA else {"type": ""}
    return tree["type"] in ("field", "literal") and tree["value"] in ("null", None)


def message_keys(text: str) -> tuple[str, ...]:
    """The keys of a message that an expression reads: `a`, `b` and `c` of `a.b || c`."""
    if text in KAFKA or always_null(text):
        return ()
    nodes = list(_walk(parse_jmespath(text)))
    results = {str(node["value"]) for node in nodes if node["type"] == "key_val_pair"}  # keys of objects it makes
    names = [str(node["value"]) for node in nodes if node["type"] == "field"]
    return tuple(dict.fromkeys(name for name in names if name not in results))


def _walk(tree: Node) -> Iterator[Node]:
    yield tree
    for child in jmespath_children(tree):
        yield from _walk(child)


def jmespath_children(node: Any) -> Iterator[Node]:
    """The child expressions of a node."""
    for child in node.get("children", ()):
        if isinstance(child, dict):
            yield child


def _depth(tree: Node) -> int:
    deepest, level = 0, [tree]
    while level:
        deepest, level = deepest + 1, [child for each in level for child in jmespath_children(each)]
    return deepest


def _one_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip(" ^")]
    return (lines[0] if lines else type(error).__name__).rstrip(":. ")


def _findings(node: Node) -> Iterator[str]:
    if node["type"] == "function_expression":
        yield from _call_findings(str(node["value"]), len(node["children"]))
    if node["type"] == "slice" and node["children"][2] == 0:
        yield "a slice's step cannot be 0"
    for child in jmespath_children(node):
        yield from _findings(child)


def _call_findings(name: str, count: int) -> Iterator[str]:
    functions = JmespathFunctions.FUNCTION_TABLE
    if name not in functions:
        near = difflib.get_close_matches(name, functions, n=1, cutoff=0.7)
        yield f"unknown function '{name}'{did_you_mean(*near)}"
        return
    signature = functions[name]["signature"]
    variadic = bool(signature and signature[-1].get("variadic"))
    if count < len(signature) or (count > len(signature) and not variadic):
        least = "at least " if variadic else ""
        yield f"{name} takes {least}{len(signature)} argument{'' if len(signature) == 1 else 's'}, not {count}"


# ---- values ----


class _Written(Real):
    """A double with its original text."""

    __slots__ = ()


_Written.__name__ = "float"  # by which the `jmespath` package knows a number


def load_json(text: str, *, exact: bool = False) -> Any:
    """Parse a message; whole numbers beyond 64 bits are doubles, as in KDI.

    `exact` is for results in decimal columns: whole numbers are unchanged, and other numbers keep their text.
    """
    if exact:
        return json.loads(text, parse_float=_Written, parse_int=integer)
    return json.loads(text, parse_int=_integer) if _LONG_NUMBER.search(text) else json.loads(text)


def _integer(text: str) -> int | float:
    number = int(text) if len(text) < 40 else float(text)
    return number if -_INT64 <= number < 2 * _INT64 else float(number)


def dump_json(value: Any) -> str:
    """A value as JSON text: keys sorted, no spaces, numbers as Rust writes them."""
    if isinstance(value, dict):
        inner = (f"{json.dumps(key, ensure_ascii=False)}:{dump_json(value[key])}" for key in sorted(value))
        return "{" + ",".join(inner) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(dump_json, value)) + "]"
    if isinstance(value, float):
        return _float_text(value)
    return json.dumps(value, ensure_ascii=False)


def _float_text(value: float) -> str:
    if not math.isfinite(value):
        raise Failed("a number that is not finite")
    text = repr(value)
    if "e" not in text:
        return text
    digits, exponent = text.split("e")
    if int(exponent) == -5:
        sign, digits = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
        return f"{sign}0.0000{digits.replace('.', '')}"
    return f"{digits}e{int(exponent)}"


def is_number(value: Any) -> bool:
    """Whether a value is a number; booleans are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def same(one: Any, two: Any) -> bool:
    """Equality as in KDI: types first, numbers within an epsilon."""
    if is_number(one) and is_number(two):
        return _near(float(one), float(two))
    if type(one) is not type(two):
        return False
    if isinstance(one, list):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    return bool(one == two)


def _near(one: float, two: float) -> bool:
    if one == two:
        return True
    apart = abs(one - two)
    if abs(one) < _NORMAL or abs(two) < _NORMAL:
        return apart < _EPSILON * _NORMAL
    return apart / min(abs(one) + abs(two), 1.7976931348623157e308) < _EPSILON


# ---- the interpreter ----


class Interpreter(TreeInterpreter):  # type: ignore[misc]
    """Evaluates a tree over one message."""

    def __init__(self, now: datetime) -> None:
        super().__init__()
        self._functions = JmespathFunctions(int(now.timestamp()))

    def answer(self, tree: Node, message: Any) -> Any:
        """The result for one message; raises Failed with the reason."""
        try:
            return self.visit(tree, message)
        except JMESPathError as error:
            raise Failed(_error_text(error)) from None
        except RecursionError:
            raise Failed("the message is nested too deep") from None
        except (TypeError, ValueError, ArithmeticError) as error:
            raise Failed(_one_line(error)) from None

    def visit_comparator(self, node: Node, value: Any) -> bool | None:
        """Only numbers can be ordered; other values give null."""
        left, right = (self.visit(child, value) for child in node["children"])
        if node["value"] in ("eq", "ne"):
            return same(left, right) is (node["value"] == "eq")
        if not (is_number(left) and is_number(right)):
            return None
        return bool(self.COMPARATOR_FUNC[node["value"]](float(left), float(right)))

    def visit_not_expression(self, node: Node, value: Any) -> bool:
        """Every number is true, 0 included."""
        return bool(self._is_false(self.visit(node["children"][0], value)))

    def visit_value_projection(self, node: Node, value: Any) -> list[Any] | None:
        """An object's values, in the order of its keys."""
        base = self.visit(node["children"][0], value)
        if not isinstance(base, dict):
            return None
        results = (self.visit(node["children"][1], base[key]) for key in sorted(base))
        return [each for each in results if each is not None]

    def _is_false(self, value: Any) -> bool:
        return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def _error_text(error: JMESPathError) -> str:
    expected, actual = getattr(error, "expected_types", None), getattr(error, "actual_type", None)
    if expected is None or actual is None:
        return _one_line(error)
    kinds = " or ".join(str(kind).replace("-", " of ") for kind in expected)
    return f"invalid type for {error.function_name}: expected {kinds}, saw {actual}"


_NUMBER = {"types": ["number"]}


class JmespathFunctions(Functions):  # type: ignore[misc]
    """The functions of JMESPath with KDI's results, and KDI's own functions."""

    def __init__(self, now: int) -> None:
        super().__init__()
        self._now = now

    @signature({"types": ["string"]}, _NUMBER, _NUMBER)  # type: ignore[untyped-decorator]
    def _func_substr(self, text: str, skip: float, take: float) -> str:
        start, count = max(0, truncated_to_int64(skip)), max(0, truncated_to_int64(take))
        return text[start : start + count]

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_epoch_seconds_to_iso8601(self, count: float) -> str:
        return iso8601(truncated_to_int64(count) * 1_000_000_000)

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_epoch_millis_to_iso8601(self, count: float) -> str:
        return iso8601(truncated_to_int64(count) * 1_000_000)

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_epoch_micros_to_iso8601(self, count: float) -> str:
        return iso8601(truncated_to_int64(count) * 1_000)

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_epoch_nanos_to_iso8601(self, count: float) -> str:
        nanos = truncated_to_int64(count)
        return iso8601(abs(nanos) // 1_000 * (1_000 if nanos >= 0 else -1_000))

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_epoch_millis_to_micro(self, count: float) -> int:
        micros = truncated_to_int64(count) * 1_000
        if not -_INT64 <= micros < _INT64:
            raise Failed(f"{count} milliseconds are more microseconds than 64 bits hold")
        return micros

    @signature()  # type: ignore[untyped-decorator]
    def _func_now_epoch_seconds(self) -> int:
        return self._now

    @signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_to_string(self, value: Any) -> str:
        return value if isinstance(value, str) else _bounded(dump_json(value))

    @signature({"types": ["string"]}, {"types": ["array-string"]})  # type: ignore[untyped-decorator]
    def _func_join(self, glue: str, texts: list[str]) -> str:
        if len(glue) * len(texts) > LONGEST_RESULT:
            raise Failed(f"a text longer than {LONGEST_RESULT} characters")
        return glue.join(texts)

    @signature({"types": []})  # type: ignore[untyped-decorator]
    def _func_to_number(self, value: Any) -> Any:
        if is_number(value) or not isinstance(value, str):
            return value if is_number(value) else None
        try:
            return json.loads(value, parse_int=_integer, parse_float=_finite, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return None

    @signature({"types": ["array", "string"]}, {"types": []})  # type: ignore[untyped-decorator]
    def _func_contains(self, subject: Any, search: Any) -> bool:
        if isinstance(subject, str):
            return isinstance(search, str) and search in subject
        return any(same(search, each) for each in subject)

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_abs(self, value: float) -> float:
        return abs(float(value))

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_ceil(self, value: float) -> float:
        return _rounded(math.ceil, value)

    @signature(_NUMBER)  # type: ignore[untyped-decorator]
    def _func_floor(self, value: float) -> float:
        return _rounded(math.floor, value)

    @signature({"types": ["array-number"]})  # type: ignore[untyped-decorator]
    def _func_sum(self, values: list[float]) -> float:
        total = 0.0
        for value in values:
            total += float(value)
        return total

    @signature({"types": ["array-number"]})  # type: ignore[untyped-decorator]
    def _func_avg(self, values: list[float]) -> float:
        if not values:
            raise Failed("avg of no numbers")
        return float(self._func_sum(values)) / len(values)

    @signature({"types": ["object"]})  # type: ignore[untyped-decorator]
    def _func_keys(self, value: dict[str, Any]) -> list[str]:
        return sorted(value)

    @signature({"types": ["object"]})  # type: ignore[untyped-decorator]
    def _func_values(self, value: dict[str, Any]) -> list[Any]:
        return [value[key] for key in sorted(value)]

    @signature({"types": ["array"]}, {"types": ["expref"]})  # type: ignore[untyped-decorator]
    def _func_max_by(self, array: list[Any], expression: Any) -> Any:
        return self._best(array, expression, "max_by", 1)

    @signature({"types": ["array"]}, {"types": ["expref"]})  # type: ignore[untyped-decorator]
    def _func_min_by(self, array: list[Any], expression: Any) -> Any:
        return self._best(array, expression, "min_by", -1)

    def _best(self, array: Sequence[Any], expression: Any, name: str, sign: int) -> Any:
        keys = [expression.visit(expression.expression, each) for each in array]
        if any(not (is_number(key) or isinstance(key, str)) for key in keys) or len({*map(is_number, keys)}) > 1:
            raise Failed(f"invalid type for {name}: expected all numbers or all texts")
        best = 0
        for at, key in enumerate(keys):
            if (key > keys[best]) if sign > 0 else (key < keys[best]):
                best = at
        return array[best] if array else None


def _bounded(text: str) -> str:
    if len(text) > LONGEST_RESULT:
        raise Failed(f"a text longer than {LONGEST_RESULT} characters")
    return text


def truncated_to_int64(number: float) -> int:
    """A number truncated to 64 bits through a double, as KDI's functions do."""
    cut = int(float(number))
    return max(-_INT64, min(cut, _INT64 - 1))


def iso8601(nanos: int) -> str:
    """A timestamp as text, with 0, 3, 6 or 9 fractional digits as needed."""
    if not -_INT64 <= nanos < _INT64:
        raise Failed("a time outside of the years 1677 to 2262")
    seconds, rest = divmod(nanos, 1_000_000_000)
    text = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    if not rest:
        return f"{text}Z"
    digits = f"{rest:09}"
    return f"{text}.{digits[:3] if rest % 1_000_000 == 0 else digits[:6] if rest % 1_000 == 0 else digits}Z"


def _rounded(how: Any, value: float) -> float:
    number = float(value)
    return math.copysign(float(how(number)), number)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(text)
    return number


def _no_constant(name: str) -> Any:
    raise ValueError(name)
