"""Records with the same fault: explained in columns as the exact path explains them one by one, word for word."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.decode.test_json_paths_agree import assert_same

from headrace.decode.base import DecodeLimits, NewField
from headrace.decode.json import explanation
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.payload_field import PayloadField, json_field
from headrace.errors import ContractViolation
from headrace.reasons import Reason

Row = dict[str, Any]
Change = Callable[[Row, random.Random], Row | str]

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("at", pa.timestamp("us", "UTC")),
        PayloadField("seen", pa.timestamp("us", "UTC"), unit="ms").to_arrow(),
        pa.field("day", pa.date32()),
        pa.field("rate", pa.float64()),
        pa.field("single", pa.float32()),
        pa.field("price", pa.decimal128(9, 2)),
        pa.field("small", pa.int8()),
        pa.field("ok", pa.bool_()),
        pa.field("data", pa.binary()),
        pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False))),
        pa.field("sizes", pa.list_(pa.field("element", pa.int32()))),
        pa.field("user", pa.struct([pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())])),
        PayloadField("city", pa.string(), False, path="home.address.city").to_arrow(),
        PayloadField("level", pa.int64(), False, default="7").to_arrow(),
        json_field("extra"),
    ]
)
WORDS = ["red", "green", "", "caf\u00e9", "\U0001f600", "a,b", "x" * 39, "y" * 40, "\u00fc" * 41, "z" * 600]
SCALARS = [None, True, False, 0, -1, 1.5, 12, 10**30, "x", "12", "", "\u00e9" * 50, "2026-01-01", [], ["a"], [1, None]]
NUMBERS = ["-0", "0.5", "1e3", "1e400", "128", "2147483648", "9223372036854775808", "1" * 50, "1" * 5000, "12.345"]


def _row(rng: random.Random) -> Row:
    return {
        "id": rng.randrange(10**6),
        "name": rng.choice(WORDS),
        "at": f"2026-01-{rng.randrange(1, 29):02}T00:00:00.{rng.randrange(1000):03}Z",
        "seen": 1_700_000_000_000 + rng.randrange(10**6),
        "day": f"2026-02-{rng.randrange(1, 29):02}",
        "rate": rng.random(),
        "single": rng.randrange(99),
        "price": rng.randrange(10**4) / 100,
        "small": rng.randrange(100),
        "ok": rng.random() < 0.5,
        "data": "QUI=",
        "tags": rng.sample(WORDS[:6], rng.randrange(3)),
        "sizes": [1] * rng.randrange(3),
        "user": {"id": rng.randrange(99), "name": rng.choice(WORDS)},
        "home": {"address": {"city": rng.choice(WORDS)}},
        "extra": rng.choice(["t", "u"]),
    }


def _text(row: Row | str, spaced: bool = False) -> str:
    if isinstance(row, str):
        return row
    return json.dumps(row, separators=(", ", ": ") if spaced else (",", ":"), ensure_ascii=False)


def _at(row: Row, path: str, value: Any) -> Row:
    """The row with another value at a path."""
    key, _, rest = path.partition(".")
    return {**row, key: _at(row[key], rest, value) if rest else value}


def _without(row: Row, path: str) -> Row:
    key, _, rest = path.partition(".")
    if rest:
        return {**row, key: _without(row[key], rest)}
    return {name: row[name] for name in row if name != key}


PATHS = [*(name for name in _row(random.Random(1)) if name != "home"), "user.id", "user.name", "home", "home.address"]
PATHS.append("home.address.city")


def _replaced(row: Row, path: str, text: str) -> str:
    """The text of the row with another text in place of a value."""
    return _text(_at(row, path, "\1")).replace('"\\u0001"', text)


ALL_EXPLAINED: dict[str, Change] = {
    "a text for an integer": lambda row, rng: _at(row, "id", f"x{rng.choice(WORDS)}"),
    "an integer for a text": lambda row, rng: _at(row, "name", rng.randrange(10**9)),
    "a number for a text": lambda row, rng: _at(row, "name", rng.random()),
    "an integer for a time": lambda row, rng: _at(row, "at", rng.randrange(10**9)),
    "a number for a time": lambda row, rng: _at(row, "at", rng.random()),
    "a text for a number": lambda row, rng: _at(row, "rate", rng.choice(WORDS)),
    "a text for a boolean": lambda row, rng: _at(row, "ok", rng.choice(["true", "yes"])),
    "a boolean for a date": lambda row, rng: _at(row, "day", rng.random() < 0.5),
    "an array for a number": lambda row, rng: _at(row, "price", [1] * rng.randrange(4)),
    "an object for a number": lambda row, rng: _at(row, "small", {"k": rng.randrange(9)}),
    "a text for an object": lambda row, rng: _at(row, "user", rng.choice(WORDS)),
    "a text on the way to a column": lambda row, rng: _at(row, "home.address", rng.choice(WORDS)),
    "a text for an array": lambda row, rng: _at(row, "tags", rng.choice(WORDS)),
    "a text inside an array": lambda row, rng: _at(row, "sizes", [1, rng.choice(WORDS[:4])]),
    "a null inside an array": lambda row, rng: _at(row, "tags", ["a", None]),
    "a text inside an object": lambda row, rng: _at(row, "user.id", rng.choice(WORDS)),
    "no time": lambda row, rng: _at(row, "at", f"at {rng.randrange(10**6)}"),
    "a time without zone": lambda row, rng: _at(row, "at", f"2026-01-01T00:00:00.{rng.randrange(1000)}"),
    "a time beyond the years": lambda row, rng: _at(row, "seen", 10**17 + rng.randrange(99)),
    "no date": lambda row, rng: _at(row, "day", "2026-02-30"),
    "no base64": lambda row, rng: _at(row, "data", rng.choice(["?", "QR=="])),
    "a fraction for an integer": lambda row, rng: _at(row, "id", rng.random()),
    "an integer too large": lambda row, rng: _at(row, "small", 128 + rng.randrange(99)),
    "a decimal with more digits": lambda row, rng: _at(row, "price", 0.123 + rng.randrange(99)),
    "a single too large": lambda row, rng: _at(row, "single", 1e39),
    "an integer too large for any column": lambda row, rng: _at(
        row, "id", rng.choice([-1, 1]) * (2**63 + rng.randrange(99))
    ),
    "a decimal too large": lambda row, rng: _at(row, "price", 10**7 + rng.randrange(10**6)),
    "a time beyond the clock": lambda row, rng: _at(row, "at", f"2026-01-01T24:00:{rng.randrange(10, 60)}Z"),
    "a required field is null": lambda row, _: _at(row, "id", None),
    "a required field is missing": lambda row, _: _without(row, "id"),
    "a required field inside an object is missing": lambda row, _: _without(row, "user.id"),
    "a required column with a path is missing": lambda row, _: _without(row, "home"),
    "a key twice": lambda row, rng: _text(row)[:-1] + f',"name":"{rng.randrange(99)}"}}',
    "a key in upper case": lambda row, rng: {**row, "ID": rng.randrange(99)},
    "two faults": lambda row, rng: _at(_at(row, "small", "x"), "rate", rng.choice(WORDS)),
    "one of two faults": lambda row, rng: _at(_at(row, "small", rng.choice([1, 999])), "rate", rng.choice(WORDS)),
    "the last byte is missing": lambda row, _: _text(row)[:-1],
    "cut in a text": lambda row, _: _text(row).partition("QUI")[0],
    "cut after a key": lambda row, _: _text(row).partition(',"price"')[0],
    "cut in a nested object": lambda row, _: _text(row).partition('},"home"')[0] + ',"x',
    "no comma": lambda row, _: _text(row).replace(',"rate"', ' "rate"'),
    "a word": lambda row, rng: _replaced(row, "rate", rng.choice(["tru", "nul", "+1", "01", ".5", "'a'"])),
    "not a number": lambda row, _: _replaced(row, "rate", "NaN"),
    "another value after it": lambda row, rng: _text(row) + " " * rng.randrange(3) + rng.choice(["}", "{}", "x"]),
    "a control character": lambda row, rng: _replaced(row, "user.name", f'"{rng.choice(WORDS)}\n"'),
}


@pytest.mark.parametrize("spaced", [False, True])
@pytest.mark.parametrize("fault", ALL_EXPLAINED)
def test_records_with_the_same_fault_are_explained_in_columns(fault, spaced, monkeypatch):
    rng = random.Random(fault)
    changed = [ALL_EXPLAINED[fault](_row(rng), rng) for _ in range(80)]
    values = [_text(row, spaced).encode() for row in changed]
    fast, exact = _decoders("ignore")
    expected = exact.decode(pa.array(values, pa.binary()))
    assert len(expected.rejects) == len(values)
    assert_same(fast.decode(pa.array(values, pa.binary())), expected, values)
    read = list[bytes]()
    monkeypatch.setattr(fast._exact, "read", read.append)
    assert fast.decode(pa.array(values, pa.binary())).rejects == expected.rejects
    assert not read


def test_new_fields_are_rejected_in_columns_and_after_other_faults(monkeypatch):
    rng = random.Random(1)
    rows = [{**_row(rng), "new": rng.choice(WORDS)} for _ in range(80)]
    rows[40:] = [_at(row, "rate", "x") for row in rows[40:]]
    column = pa.array([_text(row).encode() for row in rows], pa.binary())
    fast, exact = _decoders("reject")
    assert fast.decode(column).rejects == exact.decode(column).rejects
    monkeypatch.setattr(fast._exact, "read", None)
    rejects = fast.decode(column).rejects
    assert rejects.reason == [Reason.NEW_FIELD] * 40 + [Reason.TYPE] * 40


def test_a_new_field_that_stops_the_pipeline_is_no_reject():
    rng = random.Random(1)
    values = [_text({**_at(_row(rng), "id", "x"), "new": 1}).encode() for _ in range(80)]
    fast, _ = _decoders("stop")
    assert len(fast.decode(pa.array(values, pa.binary())).rejects) == 80  # the wrong type is found first
    values = [_text({**_row(rng), "new": 1}).encode() for _ in range(80)]
    for _ in range(2):
        with pytest.raises(ContractViolation, match="new"):
            fast.decode(pa.array(values, pa.binary()))


def test_clean_records_beside_faults_are_decoded():
    """Records with the fault, clean records of the same keys, and records of other keys."""
    rng = random.Random(7)
    rows = [_row(rng) for _ in range(300)]
    rows = [_at(row, "rate", "x") if nth % 3 == 0 else row for nth, row in enumerate(rows)]
    values = [_text(_without(row, "name") if nth % 5 == 0 else row).encode() for nth, row in enumerate(rows)]
    fast, exact = _decoders("ignore")
    for _ in range(3):
        assert_same(fast.decode(pa.array(values, pa.binary())), exact.decode(pa.array(values, pa.binary())), values)


def test_templates_that_explain_nothing_are_passed_over(monkeypatch):
    """Faults that differ in every record cost no more than a few attempts."""
    tried = list[int]()
    trace = explanation.trace_fault
    monkeypatch.setattr(explanation, "trace_fault", lambda *given: (tried.append(1), trace(*given))[1])
    values = [f'{{"id":1,"key{nth}":[[{nth}]]}}{nth}'.encode() for nth in range(64)]
    fast, _ = _decoders("ignore")
    for _ in range(40):
        assert len(fast.decode(pa.array(values, pa.binary())).rejects) == 64
    assert len(tried) <= 6 * 4


# ---- any fault ----


def _any_fault(rng: random.Random) -> Change:
    """A fault that all records of a batch have; most batches have values of it that differ."""
    path = rng.choice(PATHS)
    kind = rng.randrange(9)
    if kind == 0:
        value = rng.choice(SCALARS)
        return lambda row, _: _at(row, path, value)
    if kind == 1:
        values = rng.sample(SCALARS, 3)
        return lambda row, each: _at(row, path, each.choice(values))
    if kind == 2:
        return lambda row, _: _without(row, path)
    if kind == 3:
        texts = rng.sample([*NUMBERS, "NaN", "-Infinity", '"\\ud800"', '"\\u00e9"', "[1,,2]", "[NaN]", "[[1]]"], 2)
        return lambda row, each: _replaced(row, path, each.choice(texts))
    if kind == 4:
        key = rng.choice([path, path.upper(), "new", "N e w"]).rpartition(".")[2]
        return lambda row, each: _text(row)[:-1] + f",{json.dumps(key)}:{each.choice(NUMBERS[:5])}}}"
    if kind == 5:
        end = rng.randrange(2, 300)
        return lambda row, _: _text(row)[:-end]
    if kind == 6:
        cut, byte = rng.random(), rng.choice([*'"\\{}[]:, 0-1eEnt\n', ""])
        return lambda row, _: (text := _text(row))[: (at := int(cut * len(text)))] + byte + text[at + 1 :]
    if kind == 7:
        found, other = rng.choice([("}", "]"), (",", ";"), (":", "="), ('":', '" :'), ("[", "[["), ("}", "}}")])
        return lambda row, _: _text(row).replace(found, other, 1)
    two = _any_fault(rng), _any_fault(rng)
    return lambda row, each: (lambda once: once if isinstance(once, str) else two[1](once, each))(two[0](row, each))


def _batches(count: int, seed: str) -> Iterator[list[bytes]]:
    rng = random.Random(seed)
    for _ in range(count):
        fault, share, spaced = _any_fault(rng), rng.choice([0.5, 1.0, 1.0]), rng.random() < 0.2
        rows = [_row(rng) for _ in range(60)]
        yield [_text(_tried(fault, row, rng) if rng.random() < share else row, spaced).encode() for row in rows]


def _tried(fault: Change, row: Row, rng: random.Random) -> Row | str:
    try:
        return fault(row, rng)
    except (KeyError, TypeError):  # the second of two faults does not find the path any more
        return row


def _assert_alike(new_field: NewField, batches: int, seed: str, limits: DecodeLimits) -> int:
    fast, exact = _decoders(new_field, limits)
    explained = 0
    explain = fast._faults._explain

    def counted(texts: pa.StringArray, *, trace: bool) -> Any:
        nonlocal explained
        rejects, repeated = explain(texts, trace=trace)
        explained += len(rejects)
        return rejects, repeated

    fast._faults._explain = counted
    for values in _batches(batches, seed):
        column = pa.array(values, pa.binary())
        expected = exact.decode(column)
        for _ in range(2):  # with a new template, and with a known one
            fast._faults._idle, fast._faults._useful = 0, True
            assert_same(fast.decode(column), expected, values)
    return explained


def _decoders(new_field: NewField, limits: DecodeLimits | None = None) -> tuple[JsonDecoder, JsonDecoder]:
    limits = limits or DecodeLimits()
    fast, exact = JsonDecoder(SCHEMA, new_field, limits), JsonDecoder(SCHEMA, new_field, limits)
    exact._prover = None
    return fast, exact


@pytest.mark.parametrize("new_field", ["ignore", "reject", "evolve"])
def test_any_fault(new_field):
    assert _assert_alike(new_field, 40, new_field, DecodeLimits()) > 1_000


@pytest.mark.slow
@pytest.mark.parametrize("new_field", ["ignore", "reject", "evolve"])
@pytest.mark.parametrize(
    "limits", [DecodeLimits(), DecodeLimits(depth=4), DecodeLimits(keys=16)], ids=["", "depth", "keys"]
)
@pytest.mark.parametrize("seed", range(2))
def test_any_fault_many_times(new_field, limits, seed):
    assert _assert_alike(new_field, 300, f"{new_field}{seed}", limits) > 3_000


@pytest.mark.parametrize("value", ["[]", "[1]", "null"])
@pytest.mark.parametrize("end", [',"id":1}', "}}", ',"id":'], ids=["key twice", "trailing", "cut off"])
def test_a_fault_beside_a_list_of_objects(value, end):
    """Not even its elements are read; the list is checked as JSON only."""
    line = pa.field("element", pa.struct([("n", pa.int32())]))
    schema = pa.schema([("id", pa.int64()), ("lines", pa.list_(line))])
    values = [f'{{"id":{nth},"lines":{value}{end}'.encode() for nth in range(40)]
    fast, exact = JsonDecoder(schema, "ignore", DecodeLimits()), JsonDecoder(schema, "ignore", DecodeLimits())
    exact._prover = None
    assert_same(fast.decode(pa.array(values, pa.binary())), exact.decode(pa.array(values, pa.binary())), values)


BOUNDS = [2**7, 2**31, 2**63, 62_135_596_800, 253_402_300_799, 10**9, 10**18, 10**38]
UNITS = {unit: PayloadField("x", pa.timestamp("us", "UTC"), unit=unit).to_arrow() for unit in ("s", "ms", "us", "ns")}
NUMERIC = {**UNITS, "decimal": pa.field("x", pa.decimal128(38, 0)), "small decimal": pa.field("x", pa.decimal128(3, 3))}
NUMERIC |= {f"int{bits}": pa.field("x", getattr(pa, f"int{bits}")()) for bits in (8, 16, 32, 64)}


@pytest.mark.parametrize("column", NUMERIC)
def test_numbers_that_differ_are_compared_with_the_bounds_of_their_column(column, monkeypatch):
    near = [
        sign * (bound * factor + by)
        for bound in BOUNDS
        for factor in (1, 10**3, 10**6, 10**9)
        for sign in (1, -1)
        for by in (-1, 0, 1)
    ]
    texts = [
        *map(str, [*sorted(near, key=abs, reverse=True), 999, 1000]),
        "-0",
        "0.5",
        "0.1230",
        "0.1234",
        "1.5",
        "-7e-1",
        "1e40",
    ]
    texts = [text for nth, text in enumerate(texts) for _ in range(1 + nth % 2)]
    values = pa.array([f'{{"x":{text}}}'.encode() for text in texts], pa.binary())
    schema = pa.schema([NUMERIC[column]])
    fast, exact = JsonDecoder(schema, "ignore", DecodeLimits()), JsonDecoder(schema, "ignore", DecodeLimits())
    exact._prover = None
    singly, one_by_one = list[int](), explanation._Explanation._one_by_one
    counted = lambda self, where, *rest: (singly.append(int(where.sum())), one_by_one(self, where, *rest))[1]  # noqa: E731
    monkeypatch.setattr(explanation._Explanation, "_one_by_one", counted)
    for _ in range(2):
        assert_same(fast.decode(values), exact.decode(values), values.to_pylist())
    assert singly
    assert not any(singly)
