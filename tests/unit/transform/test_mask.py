"""Masks: what is stored in place of a value; equal to plain HMAC, the same on every run, and never the value itself."""

from __future__ import annotations

import hashlib
import hmac
import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.payload_field import payload_field
from headrace.delta.schema import RECORD_SCHEMA, from_delta, to_delta
from headrace.errors import ColumnMismatch, UsageError
from headrace.plan.plan import Plan
from headrace.spec import Secret
from headrace.spec.route_id import RouteId
from headrace.transform.mask import HashMask, KeepMask, NullMask, RedactMask
from headrace.transform.steps import DropStep, MaskStep, RenameStep, SetStep, Transform, WhereStep
from headrace.validate.load import examine_text
from services.plans import MOMENT, adds_up, envelopes, letters, plan_of, rows, shaped, spec_of

KEY = "a key of thirty-two random bytes"
BY = Secret("${env:MASK_KEY}", Path())


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASK_KEY", KEY)


def digest(text: str, key: str = KEY) -> str:
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def applied(table: pa.Table, *steps: Any) -> pa.Table:
    nothing = pa.Table.from_pylist([dict.fromkeys(RECORD_SCHEMA.names)] * len(table), RECORD_SCHEMA)
    done = Transform(steps).apply(table, nothing, datetime(2026, 1, 1, tzinfo=UTC))
    assert not done.rejects.index
    assert done.rows.schema == Transform(steps).output(table.schema)
    return done.rows


# ---- the law ----


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.none() | st.text(), min_size=1, max_size=20),
    st.binary(min_size=16, max_size=200).map(lambda raw: raw.hex()[: len(raw)]),
)
def test_a_hash_is_plain_hmac(values: list[str | None], key: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASK_KEY", key)
        made = applied(pa.table({"v": pa.array(values, pa.string())}), MaskStep({"v": HashMask(BY)}))
    assert made["v"].to_pylist() == [None if value is None else digest(value, key) for value in values]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.none() | st.text(), min_size=1, max_size=20), st.integers(1, 6))
def test_an_end_is_kept_of_longer_texts_only(values: list[str | None], count: int) -> None:
    table = pa.table({"v": pa.array(values, pa.string()), "w": pa.array(values, pa.string())})
    made = applied(table, MaskStep({"v": KeepMask(first=count), "w": KeepMask(last=count)}))
    for value, first, last in zip(values, made["v"].to_pylist(), made["w"].to_pylist(), strict=True):
        if value is None:
            assert (first, last) == (None, None)
        elif len(value) <= count:
            assert (first, last) == ("***", "***")
        else:
            assert (first, last) == (value[:count] + "***", "***" + value[-count:])


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.int32(), -7, "-7"),
        (pa.int64(), 2**63 - 1, "9223372036854775807"),
        (pa.float64(), 1.5, "1.5"),
        (pa.bool_(), True, "true"),
        (pa.decimal128(9, 2), Decimal("12.50"), "12.50"),
        (pa.date32(), datetime(2026, 1, 2).date(), "2026-01-02"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.string(), "ö\0", "ö\0"),
    ],
)
def test_every_plain_type_has_a_text(kind: pa.DataType, value: Any, text: str) -> None:
    made = applied(pa.table({"v": pa.array([value, None], kind)}), MaskStep({"v": HashMask(BY)}))
    assert made["v"].to_pylist() == [digest(text), None]
    assert made.schema.field("v").type == pa.string()


# ---- forms and places ----


def test_nothing_and_one_text_for_all() -> None:
    table = pa.table({"a": pa.array([1, None], pa.int64()), "b": [[1], None], "c": ["x", None], "d": [{"e": 1}, None]})
    made = applied(table, MaskStep({"a": NullMask(), "b": RedactMask(), "c": RedactMask("hidden"), "d": NullMask()}))
    assert made.to_pylist() == [
        {"a": None, "b": "***", "c": "hidden", "d": None},
        {"a": None, "b": None, "c": None, "d": None},
    ]
    assert [item.type for item in made.schema] == [pa.int64(), pa.string(), pa.string(), table.schema.field("d").type]


def test_fields_inside_of_structs_are_masked_and_their_neighbours_are_not() -> None:
    kind = pa.struct([pa.field("Mail", pa.string()), pa.field("n", pa.struct([pa.field("ip", pa.string())]))])
    table = pa.table({"u": pa.array([{"Mail": "a@b", "n": {"ip": "1.2.3.4"}}, {"Mail": None, "n": None}, None], kind)})
    made = applied(
        table,
        MaskStep({"u.mail": HashMask(BY), "U.n.ip": KeepMask(first=3), "u.absent": NullMask(), "no.such": NullMask()}),
    )
    assert made["u"].to_pylist() == [{"Mail": digest("a@b"), "n": {"ip": "1.2***"}}, {"Mail": None, "n": None}, None]


@pytest.mark.parametrize("name", ["l.x", "s.x", "l", "o"])
def test_what_a_mask_cannot_cover_stops_instead_of_staying_clear(name: str) -> None:
    table = pa.table({"l": [[{"x": "a"}]], "s": ["a"], "o": [{"x": 1}]})
    with pytest.raises(UsageError, match=f"mask {name}: "):
        Transform([MaskStep({name: HashMask(BY)})]).output(table.schema)


def test_steps_see_what_those_before_them_made() -> None:
    table = pa.table({"mail": ["a@b.c", "x@y.z"], "n": [1, 2]})
    made = applied(
        table,
        SetStep({"host": "split_part(mail, '@', 2)", "copy": "mail"}),
        MaskStep({"mail": HashMask(BY), "copy": KeepMask(last=1)}),
        WhereStep("mail LIKE '________________________________________________________________'"),
        SetStep({"twice": "mail || mail"}),
        RenameStep({"mail": "id"}),
        MaskStep({"id": KeepMask(first=4)}),
        DropStep(("n",)),
    )
    one = digest("a@b.c")
    assert made.to_pylist()[0] == {"id": one[:4] + "***", "host": "b.c", "copy": "***c", "twice": one + one}


def test_two_keys_and_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER", other := KEY[::-1])
    table = pa.table({"a": ["v"], "b": ["v"], "c": ["v"]})
    made = applied(
        table, MaskStep({"a": HashMask(BY), "b": HashMask(Secret("${env:OTHER}", Path())), "c": HashMask(BY)})
    )
    assert made.to_pylist() == [{"a": digest("v"), "b": digest("v", other), "c": digest("v")}]


@pytest.mark.parametrize(("key", "words"), [("short", "has 5 bytes"), (None, "variable MASK_KEY is not set")])
def test_no_row_is_masked_without_a_proper_key(monkeypatch: pytest.MonkeyPatch, key: str | None, words: str) -> None:
    monkeypatch.delenv("MASK_KEY") if key is None else monkeypatch.setenv("MASK_KEY", key)
    with pytest.raises(UsageError, match=words):
        applied(pa.table({"a": ["v"]}), MaskStep({"a": HashMask(BY)}))


# ---- in a pipeline ----

HASHED = {"mask": {"mail": {"sha256": "${env:MASK_KEY}"}, "id": {"sha256": "${env:MASK_KEY}"}, "ip": None}}


def test_the_table_has_the_masks_types_and_stores_the_records() -> None:
    plan = plan_of(transform=[HASHED])
    first = plan.apply(envelopes([{"id": 7, "mail": "a@b", "ip": 4, "mixed": 1}]))
    table = first.tables[RouteId()].schema
    assert rows(first) == [{"id": digest("7"), "mail": digest("a@b"), "ip": None, "mixed": 1}]
    assert [table.field(name).type for name in ("id", "mail", "ip")] == [pa.string(), pa.string(), pa.int64()]
    assert payload_field(table.field("id")).masked_type == "long"
    # As after a restart: the columns come from the table's own log.
    again = plan_of({"": from_delta(to_delta(table))}, transform=[HASHED])
    later = again.apply(envelopes([{"id": 7, "mail": "a@b"}, {"id": "7"}]))
    assert adds_up(later).routed == 1
    assert rows(later)[0]["id"] == digest("7")
    assert letters(later) == [(1, "decode", "type")]


def test_what_was_kept_as_json_text_is_hashed_by_its_content() -> None:
    plan = plan_of(transform=[HASHED])
    values: list[Any] = [{"id": "7"}, {"id": 7}, {"id": {"a": 1}}, {"id": 'ö"\\'}]
    found = plan.apply(envelopes(values))
    assert [row["id"] for row in rows(found)] == [digest("7"), digest("7"), digest('{"a": 1}'), digest('ö"\\')]
    existing = from_delta(to_delta(found.tables[RouteId()].schema))
    again = plan_of({"": existing}, transform=[HASHED]).apply(envelopes(values))
    assert rows(again) == rows(found)


def test_declared_columns_say_how_the_field_is_read() -> None:
    columns = [{"name": "id", "type": "bigint", "nullable": False}, {"name": "mail", "type": "string"}]
    spec_of(table={"columns": columns}, transform=[{"mask": {"id": {"sha256": "${env:MASK_KEY}"}}}])
    plan = plan_of(table={"columns": columns}, transform=[{"mask": {"id": {"sha256": "${env:MASK_KEY}"}}}])
    found = plan.apply(envelopes([{"id": 7}, {"id": "7"}, {}]))
    assert rows(found) == [{"id": digest("7"), "mail": None}]
    assert found.tables[RouteId()].schema.field("id") == pa.field("id", pa.string(), nullable=False)
    assert letters(found) == [(1, "decode", "type"), (2, "decode", "missing")]


def test_a_mask_over_a_column_of_another_type_stops() -> None:
    existing = pa.schema([pa.field("id", pa.int64())])
    with pytest.raises(ColumnMismatch, match="'id'"):
        shaped(plan_of(transform=[{"mask": {"id": "redact"}}]), existing=existing)


def test_a_field_that_comes_later_is_masked_from_its_first_record_on() -> None:
    plan = plan_of(transform=[{"mask": {"user.mail": "redact"}}])
    assert rows(plan.apply(envelopes([{"id": 1}]))) == [{"id": 1}]
    found = plan.apply(envelopes([{"id": 2, "user": {"mail": "a@b", "name": "A"}}]))
    assert rows(found) == [{"id": 2, "user": {"mail": "***", "name": "A"}}]


def test_dead_letters_keep_the_record_as_it_came() -> None:
    plan = plan_of(table={"columns": [{"name": "mail", "type": "string"}]}, transform=[{"mask": {"mail": "redact"}}])
    found = plan.apply(envelopes([{"mail": 1}]))
    assert json.loads(found.dead_letters["value"][0].as_py()) == {"mail": 1}


def test_the_key_is_nowhere_but_in_its_reference() -> None:
    spec = spec_of(transform=[HASHED])
    plan = Plan(spec, now=lambda: MOMENT)
    plan.apply(envelopes([{"id": 1, "mail": "a"}]))
    programs = [repr(each) for each in plan.branches[""].transform._programs.values()]
    shown = [
        repr(spec),
        spec.text,
        spec.model_dump_json(),
        repr(pickle.dumps(spec)),
        repr(plan.branches[""].transform),
        *programs,
    ]
    assert not any(KEY in text for text in shown)
    assert spec.text.count("${env:MASK_KEY}") == 2


# ---- findings ----

SPEC = "pipeline: web\nsource: {generate: {}}\ntable: {path: ./lake/web%s}\ntransform:\n%s"


def found(steps: str, table: str = "") -> list[tuple[str, str, str]]:
    _, findings = examine_text(SPEC % (table, steps), Path("/"), "web.yaml")
    return [(each.severity, each.key, each.message) for each in findings]


@pytest.mark.parametrize(
    "by", ["redact", "null", '"null"', '{redact: "-"}', "{keep: {last: 4}}", '{sha256: "${env:MASK_KEY}"}']
)
def test_the_forms(by: str) -> None:
    assert found(f"  - mask: {{mail: {by}, a.b: redact}}") == []


@pytest.mark.parametrize(
    ("step", "key", "seen"),
    [
        ("mask: {mail: hash}", "mail", "'hash'"),
        ("mask: {mail: {sha256: plain-text-of-a-key}}", "mail.sha256", "a secret"),
        ("mask: {mail: {keep: {first: 1, last: 1}}}", "mail.keep", "first and last together"),
        ("mask: {mail: {keep: {first: 0}}}", "mail.keep.first", "'0'"),
        ("mask: {mail: {}}", "mail", "none of sha256, redact, keep"),
        ("mask: {mail: {shaa: x}}", "mail.shaa", "unknown key"),
        ("mask: {a..b: redact}", "a..b", "'a..b'"),
    ],
)
def test_other_forms_are_diagnostics(step: str, key: str, seen: str) -> None:
    assert [(each[1], each[2]) for each in found(f"  - {step}")] == [(f"transform[0].mask.{key}", seen)]


def test_a_short_key_is_a_diagnostic_and_an_absent_one_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    step, key = '  - mask: {mail: {sha256: "${env:MASK_KEY}"}}', "transform[0].mask.mail.sha256"
    monkeypatch.setenv("MASK_KEY", "fifteen bytes..")
    assert found(step) == [("error", key, "the key has 15 bytes")]
    monkeypatch.delenv("MASK_KEY")
    assert found(step) == [("warning", key, "Environment variable MASK_KEY is not set")]


def test_ways_round_a_mask_are_diagnostics() -> None:
    rescue = ", contract: {wrong_type: rescue}"
    assert found("  - mask: {mail: redact}", rescue) == [
        ("error", "table.contract", "rescue with a mask: _rescued would contain unmasked values")
    ]
    assert found("  - mask: {mail: redact, _rescued: redact}", rescue) == []
    assert found("  - mask: {mail: redact}\n  - drop: [_rescued]", rescue) == []
    ((severity, key, _),) = found("  - mask: {mail: redact}\n  - jmespath: {copy: mail}")
    assert (severity, key) == ("warning", "transform[1].jmespath")


def test_a_required_column_cannot_be_masked_by_nothing() -> None:
    columns = ", columns: [{name: mail, type: string, nullable: false}]"
    assert [key for _, key, _ in found("  - mask: {mail: null}", columns)] == ["table.columns[0].nullable"]
    assert found("  - mask: {mail: redact}", columns) == []


def test_a_mask_of_no_column_is_a_diagnostic_where_all_columns_are_known() -> None:
    columns = ", columns: [{name: mail, type: string}]"
    assert [key for _, key, _ in found("  - mask: {mial: redact}", columns)] == ["transform[0].mask.mial"]
