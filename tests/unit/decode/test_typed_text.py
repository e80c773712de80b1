"""Natural values as JSON text: nothing rounded, nothing in the words of an engine."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.decode.typed.text import as_json

MAP = pa.map_(pa.string(), pa.binary())


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.binary(), b"\xff\0", '"/wA="'),
        (MAP, [("a", b"\xff\0")], '{"a":"/wA="}'),
        (MAP, [], "{}"),
        (pa.map_(pa.string(), pa.list_(MAP)), [("k", [[("a", b"b")]])], '{"k":[{"a":"Yg=="}]}'),
        (
            pa.map_(pa.string(), pa.timestamp("us", "UTC")),
            [("t", datetime(2024, 1, 2, 3, 4, 5, 6, UTC))],
            '{"t":"2024-01-02T03:04:05.000006Z"}',
        ),
        (
            pa.struct([("d", pa.decimal128(20, 3)), ("day", pa.date32())]),
            {"d": Decimal("1.500"), "day": date(2024, 1, 2)},
            '{"d":"1.500","day":"2024-01-02"}',
        ),
        (pa.struct([("m", MAP)]), {"m": None}, '{"m":null}'),
    ],
)
def test_as_json(kind: pa.DataType, value: Any, text: str):
    assert as_json(pa.array([value, None, value], kind)).to_pylist() == [text, None, text]


def test_json_stays_as_it_is():
    texts = pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a":1.5}', None]))
    assert as_json(pa.StructArray.from_arrays([texts], ["j"])).to_pylist() == ['{"j":{"a":1.5}}', '{"j":null}']
