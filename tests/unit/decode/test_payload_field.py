"""Payload fields through Arrow schemas and back."""

from __future__ import annotations

from dataclasses import fields

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.decode.inference import evolve, of
from headrace.decode.payload_field import MessageScope, PayloadField, dated_field, input_field, payload_field
from headrace.spec.table import Coerce

TEXTS = st.text(min_size=1, max_size=5)
FIELDS = st.builds(
    PayloadField,
    name=TEXTS,
    type=st.sampled_from([pa.int64(), pa.string(), pa.list_(pa.int8())]),
    nullable=st.booleans(),
    path=st.just("") | TEXTS,
    absolute_path=st.just("") | TEXTS,
    unit=st.sampled_from(["", "ms", "date"]),
    default=st.none() | TEXTS,
    json_text=st.booleans(),
    skipped=st.booleans(),
    exploded=st.booleans(),
    rescued=st.none() | st.booleans(),
    rescue=st.sampled_from(["", "field", "type", "elements"]),
    elements_of=st.just("") | TEXTS,
    change=st.booleans(),
    message=st.none() | st.builds(MessageScope, st.booleans(), st.lists(TEXTS, max_size=2).map(tuple)),
    record=st.booleans(),
    optional=st.booleans(),
    coerce=st.sampled_from([None, Coerce(string=True), Coerce(timestamp="ms")]),
    masked_type=st.sampled_from(["", "long"]),
    other=st.dictionaries(st.sampled_from([b"comment", b"delta.typeChanges"]), st.binary(min_size=1, max_size=3)),
)


@given(FIELDS)
def test_a_field_survives_a_serialised_arrow_schema(item: PayloadField):
    schema = pa.ipc.read_schema(pa.schema([item.to_arrow()]).serialize())
    assert payload_field(schema.field(0)) == item


def test_every_attribute_is_written():
    """An attribute that is added to the class and not to `to_arrow` is lost here."""
    item = PayloadField(
        **{"name": "a", "type": pa.int64(), "nullable": False, "rescued": False, "rescue": "type"},
        **{"message": MessageScope(False, ("b",)), "other": {b"comment": b"c"}, "coerce": Coerce(string=True)},
        **dict.fromkeys(("path", "absolute_path", "unit", "default", "elements_of", "masked_type"), "x"),
        **dict.fromkeys(("json_text", "skipped", "exploded", "change", "record", "optional"), True),
    )
    blank = PayloadField("", pa.null())
    assert not [each.name for each in fields(item) if getattr(item, each.name) == getattr(blank, each.name)]
    assert payload_field(item.to_arrow()) == item


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (PayloadField("a", pa.string(), masked_type="long"), PayloadField("a", pa.int64())),
        (PayloadField("a", pa.string(), masked_type="json"), PayloadField("a", pa.string(), json_text=True)),
        (PayloadField("a", pa.string(), json_text=True), PayloadField("a", pa.string(), json_text=True)),
    ],
)
def test_a_masked_column_is_read_in_the_type_of_its_records(stored: PayloadField, read: PayloadField):
    assert payload_field(input_field(stored.to_arrow())) == read
    nested = pa.field("s", pa.struct([stored.to_arrow()]))
    assert payload_field(input_field(nested)).children == (read,)


def test_a_timestamp_that_was_a_date_keeps_its_other_metadata():
    item = dated_field(PayloadField("a", pa.timestamp("us"), path="x.y").to_arrow())
    assert payload_field(item) == PayloadField("a", pa.timestamp("us"), path="x.y", unit="date")


def test_a_column_with_a_dot_in_its_name_takes_no_key_but_its_own():
    grown = evolve(pa.schema([pa.field("a.b", pa.int64())]), of({"a.b": 1, "a": {"b": 2}}))
    assert grown.names == ["a.b", "a"]
