"""Decimals against Python's own: whatever fits its type exactly is stored exactly, anything else is refused.

Every text is one of a batch of others, so that no outcome may depend on a neighbour.

What a format can carry: JSON numbers and texts of any length and exponent; Avro decimals of any precision, as bytes or
fixed; MessagePack integers of -2^63 to 2^64-1; Protobuf integers of -2^63 to 2^64-1, and a Duration, which is a
decimal(21,9) of up to 315,576,000,000 seconds either way, with nanoseconds of the same sign.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import msgpack
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Proto
from google.protobuf.duration_pb2 import Duration
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.decode.base import Decoded, DecodeLimits
from headrace.decode.decoders import decoder
from headrace.decode.json.decoder import JsonDecoder
from headrace.decode.json.exact import inner_default
from headrace.decode.json.scalar_text import leaf
from headrace.decode.payload import PayloadNode
from headrace.decode.protobuf.decoder import ProtobufDecoder, ProtobufGroup
from headrace.decode.protobuf.schema import Message, ParsedFile, linked
from headrace.decode.typed.convert import converted
from headrace.engine import decimals
from headrace.errors import SchemaMismatch, UsageError
from headrace.plan.conform import fit
from headrace.plan.route_schema import RouteSchema
from headrace.reasons import Reason
from headrace.spec import Decode
from headrace.spec.decode import ProtobufFormat
from headrace.table.records import fit_records, from_json
from headrace.transform.steps import SetStep, Transform
from services.plans import envelopes

EXACT = Context(prec=1000, Emax=999_999, Emin=-999_999)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOME = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
WRAPPED = [  # Arrow's cast takes each of these for another number
    ("4185855032379941839286221", 38, 18),
    ("340282366920938463463374607431768211457", 38, 0),
    ("3.4028235e38", 38, 10),
    ("0.1" + "0" * 60, 5, 2),
]
LOST = [("1e-400", 38, 2), ("1e-400", 38, 38), ("-1.5e-330", 5, 2), ("1e400", 38, 0)]


def value_in(text: str, kind: pa.DataType) -> Decimal | None:
    """What a number is as a decimal of the type; None when it is none."""
    unscaled = Fraction(text) * 10**kind.scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**kind.precision:
        return None
    return Decimal(unscaled.numerator).scaleb(-kind.scale, EXACT)


kinds = st.one_of(st.integers(1, 38), st.just(38)).flatmap(
    lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s))
)
digits = st.one_of(
    st.text("0123456789", min_size=1, max_size=60),
    st.integers(1, 60).map(lambda count: "9" * count),
    st.tuples(st.sampled_from("123456789"), st.integers(0, 59)).map(lambda pair: pair[0] + "0" * pair[1]),
)
exponents = st.one_of(st.none(), st.none(), st.integers(-5, 5), st.integers(-60, 60), st.integers(-400, 400))


def some(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Some of them, often one alone: with many there is mostly one that does not fit, and Arrow's cast says so."""
    return st.one_of(st.lists(values, min_size=1, max_size=1), st.lists(values, min_size=1, max_size=24))


@st.composite
def written(draw: Any) -> str:
    """A number as JSON writes it."""
    found = draw(digits)
    point = draw(st.integers(0, len(found)))
    fraction = found[point:] + "0" * draw(st.sampled_from([0, 0, 1, 7, 40]))
    text = draw(st.sampled_from(["", "-"])) + (found[:point].lstrip("0") or "0") + ("." + fraction if fraction else "")
    exponent = draw(exponents)
    return text if exponent is None else f"{text}{draw(st.sampled_from('eE'))}{exponent}"


@st.composite
def close(draw: Any, kind: pa.DataType) -> str:
    """A number that the type holds, or one just beyond, in one of its spellings."""
    limit = 10**kind.precision
    unscaled = draw(st.one_of(st.integers(1 - limit, limit - 1), st.sampled_from([limit - 1, limit, -limit, 1, 0])))
    unscaled += draw(st.sampled_from([0, 1, -3])) << 128  # the same number to whoever keeps 128 bits
    scale = draw(st.sampled_from([kind.scale, kind.scale, kind.scale, kind.scale + 1]))
    if draw(st.booleans()):
        return f"{unscaled}e{-scale}"
    return f"{Decimal(unscaled).scaleb(-scale, EXACT):f}"


@st.composite
def batches(draw: Any) -> tuple[pa.DataType, list[str]]:
    """A type, and numbers for it."""
    kind = draw(kinds)
    return kind, draw(some(st.one_of(written(), close(kind))))


def outcomes(found: Decoded, count: int, name: str = "d") -> list[Any]:
    """By position, the value, or the reason why there is none."""
    told: list[Any] = [None] * count
    for at, value in zip(found.index.to_pylist(), found.rows[name].to_pylist(), strict=True):
        told[at] = value
    for at, reason in zip(found.rejects.index, found.rejects.reason, strict=True):
        told[at] = reason
    return told


def expected(texts: list[str], kind: pa.DataType) -> list[Any]:
    return [Reason.OVERFLOW if (value := value_in(text, kind)) is None else value for text in texts]


# ---- JSON, by each of its code paths ----


def by_template(made: JsonDecoder) -> None:
    pass


def by_members(made: JsonDecoder) -> None:
    made._templates._idle = 1_000_000  # no template is looked for


def by_proof(made: JsonDecoder) -> None:
    by_members(made)
    made._members = None


def one_by_one(made: JsonDecoder) -> None:
    made._prover = None


@pytest.mark.parametrize("path", [by_template, by_members, by_proof, one_by_one])
@settings(SOME, max_examples=120)
@given(batch=batches())
def test_json(path: Callable[[JsonDecoder], None], batch: tuple[pa.DataType, list[str]]):
    kind, texts = batch
    schema = pa.schema([("d", kind), ("l", pa.list_(pa.field("element", kind)))])
    made = JsonDecoder(schema, "ignore", DecodeLimits())
    path(made)
    found = made.decode(pa.array([f'{{"d":{text},"l":[{text},null]}}'.encode() for text in texts]))
    assert outcomes(found, len(texts)) == expected(texts, kind)
    assert [lists[0] for lists in found.rows["l"].to_pylist()] == found.rows["d"].to_pylist()


@pytest.mark.parametrize("path", [by_template, by_members, by_proof, one_by_one])
@pytest.mark.parametrize(("text", "precision", "scale"), WRAPPED + LOST)
def test_a_neighbour_changes_nothing(
    path: Callable[[JsonDecoder], None], text: str, precision: int, scale: int
) -> None:
    kind = pa.decimal128(precision, scale)
    for texts in ([text], [text, "0"], ["0", text, "1e-1", text], ["x", text]):
        made = JsonDecoder(pa.schema([("d", kind)]), "ignore", DecodeLimits())
        path(made)
        found = outcomes(made.decode(pa.array([f'{{"d":{each}}}'.encode() for each in texts])), len(texts))
        assert [found[at] for at, each in enumerate(texts) if each == text] == expected(
            [text] * texts.count(text), kind
        )


@SOME
@given(batch=batches())
def test_a_template_vouches_only_for_what_fits(batch: tuple[pa.DataType, list[str]]):
    kind, texts = batch
    column, good = leaf(
        PayloadNode("leaf", kind), pa.array([*texts, "1", "01", "+1", ".5", "5.", "1e", "", "0x1", "-"])
    )
    vouched = [True] * len(column) if good is None else good.tolist()
    assert [value if sure else None for value, sure in zip(column.to_pylist(), vouched, strict=True)] == [
        *(value_in(text, kind) for text in texts),
        value_in("1", kind),
        *[None] * 8,
    ]


def test_the_bounds_of_every_type():
    for precision in range(1, 39):
        for scale in range(precision + 1):
            kind = pa.decimal128(precision, scale)
            found = [10**precision - 1, 10**precision, -(10**precision) + 1, 1, 10, -(10**scale), 10**scale + 1]
            plain = [f"{Decimal(unscaled).scaleb(-scale, EXACT):f}" for unscaled in found]
            pointed = [text if "." in text else f"{text}.0" for text in plain]
            texts = [*plain, *pointed, *(f"{text}{'0' * 3}" for text in pointed), *(f"{text}1" for text in pointed)]
            for few in (texts, [plain[0]], [plain[1]], [pointed[0]]):
                assert decimals.from_texts(pa.array(few), kind).to_pylist() == [value_in(text, kind) for text in few]


def test_numbers_of_any_length():
    kind = pa.decimal128(5, 2)
    for text in ("1." + "0" * 5000, "0." + "0" * 5000 + "1e5001", "1e" + "0" * 5000, "10" + "0" * 400 + "e-401"):
        assert decimals.exact_decimals(text, kind) == 1
    assert decimals.exact_decimals("0e" + "9" * 5000, kind) == 0
    for text in ("1e" + "9" * 5000, "1e-" + "9" * 5000, "1" + "0" * 5000, "0." + "0" * 5000 + "1"):
        assert decimals.exact_decimals(text, kind) is None


@pytest.mark.parametrize(("text", "precision", "scale"), [*WRAPPED, *LOST, ("-12.50", 4, 2)])
def test_defaults_of_columns(text: str, precision: int, scale: int) -> None:
    kind = pa.decimal128(precision, scale)
    node = PayloadNode("leaf", kind, default=text)
    if (value := value_in(text, kind)) is not None:
        assert inner_default(node, "d") == value
        return
    with pytest.raises(UsageError, match="does not fit"):
        inner_default(node, "d")


# ---- formats that bring their own types ----


@st.composite
def conversions(draw: Any) -> tuple[pa.DataType, pa.DataType, list[Decimal]]:
    """A decimal type, another, and values of the one for the other."""
    have, want = draw(kinds), draw(kinds)
    limit = 10**have.precision
    powers = st.tuples(st.sampled_from([1, -1, 5, -25]), st.integers(0, 38)).map(lambda pair: pair[0] * 10 ** pair[1])
    unscaled = st.one_of(st.integers(1 - limit, limit - 1), powers.filter(lambda number: abs(number) < limit))
    found = draw(some(unscaled))
    return have, want, [Decimal(number).scaleb(-have.scale, EXACT) for number in found]


def as_texts(values: list[Any]) -> list[str]:
    return [f"{value:f}" if isinstance(value, Decimal) else str(value) for value in values]


@pytest.mark.parametrize("base", ["bytes", "fixed"])
@SOME
@given(given=conversions())
def test_avro(tmp_path: Path, base: str, given: tuple[pa.DataType, pa.DataType, list[Decimal]]):
    have, want, values = given
    inner = {"type": base, "logicalType": "decimal", "precision": have.precision, "scale": have.scale}
    inner |= {"name": "D", "size": 17} if base == "fixed" else {}
    schema = {"type": "record", "name": "R", "fields": [{"name": "d", "type": inner}]}
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    options = Decode.model_validate({"avro": {"schema": str(tmp_path / "r.avsc")}}).options
    made = decoder("avro", pa.schema([("d", want)]), options=options)
    numbers = [int(value.scaleb(have.scale, EXACT)) for value in values]
    raw = [number.to_bytes(17, "big", signed=True) for number in numbers]
    if base == "bytes":
        raw = [bytes([2 * 17]) + each for each in raw]
    assert outcomes(made.decode(pa.array(raw, pa.binary())), len(values)) == expected(as_texts(values), want)


integers = some(
    st.one_of(
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 18).map(lambda n: 10**n),
        st.integers(1, 18).map(lambda n: 1 - 10**n),
    )
)


@SOME
@given(kind=kinds, numbers=integers)
def test_msgpack(tmp_path: Path, kind: pa.DataType, numbers: list[int]):
    (tmp_path / "one.json").write_text(
        json.dumps({"id": 7, "name": "R", "fields": [{"name": "d", "type": "bigint"}, {"name": "f", "type": "double"}]})
    )
    made = decoder(
        "msgpack",
        pa.schema([("d", kind)]),
        options=Decode.model_validate({"msgpack": {"schemas": str(tmp_path)}}).options,
    )
    raw = [struct.pack(">I", 7) + msgpack.packb({"d": number}) for number in numbers]
    assert outcomes(made.decode(pa.array(raw, pa.binary())), len(raw)) == expected(as_texts(numbers), kind)


class OneMessage:
    """A message type at hand."""

    def __init__(self, message: Message) -> None:
        self.message = message

    def groups(self, values: pa.BinaryArray, at: Any, rejects: Any) -> list[ProtobufGroup]:
        return [ProtobufGroup(self.message, values, 0, at)]


FILE = descriptor_pb2.FileDescriptorProto(name="decimals.proto", package="t", syntax="proto3")
FILE.message_type.add(name="M").field.add(name="i", number=1, label=1, type=Proto.TYPE_SINT64)
FILE.message_type[0].field.add(name="u", number=2, label=1, type=Proto.TYPE_UINT64)
MESSAGE = message_factory.GetMessageClass(
    descriptor_pool.DescriptorPool().AddSerializedFile(FILE.SerializeToString()).message_types_by_name["M"]
)


LONGEST = 315_576_000_000  # seconds of a Duration
DURATIONS = descriptor_pb2.FileDescriptorProto(name="durations.proto", package="t", syntax="proto3")
DURATIONS.dependency.append("google/protobuf/duration.proto")
DURATIONS.message_type.add(name="M").field.add(
    name="d", number=1, label=1, type=Proto.TYPE_MESSAGE, type_name=".google.protobuf.Duration"
)
seconds = st.one_of(
    st.integers(-LONGEST - 2, LONGEST + 2), st.sampled_from([0, LONGEST, -LONGEST, 2**63 - 1, -(2**63)])
)
nanos = st.one_of(st.integers(-(10**9), 10**9), st.sampled_from([0, 10**9 - 1, 1 - 10**9, 2**31 - 1, -(2**31)]))


def _seconds_of(whole: int, parts: int) -> Decimal | Reason:
    """A duration in seconds, or the reason why it is none."""
    if abs(whole) > LONGEST or abs(parts) >= 10**9 or whole * parts < 0:
        return Reason.TIMESTAMP
    return EXACT.add(Decimal(whole), Decimal(parts).scaleb(-9, EXACT)).quantize(Decimal(1).scaleb(-9), context=EXACT)


@SOME
@given(sent=st.lists(st.tuples(seconds, nanos), min_size=1, max_size=24))
def test_protobuf_durations(sent: list[tuple[int, int]]):
    inner = [Duration(seconds=whole, nanos=parts).SerializeToString() for whole, parts in sent]
    raw = [b"\n" + bytes([len(value)]) + value for value in inner]  # field 1, length-delimited
    well_known = descriptor_pb2.FileDescriptorProto.FromString(Duration.DESCRIPTOR.file.serialized_pb)
    message = linked([ParsedFile(well_known), ParsedFile(DURATIONS)]).message("t.M")
    options = ProtobufFormat.model_construct(allow_empty=True, keep_unknown_fields=False)
    columns = pa.schema([("d", pa.decimal128(21, 9))])
    made = ProtobufDecoder(OneMessage(message), columns, "ignore", DecodeLimits(), options)
    found = made.decode(pa.array(raw, pa.binary()))
    assert outcomes(found, len(raw)) == [_seconds_of(*each) for each in sent]


@SOME
@given(kind=kinds, numbers=integers)
def test_protobuf(kind: pa.DataType, numbers: list[int]):
    numbers = [*numbers, 2**63 - 1]
    unsigned = [number % 2**64 for number in numbers]
    raw = [MESSAGE(i=i, u=u).SerializeToString() for i, u in zip(numbers, unsigned, strict=True)]
    for name, sent in (("i", numbers), ("u", unsigned)):
        options = ProtobufFormat.model_construct(allow_empty=True, keep_unknown_fields=False)
        made = ProtobufDecoder(
            OneMessage(linked([ParsedFile(FILE)]).message("t.M")),
            pa.schema([(name, kind)]),
            "ignore",
            DecodeLimits(),
            options,
        )
        found = made.decode(pa.array(raw, pa.binary()))
        assert outcomes(found, len(raw), name) == expected(as_texts(sent), kind)


@settings(max_examples=30, deadline=None)
@given(kind=kinds, numbers=integers)
def test_a_decimal_becomes_the_nearest_double(kind: pa.DataType, numbers: list[int]):
    """0.3 is 0.3, not 0.30000000000000004."""
    values = [number % 10**kind.precision for number in numbers]
    column = pa.array([Decimal(number).scaleb(-kind.scale, EXACT) for number in values], kind)
    assert converted(column, PayloadNode("leaf", pa.float64())).to_pylist() == [
        number / 10**kind.scale for number in values
    ]


# ---- expressions ----


def rows_of(column: pa.Array) -> tuple[pa.Table, pa.Table]:
    return pa.table({"v": column}), envelopes([{}] * len(column))


@SOME
@given(batch=batches(), kind_of_cast=st.sampled_from(["CAST(v AS {})", "v::{}", "CAST(trim(v) AS {})"]))
def test_casts_of_texts_in_expressions(batch: tuple[pa.DataType, list[str]], kind_of_cast: str):
    """SQL's own meaning: digits behind the last place are rounded; a number that does not fit fails the record."""
    kind, texts = batch
    sql = kind_of_cast.format(f"DECIMAL({kind.precision},{kind.scale})")
    rows, given = rows_of(pa.array(texts))
    made = Transform([SetStep({"d": sql})]).apply(rows, given, NOW)
    rounded = [Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, context=EXACT) for text in texts]
    limit = Decimal(10) ** (kind.precision - kind.scale)
    fits = [at for at, value in enumerate(rounded) if value.copy_abs() < limit]
    assert made.index.to_pylist() == fits
    assert made.rows["d"].to_pylist() == [rounded[at] for at in fits]
    assert set(made.rejects.reason) <= {Reason.TRANSFORM}


def _shown(number: float) -> str:
    """A float as DuckDB shows it, with up to nine digits: 42264808.0, where NumPy has 4.226481e+07."""
    ((text,),) = duckdb.execute("SELECT CAST(CAST(? AS FLOAT) AS VARCHAR)", [number]).fetchall()
    assert np.float32(text) == np.float32(number)
    return str(text)


@SOME
@example(kind=pa.decimal128(38, 0), numbers=[42264808.0], narrow=True)
@given(
    kind=st.builds(pa.decimal128, st.just(38), st.integers(0, 38)) | st.builds(pa.decimal128, st.integers(1, 38)),
    numbers=st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**30), 10**30).map(float)),
    narrow=st.booleans(),
)
def test_casts_of_duplicates_in_expressions(kind: pa.DataType, numbers: list[float], narrow: bool):
    """A double is the number that its shortest text shows: 1e22 has no digits after the point."""
    if narrow:
        numbers = [number for number in numbers if abs(number) < 3e38]
    column = pa.array(numbers, pa.float32() if narrow else pa.float64())
    texts = [_shown(number) if narrow else repr(number) for number in numbers]
    rows, given = rows_of(column)
    result = Transform([SetStep({"d": f"CAST(v AS DECIMAL({kind.precision},{kind.scale}))"})]).apply(rows, given, NOW)
    rounded = [Decimal(text).quantize(Decimal(1).scaleb(-kind.scale), ROUND_HALF_UP, context=EXACT) for text in texts]
    limit = Decimal(10) ** (kind.precision - kind.scale)
    fits = [at for at, value in enumerate(rounded) if value.copy_abs() < limit]
    assert result.index.to_pylist() == fits
    assert result.rows["d"].to_pylist() == [rounded[at] for at in fits]


@SOME
@given(
    types=st.tuples(st.integers(1, 38), st.integers(0, 38), st.integers(1, 38), st.integers(0, 38)),
    numbers=st.lists(st.integers(-(10**38) + 1, 10**38 - 1)),
)
def test_casts_of_decimals_in_expressions(types: tuple[int, int, int, int], numbers: list[int]):
    one, two = (pa.decimal128(width, min(scale, width)) for width, scale in (types[:2], types[2:]))
    values = [Decimal(number % 10**one.precision).scaleb(-one.scale, EXACT) for number in numbers]
    rows, given = rows_of(pa.array(values, one))
    result = Transform([SetStep({"d": f"CAST(v AS DECIMAL({two.precision},{two.scale}))"})]).apply(rows, given, NOW)
    rounded = [value.quantize(Decimal(1).scaleb(-two.scale), ROUND_HALF_UP, context=EXACT) for value in values]
    limit = Decimal(10) ** (two.precision - two.scale)
    fits = [at for at, value in enumerate(rounded) if value < limit]
    assert result.index.to_pylist() == fits
    assert result.rows["d"].to_pylist() == [rounded[at] for at in fits]


@pytest.mark.parametrize(
    ("sql", "value"),
    [
        ("CAST(CAST('1e22' AS DOUBLE) AS DECIMAL(38,10))", Decimal(10**22)),
        ("CAST(123456789.12345679 AS DECIMAL(38,18))", Decimal("123456789.12345679")),
        ("CAST(true AS DECIMAL(3,1))", Decimal(1)),
        ("CAST('999.99e3' AS DECIMAL(6,1))", None),
        ("TRY_CAST('999.99e3' AS DECIMAL(6,1))", "NULL"),
        ("CAST('20000.0e-2' AS DECIMAL(7,4))", Decimal(200)),
        ("CAST('1e4000' AS DECIMAL(6,1))", None),
        ("CAST(v -> 'a' AS DECIMAL(6,1))", None),
        ("CAST(v -> 'b' AS DECIMAL(6,1))", None),
        ("CAST(v -> 'c' AS DECIMAL(6,1))", Decimal("-0.5")),
        ("CAST(v -> 'd' AS DECIMAL(6,1))", "NULL"),
        ("CAST(v -> 'e' AS DECIMAL(6,1))", None),
        ("CAST(1.5 AS DECIMAL(6,1)) + CAST(CAST(7 AS DOUBLE) AS NUMERIC(3,1))", Decimal("8.5")),
        ("CAST(NULL AS DECIMAL(6,1))", "NULL"),
        ("list_transform(['1.5e1', '2'], lambda x: CAST(x AS DECIMAL(4,1)))[1]", Decimal(15)),
    ],
)
def test_casts(sql: str, value: Any) -> None:
    rows, given = rows_of(pa.array(['{"a":999.99e3,"b":"999.99e3","c":-5e-1,"d":null,"e":[1]}']))
    made = Transform([SetStep({"d": sql})]).apply(rows, given, NOW)
    assert made.rows["d"].to_pylist() == ([] if value is None else [None] if value == "NULL" else [value])


@SOME
@given(given=conversions())
def test_results_of_expressions_in_declared_columns(given: tuple[pa.DataType, pa.DataType, list[Decimal]]):
    have, want, values = given
    rows, records = rows_of(pa.array(values, have))
    fitting, _, rejects = fit(rows, records, RouteSchema("/lake/t", pa.schema([]), pa.schema([("v", want)]), ()))
    told = expected(as_texts(values), want)
    assert fitting["v"].to_pylist() == [value for value in told if value is not Reason.OVERFLOW]
    assert rejects.reason == [Reason.OVERFLOW] * told.count(Reason.OVERFLOW)


# ---- records given to the Table API ----


def inserted(records: Any, schema: pa.Schema) -> list[Any] | None:
    try:
        return fit_records(records, schema, ()).to_pylist()
    except SchemaMismatch:
        return None


@SOME
@given(kind=kinds, text=written())
def test_dictionaries(kind: pa.DataType, text: str):
    value = value_in(text, kind)
    nested = pa.struct([("d", kind)])
    schema = pa.schema([("d", kind), ("s", nested), ("l", pa.list_(pa.field("element", kind)))])
    number = Decimal(text)
    for record in ({"d": number}, {"s": {"d": number}}, {"l": [None, number]}):
        made = inserted([record], schema)
        (name,) = record
        stored = {"d": value, "s": {"d": value}, "l": [None, value]}[name]
        assert made == (None if value is None else [{"d": None, "s": None, "l": None, name: stored}])
    line = f'{{"d": {text}}}'.encode()
    assert inserted(from_json(line, schema, "-"), schema) == inserted([{"d": number}], schema)


@SOME
@given(given=conversions(), wide=st.booleans())
def test_arrow_records(given: tuple[pa.DataType, pa.DataType, list[Decimal]], wide: bool):
    have, want, values = given
    kind = pa.decimal256(have.precision, have.scale) if wide else have
    told = [value_in(text, want) for text in as_texts(values)]
    for value, stored in zip(values, told, strict=True):
        for wrap, inner, outer in (
            (lambda each: each, kind, want),
            (lambda each: {"d": each}, pa.struct([("d", kind)]), pa.struct([("d", want)])),
            (lambda each: [each], pa.list_(kind), pa.list_(pa.field("element", want))),
            (lambda each: [("k", each)], pa.map_(pa.string(), kind), pa.map_(pa.string(), want)),
        ):
            records = pa.table({"v": pa.array([wrap(value), None], inner)})
            made = inserted(records, pa.schema([("v", outer)]))
            assert made == (None if stored is None else [{"v": wrap(stored)}, {"v": None}])


@SOME
@given(kind=kinds, numbers=integers)
def test_arrow_integers(kind: pa.DataType, numbers: list[int]):
    told = [value_in(str(number), kind) for number in numbers]
    made = inserted(pa.table({"v": pa.array(numbers, pa.int64())}), pa.schema([("v", kind)]))
    assert made == (None if None in told else [{"v": value} for value in told])


def test_arrow_decimals_of_thousands():
    records = pa.table({"v": pa.array([Decimal("12E+3"), None], pa.decimal128(2, -3))})
    assert inserted(records, pa.schema([("v", pa.decimal128(7, 2))])) == [{"v": Decimal(12000)}, {"v": None}]
    assert inserted(records, pa.schema([("v", pa.decimal128(6, 2))])) is None
