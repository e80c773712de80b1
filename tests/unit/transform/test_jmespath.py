"""The `jmespath` step: targets, nulls, types, failures, and what of a message it sees."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import ColumnMismatch, SpecError, UsageError
from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.transform.from_spec import transform_steps
from headrace.transform.steps import JmespathStep, Transform
from headrace.validate.load import examine_text
from services.plans import MOMENT, adds_up, envelopes, letters, plan_of, rows, shaped, spec_of

DAY = "substr(modified, `0`, `10`)"
MODIFIED = "2021-03-16T14:38:58Z"


def applied(step: Any, messages: list[Any], **content: Any) -> BatchResult:
    steps = step if isinstance(step, list) else [{"jmespath": step}]
    return plan_of(transform=steps, **content).apply(envelopes(messages))


def column(name: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def test_results_become_columns_of_the_types_that_can_be_told():
    step = {"date": DAY, "n": "length(modified)", "known": "id == `1`", "half": "floor(id)", "again": "id"}
    found = applied(step, [{"id": 1, "modified": MODIFIED}])
    assert rows(found) == [
        {"id": 1, "modified": MODIFIED, "date": "2021-03-16", "n": 20, "known": True, "half": 1.0, "again": 1}
    ]
    assert found.tables[RouteId()].schema.field("again").type == pa.int64()


def test_the_envelope_is_named_by_the_whole_source():
    step = {name: f"kafka.{name}" for name in ("topic", "partition", "offset", "timestamp", "timestamp_type")}
    assert rows(applied(step, [{"a": 1}])) == [
        {
            "a": 1,
            "topic": "web",
            "partition": 0,
            "offset": 0,
            "timestamp": int(MOMENT.timestamp()) * 1_000_000,
            "timestamp_type": 0,
        }
    ]


def test_kafka_is_an_ordinary_field_everywhere_else():
    assert rows(applied({"x": "kafka.offset", "y": "to_string(kafka.offset)"}, [{"kafka": {"offset": 7}}]))[0] | {
        "kafka": None
    } == {"kafka": None, "x": 0, "y": "7"}


def test_a_record_without_a_timestamp_has_none_and_its_type_is_minus_1():
    plan = plan_of(transform=[{"jmespath": {"at": "kafka.timestamp", "how": "kafka.timestamp_type"}}])
    found = plan.apply(envelopes([{"a": 1}], timestamp=None, timestamp_type=None))
    assert rows(found) == [{"a": 1, "at": None, "how": -1}]


def test_every_expression_sees_the_message_as_it_came():
    steps = [
        {"set": {"a": "a + 1", "b": "a"}},
        {"rename": {"c": "d"}},
        {"jmespath": {"a2": "a", "c2": "c", "d2": "d", "b2": "b", "a": "c"}},
        {"jmespath": {"a3": "a"}},
        {"set": {"a4": "a"}},
    ]
    found = rows(applied(steps, [{"a": 1, "c": 5}]))
    assert found == [{"a": 5, "d": 5, "b": 2, "a2": 1, "c2": 5, "a3": 1, "a4": 5}]


def test_dotted_targets_make_their_parents_and_go_into_what_is_there():
    step = {"meta.day": DAY, "meta.at.offset": "kafka.offset", "user.name": "name"}
    messages = [
        {"modified": MODIFIED, "user": {"id": 1}, "name": "a"},
        {"modified": MODIFIED, "user": {"id": 2, "name": "own"}},
        {"modified": MODIFIED},
    ]
    found = rows(applied(step, messages))
    assert [row["meta"] for row in found] == [{"day": "2021-03-16", "at": {"offset": n}} for n in range(3)]
    assert [row["user"] for row in found] == [{"id": 1, "name": "a"}, {"id": 2, "name": "own"}, None]


def test_a_target_inside_of_something_that_is_no_object_stops():
    with pytest.raises(ColumnMismatch, match=r"jmespath a\.b: the message has int64 where 'b' would be a field"):
        applied({"a.b": "c"}, [{"a": 1, "c": 2}])


@pytest.mark.parametrize(
    ("on_null", "wanted"),
    [("keep", ["new", "old"]), ("drop", ["new", None]), ("null", ["new", None]), (None, ["new", None])],
)
def test_a_null_result_keeps_drops_or_nulls_its_target(on_null, wanted):
    step = {"set": {"name": "other"}, "on_null": on_null}
    found = rows(applied(step, [{"name": "old", "other": "new"}, {"name": "old"}]))
    assert [row["name"] for row in found] == wanted


def test_null_alone_is_how_a_field_is_dropped():
    message = [{"bids": [1], "id": 1, "deep": {"a": 1, "b": 2}}]
    found = applied({"set": {"bids": None, "deep.a": "null"}, "on_null": "drop"}, message)
    assert rows(found) == [{"id": 1, "deep": {"a": None, "b": 2}}]
    assert "bids" not in found.tables[RouteId()].schema.names
    assert rows(applied({"bids": None}, message)) == message
    nulled = applied({"set": {"bids": None}, "on_null": None}, message)
    assert rows(nulled) == [{**message[0], "bids": None}]


def test_kept_values_must_be_of_the_results_type():
    with pytest.raises(ColumnMismatch, match="jmespath a: the result is string, the existing value is int64"):
        applied({"a": "b"}, [{"a": 1, "b": "x"}])


def test_an_expression_that_fails_is_a_dead_letter_of_that_record():
    messages = [{"id": 1, "modified": MODIFIED}, {"id": 2}, {"id": 3, "modified": MODIFIED}]
    found = applied({"date": DAY}, messages)
    assert [row["id"] for row in rows(found)] == [1, 3]
    assert letters(found) == [(1, "transform", "transform")]
    assert (
        found.dead_letters["detail"][0].as_py() == "jmespath date: invalid type for substr: expected string, saw null"
    )
    adds_up(found)


def test_of_two_steps_the_first_decides():
    messages = [{"id": 1}, {"id": 2}, {"id": 3, "modified": MODIFIED}]
    where, query = {"where": "id <> 1"}, {"jmespath": {"date": DAY}}
    before = applied([where, query], messages)
    assert (letters(before), adds_up(before).filtered) == ([(1, "transform", "transform")], 1)
    after = applied([query, where], messages)
    assert (letters(after), adds_up(after).filtered) == (
        [(0, "transform", "transform"), (1, "transform", "transform")],
        0,
    )


def test_sql_goes_on_with_the_results():
    steps = [
        {"jmespath": {"date": DAY, "m.x": "id"}},
        {"set": {"year": "CAST(left(date, 4) AS INTEGER)", "y": "m.x + 1"}},
    ]
    found = rows(
        applied([*steps, {"where": "year = 2021"}], [{"id": 1, "modified": MODIFIED}, {"id": 2, "modified": "1"}])
    )
    assert found == [
        {"id": 1, "modified": MODIFIED, "date": "2021-03-16", "m": {"x": 1}, "year": 2021, "y": 2},
    ]


# ---- declared and existing tables ----


def test_fields_that_no_column_is_declared_for_are_seen():
    columns = [column("id", "bigint"), column("day", "string"), column("tag", "string"), column("n", "int")]
    step = {"day": DAY, "tag": "tags[0]", "n": "user.size"}
    messages = [{"id": 1, "modified": MODIFIED, "tags": ["a", 1], "user": {"size": 3}}, {"id": 2, "modified": "x"}]
    found = applied(step, messages, table={"columns": columns})
    assert rows(found) == [
        {"id": 1, "day": "2021-03-16", "tag": "a", "n": 3},
        {"id": 2, "day": "x", "tag": None, "n": None},
    ]


def test_a_column_of_another_type_does_not_hide_the_text_it_was_read_from():
    columns = [column("modified", "timestamp"), column("price", "decimal(9,2)"), column("d", "bigint", default=7)]
    step = {"day": DAY, "text": "to_string(price)", "own": "d", "at": "modified"}
    found = applied(step, [{"modified": MODIFIED, "price": 1.5}], table={"columns": columns})
    moment = datetime(2021, 3, 16, 14, 38, 58, tzinfo=UTC)
    row = rows(found)[0]
    assert {name: row[name] for name in ("day", "text", "own", "at")} == {
        "day": "2021-03-16",
        "text": "1.5",
        "own": None,
        "at": moment,
    }
    assert row["d"] == 7


@pytest.mark.parametrize("declared", [True, False])
def test_a_number_picked_for_a_decimal_keeps_its_digits(declared: bool):
    """Functions see doubles; a number that is only picked is the one that was written, or a dead letter."""
    columns = [column("a", "decimal(38,10)"), column("b", "decimal(38,0)"), column("l", "array<decimal(38,10)>")]
    columns += [column("o", "struct<a: decimal(38,10), b: decimal(38,0)>")] if declared else []
    written = [
        ("12345678901234567890.1234567890", "123456789012345678901234567890"),
        ("0.1", "5"),
        ("1e-400", "1"),
        ("0.12345678901", "1"),
    ]
    messages = [f'{{"o":{{"a":{a},"b":{b}}},"items":[{{"x":{a}}}]}}'.encode() for a, b in written]
    step = {"a": "not_null(o.none, o.a)", "b": "o.b", "l": "items[*].x"}
    plan = plan_of(transform=[{"jmespath": step}], table={"columns": columns})
    found = plan.apply(envelopes(messages))
    numbers = [(Decimal(a), Decimal(b)) for a, b in written[:2]]
    assert [(row["a"], row["b"], row["l"]) for row in rows(found)] == [(a, b, [a]) for a, b in numbers]
    assert len(found.dead_letters) == 2


def test_a_row_inside_of_an_envelope_keeps_its_digits():
    number = "12345678901234567890.1234567890"
    messages = [
        f'{{"before":null,"after":{{"id":1,"x":{{"n":{each}}}}},"source":{{}},"op":"c","ts_ms":1}}'.encode()
        for each in (number, "0.5")
    ]
    plan = plan_of(
        decode={"json": {"envelope": "debezium"}},
        transform=[{"jmespath": {"a": "x.n"}}],
        table={"columns": [column("id", "bigint"), column("a", "decimal(38,10)")]},
    )
    assert [row["a"] for row in rows(plan.apply(envelopes(messages)))] == [Decimal(number), Decimal("0.5")]


def test_results_become_the_declared_type_or_a_dead_letter():
    columns = [
        column("day", "date"),
        column("at", "timestamp"),
        column("iso", "timestamp"),
        column("small", "smallint"),
        column("text", "string"),
        column("list", "array<bigint>"),
        column("exact", "decimal(9,2)"),
        column("sum", "bigint"),
        column("ms", "timestamp", unit="ms"),
    ]
    step = {
        "day": DAY,
        "at": "kafka.timestamp",
        "iso": "epoch_millis_to_iso8601(ms)",
        "small": "n",
        "text": "o",
        "list": "l[*]",
        "exact": "x",
        "sum": "sum(l)",
        "ms": "ms",
    }
    good = {"modified": MODIFIED, "n": 7, "o": {"b": 1, "a": [1.5]}, "l": [1, 2], "x": 1.25, "ms": 1626823098519}
    bad = [{**good, "n": 70000}, {**good, "modified": "no day"}, {**good, "l": ["x"]}, {**good, "x": 1.255}]
    found = applied(step, [good, *bad, {**good, "l": [1.5]}], table={"columns": columns, "source": False})
    moment = datetime(2021, 7, 20, 23, 18, 18, 519000, tzinfo=UTC)
    [row] = rows(found)
    assert row["day"] == date(2021, 3, 16)
    assert (row["at"], row["iso"], row["ms"]) == (MOMENT, moment, moment)
    assert (row["small"], row["list"], str(row["exact"]), row["sum"]) == (7, [1, 2], "1.25", 3)
    assert row["text"] == '{"a":[1.5],"b":1}'
    assert [reason for *_, reason in letters(found)] == ["transform"] * 5
    assert found.dead_letters["detail"][0].as_py().startswith("jmespath small: its result does not fit: ")


def test_a_field_may_be_replaced_by_what_is_made_of_it():
    columns = [column("modified", "timestamp")]
    step = {"modified": "epoch_seconds_to_iso8601(modified)"}
    wanted = datetime(2021, 7, 20, 23, 18, 18, tzinfo=UTC)
    found = applied(step, [{"modified": 1626823098}], table={"columns": columns})
    assert rows(found) == [{"modified": wanted}]
    existing = plan_of({"": pa.schema([pa.field("modified", pa.string())])}, transform=[{"jmespath": step}])
    assert rows(existing.apply(envelopes([{"modified": 1626823098}]))) == [{"modified": "2021-07-20T23:18:18Z"}]


def test_an_inferred_table_still_gets_the_fields_that_are_read():
    plan = plan_of(transform=[{"jmespath": {"city": "user.city", "names": "tags[*].name"}}])
    assert rows(plan.apply(envelopes([{"id": 1}]))) == [{"id": 1}]
    found = plan.apply(envelopes([{"id": 2, "user": {"city": "x"}, "tags": [{"name": "a"}, {}]}]))
    assert rows(found) == [
        {"id": 2, "user": {"city": "x"}, "tags": [{"name": "a"}, {"name": None}], "city": "x", "names": ["a"]}
    ]


def test_a_task_with_given_shapes_does_the_same():
    plan = plan_of(transform=[{"jmespath": {"day": DAY, "keys": "keys(@)"}}])
    message = {"id": 1, "modified": MODIFIED}
    learned = plan.apply(envelopes([message]))
    existing = learned.tables[RouteId()].schema
    again = shaped(plan, existing=existing).apply(envelopes([message]))
    assert again.tables[RouteId()].schema == existing
    assert rows(again) == rows(learned) == [{**message, "day": "2021-03-16", "keys": ["id", "modified"]}]


def test_routes_that_are_read_together_keep_their_own_types():
    tables = [{"match": "a", "columns": [column("n", "string")]}, {"match": "b", "columns": [column("n", "bigint")]}]
    plan = plan_of(route={"by": {"field": "kind"}}, tables=tables, transform=[{"jmespath": {"n": "size"}}])
    plan = shaped(plan, "a", "b")
    found = plan.apply(envelopes([{"kind": "a", "size": 1}, {"kind": "b", "size": 2}]))
    assert (rows(found, "a"), rows(found, "b")) == ([{"n": "1"}], [{"n": 2}])


def test_other_formats_have_messages_too():
    plan = plan_of(decode="string", transform=[{"jmespath": {"day": "substr(data, `0`, `4`)", "all": "to_string(@)"}}])
    assert rows(plan.apply(envelopes([b"2021-03"]))) == [
        {"data": "2021-03", "day": "2021", "all": '{"data":"2021-03"}'}
    ]


@pytest.mark.parametrize("wrapped", [False, True])
def test_inside_of_an_envelope_the_message_is_the_row(wrapped):
    columns = [column("id", "bigint"), column("day", "date"), column("all", "string"), column("how", "string")]
    plan = plan_of(
        decode={"json": {"envelope": "debezium"}},
        table={"columns": columns, "source": False},
        transform=[{"jmespath": {"day": DAY, "all": "to_string(@)", "how": "_op || 'none'"}}],
    )
    change = {"op": "c", "before": None, "after": {"id": 1, "modified": MODIFIED}, "ts_ms": 1}
    found = plan.apply(envelopes([{"schema": {}, "payload": change} if wrapped else change]))
    assert letters(found) == []
    [row] = rows(found)
    assert (row["id"], row["day"], row["all"]) == (
        1,
        date(2021, 3, 16),
        json.dumps({"id": 1, "modified": MODIFIED}, separators=(",", ":")),
    )


def test_every_element_of_an_array_is_a_message():
    plan = plan_of(decode={"json": {"rows": "array"}}, transform=[{"jmespath": {"all": "to_string(@)"}}])
    assert [row["all"] for row in rows(plan.apply(envelopes([[{"a": 1}, {"a": 2}]])))] == ['{"a":1}', '{"a":2}']


def test_a_tombstone_kept_as_a_row_is_an_empty_message():
    columns = [column("id", "bigint"), column("x", "string"), column("n", "bigint")]
    plan = plan_of(
        decode={"json": {"tombstone": "row"}},
        table={"columns": columns},
        transform=[{"jmespath": {"x": "other.x", "n": "length(keys(@))"}}],
    )
    assert rows(plan.apply(envelopes([None, {"id": 1, "other": {"x": "y"}}]))) == [
        {"id": None, "x": None, "n": 0},
        {"id": 1, "x": "y", "n": 2},
    ]


def test_the_clock_is_the_batchs():
    assert rows(applied({"now": "now_epoch_seconds()"}, [{"a": 1}])) == [{"a": 1, "now": int(MOMENT.timestamp())}]


def test_half_of_a_batch_may_be_bad():
    messages = [{"id": n, "modified": MODIFIED if n % 2 else n} for n in range(200)]
    columns = [column("id", "bigint"), column("day", "date")]
    found = applied({"day": DAY}, messages, table={"columns": columns})
    assert adds_up(found).routed == 100
    assert [row["id"] for row in rows(found)] == list(range(1, 200, 2))


def test_a_transform_refuses_what_is_no_expression():
    with pytest.raises(UsageError, match="jmespath a: unknown function 'nope'"):
        Transform([JmespathStep({"a": "nope(b)"})])


# ---- the spec ----

SPEC = "pipeline: web\nsource: {{generate: {{}}}}\ntable: {{path: ./web}}\ntransform:\n  - jmespath:\n{}\n"


def findings(text: str, tmp_path: Any) -> list[str]:
    return [str(each) for each in examine_text(SPEC.format(text), tmp_path, "web.yaml")[1]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("      a: 'substring(b, `0`, `1`)'", "jmespath.a: unknown function 'substring'; did you mean 'substr'?"),
        ("      a: 'substr(b, `0`)'", "transform[0].jmespath.a: substr takes 3 arguments, not 2"),
        ("      a: b\n      c: 'b.['", "transform[0].jmespath.c: not a JMESPath expression: "),
        ("      a: kafka.ofset", "transform[0].jmespath.a: unknown field 'kafka.ofset'; did you mean 'kafka.offset'?"),
        ("      set:\n        a: 'a[::0]'", "transform[0].jmespath.set.a: a slice's step cannot be 0"),
        ("      set: {a: b}\n      on_null: skip", "transform[0].jmespath.on_null: 'skip'; expected: keep, drop, null"),
        ("      a..b: c", "transform[0].jmespath.a..b: empty, or longer than 255"),
        ("      a: {b: c}", "transform[0].jmespath.a: a mapping; expected: text"),
        ("      a: ''", "transform[0].jmespath.a: not a JMESPath expression: "),
    ],
)  # fmt: skip
def test_check_says_what_is_wrong_and_where(text, said, tmp_path):
    found = findings(text, tmp_path)
    assert len(found) == 1
    line = 5 + text.count("\n") + 1
    assert found[0].startswith(f"web.yaml:{line}:")
    assert said in found[0]


def test_both_forms_are_read_and_a_target_may_be_called_set():
    spec = spec_of(transform=[{"jmespath": {"set": "b"}}, {"jmespath": {"set": {"a": "b"}, "on_null": "drop"}}])
    assert transform_steps(spec) == [JmespathStep({"set": "b"}), JmespathStep({"a": "b"}, "drop")]


def test_a_step_is_one_thing():
    with pytest.raises(SpecError, match="jmespath together"):
        spec_of(transform=[{"jmespath": {"a": "b"}, "drop": ["c"]}])


def test_partitions_may_be_made_by_a_query():
    columns = [column("id", "bigint")]
    spec = spec_of(transform=[{"jmespath": {"day": DAY}}], table={"columns": columns, "partition_by": ["day"]})
    found = Plan(spec, now=lambda: MOMENT).apply(envelopes([{"id": 1, "modified": MODIFIED}]))
    assert rows(found) == [{"id": 1, "day": "2021-03-16"}]


def test_a_spec_with_null_in_it_keeps_its_text():
    spec = spec_of(transform=[{"jmespath": {"set": {"a": None}, "on_null": None}}])
    assert json.loads(spec.text)["transform"] == [{"jmespath": {"set": {"a": None}, "on_null": None}}]
    assert transform_steps(spec) == [JmespathStep({"a": "null"}, "null")]
