"""Durations, sizes, rates and plain values: what is taken, what is refused, and that spelling reads back."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.spec import units


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("250ms", 250), ("5s", 5_000), ("1.5s", 1_500), ("1m", 60_000), ("2h", 7_200_000), ("7d", 604_800_000)],
)
def test_a_duration_is_read(text, milliseconds):
    assert units.duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("value", ["5", 5, "5 sec", "-5s", "5S", "", None, True, "1e3s", "99999999999s", "PT5S"])
def test_what_is_no_duration_is_refused(value):
    with pytest.raises(ValueError, match="250ms, 5s"):
        units.duration(value)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("128MB", 128_000_000),
        ("64KiB", 65_536),
        ("1 gb", 10**9),
        ("1.5GiB", 3 * 2**29),
        ("77", 77),
        (77, 77),
        ("9B", 9),
    ],
)
def test_a_size_is_read(text, count):
    assert units.size(text) == count


@pytest.mark.parametrize("value", ["128 M", "MB", -1, True, 1.5, "1e9", None, "12XB"])
def test_what_is_no_size_is_refused(value):
    with pytest.raises(ValueError, match="128MB"):
        units.size(value)


@pytest.mark.parametrize(("text", "per_second"), [("5000/s", 5000), ("300/m", 5), ("36/h", 0.01), ("0.5/s", 0.5)])
def test_a_rate_is_read(text, per_second):
    assert units.rate(text) == pytest.approx(per_second)


@pytest.mark.parametrize("value", ["5000", 5000, "0/s", "5/d", "-1/s", "/s"])
def test_what_is_no_rate_is_refused(value):
    with pytest.raises(ValueError, match="5000/s"):
        units.rate(value)


@pytest.mark.parametrize(("value", "number"), [(7, 7), ("7", 7), ("1_000_000", 10**6), ("-3", -3)])
def test_a_whole_number_is_read(value, number):
    assert units.parse_integer(value) == number


@pytest.mark.parametrize("value", [1.0, True, "1.0", "1e3", "", None, 2**63, "9" * 5000, "1__0"])
def test_what_is_no_whole_number_is_refused(value):
    with pytest.raises(ValueError, match="an integer"):
        units.parse_integer(value)


@pytest.mark.parametrize("value", ["yes", "on", 1, "True", None])
def test_only_true_and_false_are_flags(value):
    assert units.flag("true")
    assert not units.flag(False)
    with pytest.raises(ValueError, match="true or false"):
        units.flag(value)


@pytest.mark.parametrize("value", ["nan", 1.01, -0.1, True, "x", None, float("inf")])
def test_a_ratio_lies_between_none_and_all(value):
    assert units.ratio("0.25") == 0.25
    with pytest.raises(ValueError, match="from 0 to 1"):
        units.ratio(value)


def test_a_moment_needs_its_zone():
    assert units.moment("2025-01-31t12:00:00.5z") == datetime(2025, 1, 31, 12, 0, 0, 500_000, UTC)
    for value in ("2025-01-31T12:00:00", "2025-01-31", 1738324800, "2025-02-30T00:00:00Z", datetime(2025, 1, 1)):
        with pytest.raises(ValueError, match="with a time zone"):
            units.moment(value)


@pytest.mark.parametrize("text", ["(", "a(?=b)", r"(a)\1", "[z-a]", "(?P<n>a)(?P=n)"])
def test_a_regular_expression_must_suit_every_engine(text):
    assert units.regex(r"^shop\.") == r"^shop\."
    with pytest.raises(ValueError, match="RE2"):
        units.regex(text)


@given(st.integers(1, 10**9))
def test_a_spelled_duration_reads_back(milliseconds):
    value = timedelta(milliseconds=milliseconds)
    assert units.duration(units.spell_duration(value)) == value


@given(st.integers(0, 10**14))
def test_a_spelled_size_reads_back(count):
    assert units.size(units.spell_size(count)) == count
