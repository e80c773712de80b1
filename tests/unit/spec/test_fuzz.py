"""Whatever a user writes, the answer is findings or specs, never an exception."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.validate.load import examine_text

FULL = {
    "pipeline": "shop",
    "source": {
        "kafka": {
            "brokers": ["localhost:9092"],
            "topics": ["a", "b"],
            "start": {"offsets": {"a": {"0": 12}}},
            "tls": {"ca": "x"},
            "sasl": {"mechanism": "PLAIN", "username": "u", "password": "${env:HOME}"},
            "settings": {"fetch.max.bytes": 1},
            "rate": "5/s",
        }
    },
    "decode": {"json": {"tombstone": "row"}},
    "transform": [{"set": {"c": "a + 1"}}, {"where": "a > 1"}, {"drop": ["b"]}, {"rename": {"a": "d"}}],
    "route": {"by": {"field": "a.b"}, "include": "x"},
    "table": {
        "path": "./lake/{route}",
        "partition_by": ["c"],
        "columns": [{"name": "a", "type": "int", "default": 1}, {"name": "b", "type": "struct<a: array<int>>"}],
        "contract": {"new_field": "ignore"},
        "properties": {"delta.appendOnly": True},
    },
    "tables": [{"match": "x", "columns": [{"name": "t", "type": "timestamp", "unit": "ms"}]}],
    "dead_letters": {"path": "./letters"},
    "state": "./state",
    "storage": {"s3": {"endpoint": "https://s3.example.com", "options": {"x": "y"}}},
    "flush": {"every": "5s"},
    "limits": {"depth": 3},
    "retry": {"unreachable": {"initial_interval": "1s"}},
    "lease": {"ttl": "20s"},
    "spark": {"cores": 2},
}


def paths(value, here=()):
    """Every place in the spec."""
    yield here
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in inner:
        yield from paths(child, (*here, step))


def put(value, path, other):
    """The spec with another value at one place."""
    if not path:
        return other
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(value[path[0]], path[1:], other)
    return copy


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(list(paths(FULL))), values)
def test_a_value_out_of_place_is_a_diagnostic(path, value):
    text = json.dumps(put(FULL, path, value))
    for finding in examine_text(text, Path("/base"))[1]:
        assert finding.message
        assert str(finding).isprintable()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2000), st.text(min_size=1, max_size=5), st.integers(0, 20))
def test_a_torn_text_is_a_diagnostic(at, noise, gone):
    text = json.dumps(FULL, indent=1)
    for finding in examine_text(text[:at] + noise + text[at + gone :], Path("/base"))[1]:
        assert finding.message
