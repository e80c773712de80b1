"""JMESPath, three ways: kafka-delta-ingest's (the golden file), the interpreter's, and the vectors'; one answer."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.decode.base import DecodeLimits, Decoder
from headrace.decode.decoders import decoder
from headrace.decode.inference import evolve, infer
from headrace.decode.payload_field import MessageScope, PayloadField
from headrace.decode.scalars import UnfitValue
from headrace.delta.schema import RECORD_SCHEMA
from headrace.transform.jmespath import dialect
from headrace.transform.jmespath.queries import Queries

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "jmespath.json").read_text())
MESSAGES, ANSWERS = GOLDEN["messages"], GOLDEN["answers"]
NOW = datetime(2024, 5, 1, 12, 30, tzinfo=UTC)
FAILS = "fails"


def exactly(text: str, message: Any) -> Any:
    """The interpreter's answer."""
    try:
        return dialect.Interpreter(NOW).answer(dialect.parse_jmespath(text), message)
    except dialect.Failed:
        return FAILS


@pytest.mark.parametrize("text", ANSWERS)
def test_the_interpreter_answers_as_kafka_delta_ingest_does(text):
    wanted = ANSWERS[text]
    if wanted == "refused":
        assert dialect.check_jmespath(text)
        return
    for message, answer in zip(MESSAGES, wanted, strict=True):
        found = exactly(text, message)
        if answer == "fails":
            assert found == FAILS or "unknown" in text
        else:
            assert dialect.dump_json(found) == dialect.dump_json(answer["result"])


def test_the_golden_file_is_no_small_one():
    assert len(ANSWERS) > 200
    assert sum(answer == "fails" for each in ANSWERS.values() for answer in each) > 100


# ---- vectors ----

SCOPE = MessageScope(open=False)


@cache
def decoder_of(payload: pa.Schema) -> Decoder:
    said = PayloadField("the message", pa.string(), message=SCOPE).to_arrow()
    return decoder("json", payload.append(said), new_field="ignore", limits=DecodeLimits())


def rows_of(messages: list[Any], payload: pa.Schema) -> pa.Table:
    """Messages decoded, with their own texts beside the columns."""
    values = pa.array([json.dumps(message).encode() for message in messages], pa.binary())
    found = decoder_of(payload).decode(values)
    assert not found.rejects.index
    return found.rows


def vectorised(texts: list[str], rows: pa.Table) -> tuple[Queries, list[list[Any]]]:
    queries = Queries(rows.schema)
    for text in texts:
        queries.add(text, None)
    envelopes = pa.table([pa.nulls(len(rows), item.type) for item in RECORD_SCHEMA], schema=RECORD_SCHEMA)
    answers = queries.run(rows, envelopes, NOW)
    return queries, [
        [FAILS if at in failures else value for at, value in enumerate(values.to_pylist())]
        for values, failures in answers
    ]


def fitted(read: Any, answer: Any) -> Any:
    """What the exact way stores of an answer."""
    if answer is None or answer is FAILS:
        return answer
    try:
        return read(answer)
    except UnfitValue:
        return FAILS


def test_vectors_answer_as_the_golden_file_says():
    texts = [text for text, answer in ANSWERS.items() if answer != "refused" and not dialect.check_jmespath(text)]
    for at, message in enumerate(MESSAGES):
        known = {key: value for key, value in message.items() if key != "big"}  # which no long holds
        payload = evolve(pa.schema([]), infer(pa.array([json.dumps(known)])))
        queries, found = vectorised(texts, rows_of([message], payload))
        for text, query, values in zip(texts, queries.compiled, found, strict=True):
            answer = ANSWERS[text][at]
            wanted = FAILS if answer == "fails" else fitted(query.read, answer["result"])
            assert plain(values[0]) == plain(wanted), text
        assert sum(query.vector is not None for query in queries.compiled) > len(texts) // 2


def plain(value: Any) -> Any:
    """Numbers as numbers, whatever their type."""
    return json.loads(json.dumps(value, default=str))


PAYLOAD = pa.schema(
    [
        pa.field("s", pa.string()),
        pa.field("z", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("m", pa.int32()),
        pa.field("d", pa.float64()),
        pa.field("b", pa.bool_()),
        pa.field("t", pa.list_(pa.field("element", pa.string()))),
        pa.field("o", pa.struct([pa.field("s", pa.string()), pa.field("n", pa.int64())])),
        pa.field("w", pa.timestamp("us", "UTC")),
    ]
)
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    st.sampled_from(["", "2021-03-16T14:38:58Z", "a👍🏽é", "12", "-0.5", "1e5", "007", "a-b", "null", "true"]),
)
LONGS = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 1626823098, 1626823098519, 1626823098519950, 2**53, 2**53 + 1, 2**51, 9223372036]),
)
DOUBLES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0.5, 12.0, -0.0, 1e300, 1.0000000000000002])
)
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), LONGS, DOUBLES, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("snk"), inner, max_size=3)),
    max_leaves=5,
)
FIELDS = {
    "s": TEXTS,
    "z": TEXTS,
    "n": LONGS,
    "m": st.integers(-(2**31), 2**31 - 1),
    "d": DOUBLES,
    "b": st.booleans(),
    "t": st.lists(st.one_of(st.none(), TEXTS), max_size=3),
    "o": st.fixed_dictionaries({}, optional={"s": TEXTS, "n": LONGS, "k": ANYTHING}),
    "w": st.just("2021-03-16T14:38:58Z"),
    "u": ANYTHING,
    "v": ANYTHING,
}
MESSAGE_OF = st.fixed_dictionaries({}, optional={key: st.one_of(st.none(), each) for key, each in FIELDS.items()})

PLACES = st.sampled_from(
    ["s", "z", "n", "m", "d", "b", "t", "o.s", "o.n", "o.k", "t[0]", "t[-1]", "w", "u", "v", "u.s", "v[0]", "u.n.s",
     "missing", "s.x", "n[0]", "o", "u[-1]"]
)  # fmt: skip
LITERALS = st.one_of(
    st.sampled_from(["'a'", "''", "'-'", "`0`", "`1`", "`-2`", "`1.5`", "`true`", "`false`", "`null`", "`12.0`"]),
    st.integers(-(2**60), 2**60).map(lambda number: f"`{number}`"),
)


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    number = st.sampled_from(["`0`", "`1`", "`3`", "`-1`", "`10`", "`1.7`"])
    two = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(inner, number, number).map(lambda given: "substr({}, {}, {})".format(*given)),
        st.tuples(
            st.sampled_from(
                ["epoch_seconds_to_iso8601", "epoch_millis_to_iso8601", "epoch_micros_to_iso8601",
                 "epoch_nanos_to_iso8601", "epoch_millis_to_micro", "to_string", "to_number", "length", "type", "abs",
                 "ceil", "floor"]
            ),
            inner,
        ).map(lambda given: "{}({})".format(*given)),
        st.tuples(st.sampled_from(["contains", "starts_with", "ends_with", "not_null", "join"]), inner, inner).map(
            lambda given: "{}({}, {})".format(*given)
        ),
        st.tuples(inner, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner).map(
            lambda given: "({} {} {})".format(*given)
        ),
        two.map(lambda given: "({} || {})".format(*given)),
        two.map(lambda given: "({} && {})".format(*given)),
        inner.map(lambda given: f"!{given}" if given[0] not in "`'" else f"!({given})"),
    )  # fmt: skip


EXPRESSIONS = st.recursive(st.one_of(PLACES, PLACES, LITERALS), _grown, max_leaves=5)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(MESSAGE_OF, min_size=1, max_size=6), st.lists(EXPRESSIONS, min_size=1, max_size=8))
def test_vectors_and_the_interpreter_give_the_same_answers(messages, texts):
    rows = rows_of(messages, PAYLOAD)
    queries, found = vectorised(texts, rows)
    assert queries._sql_results(rows, queries._sql_columns(rows), NOW) is not None or not queries._computed
    for text, query, values in zip(texts, queries.compiled, found, strict=True):
        for message, value in zip(messages, values, strict=True):
            wanted = fitted(query.read, exactly(text, message))
            if pa.types.is_timestamp(query.field.type):
                continue  # a column stored once more, untouched
            assert plain(value) == plain(wanted), (text, query.vector)
