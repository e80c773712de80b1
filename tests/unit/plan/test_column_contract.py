"""A column's own contract: its answers stand above the table's, and are nobody else's."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from headrace.errors import ContractViolation
from headrace.plan.plan import Plan
from headrace.spec.route_id import RouteId
from headrace.spec.types import type_name
from headrace.validate.load import examine_text
from services.plans import adds_up, envelopes, event, letters, plan_of, rows

WRONG = [
    {"id": 1, "a": "x", "b": 1},
    {"id": 2, "a": 1, "b": "y"},
    {"id": 3, "a": 1, "b": 1},
    {"id": 4, "a": [], "b": {}},
]


def column(name: str, kind: str = "int", nullable: bool = True, **contract: str) -> dict[str, Any]:
    own = {"contract": contract} if contract else {}
    return {"name": name, "type": kind, "nullable": nullable, **own}


def planned(*columns: dict[str, Any], table: dict[str, Any] | None = None, **content: Any) -> Plan:
    given = {"columns": [column("id", "bigint"), *columns], "source": False, **(table or {})}
    return plan_of(table=given, **content)


def test_one_column_is_rescued_and_another_makes_a_dead_letter():
    applied = planned(column("a", wrong_type="rescue"), column("b")).apply(envelopes(WRONG))
    assert rows(applied) == [
        {"id": 1, "a": None, "b": 1, "_rescued": '{"a":"x"}'},
        {"id": 3, "a": 1, "b": 1, "_rescued": None},
    ]
    assert letters(applied) == [(1, "decode", "type"), (3, "decode", "type")]
    assert adds_up(applied).rescued == 1


def test_a_column_may_stay_out_of_what_the_table_rescues():
    table = {"contract": {"wrong_type": "rescue", "new_field": "rescue"}}
    applied = planned(column("a"), column("b", wrong_type="reject"), table=table).apply(
        envelopes([*WRONG, {"id": 5, "n": 1}])
    )
    assert [(row["id"], row["_rescued"]) for row in rows(applied)] == [(1, '{"a":"x"}'), (3, None), (5, '{"n":1}')]
    assert letters(applied) == [(1, "decode", "type"), (3, "decode", "type")]


def test_many_misfits_of_one_pattern_are_distinguished_by_their_columns():
    values = [{"id": at, "a": "x", "b": 1} for at in range(500)] + [{"id": at, "a": 1, "b": "x"} for at in range(500)]
    applied = planned(column("a", wrong_type="rescue"), column("b")).apply(envelopes(values))
    assert [row["_rescued"] for row in rows(applied)] == ['{"a":"x"}'] * 500
    assert len(letters(applied)) == 500


def test_formats_with_types_of_their_own_answer_alike(tmp_path: Path):
    fields = [{"name": "id", "type": "long"}, {"name": "a", "type": "string"}, {"name": "b", "type": "long"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    (tmp_path / "r.avsc").write_text(json.dumps(schema))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), {"id": 1, "a": "x", "b": 1 << 40})
    decode = {"avro": {"schema": f"{tmp_path}/r.avsc"}}
    kept = planned(column("a", wrong_type="rescue"), column("b", "bigint"), decode=decode)
    assert rows(kept.apply(envelopes([out.getvalue()]))) == [
        {"id": 1, "a": None, "b": 1 << 40, "_rescued": '{"a":"x"}'}
    ]
    refused = planned(column("a", wrong_type="rescue"), column("b"), decode=decode).apply(envelopes([out.getvalue()]))
    assert letters(refused) == [(0, "decode", "overflow")]


@pytest.mark.parametrize("value", [{"id": 1, "a": "x"}, {"id": 1, "a": 2**40}])
def test_a_column_stops_the_pipeline_and_its_name_is_reported(value: dict[str, Any]):
    plan = planned(column("a", wrong_type="stop"), column("b"))
    with pytest.raises(ContractViolation, match="a: "):
        plan.apply(envelopes([value]))
    assert letters(plan.apply(envelopes([{"id": 1, "b": "x"}, {"id": "a: x"}]))) == [
        (0, "decode", "type"),
        (1, "decode", "type"),
    ]


def test_a_column_need_not_stop_where_all_others_do():
    plan = planned(column("a", wrong_type="reject"), column("b"), table={"contract": {"wrong_type": "stop"}})
    assert letters(plan.apply(envelopes([{"id": 1, "a": "x"}]))) == [(0, "decode", "type")]
    with pytest.raises(ContractViolation, match="b: "):
        plan.apply(envelopes([{"id": 1, "b": "x"}]))


def test_places_deep_inside_are_their_columns():
    inner = column("to", "struct<a: int, list: array<struct<a: int>>>", wrong_type="stop")
    plan = planned(inner, column("a"), {**column("deep", wrong_type="stop"), "path": "from.a.b"})
    for value in ({"to": {"a": "x"}}, {"to": {"list": [{"a": 1}, {"a": "x"}]}}, {"from": {"a": {"b": "x"}}}):
        with pytest.raises(ContractViolation):
            plan.apply(envelopes([value]))
    assert letters(plan.apply(envelopes([{"a": "to"}]))) == [(0, "decode", "type")]


def test_in_an_envelope_columns_are_those_of_the_row():
    plan = planned(column("a", wrong_type="stop"), column("b"), decode={"json": {"envelope": "debezium"}})
    assert letters(plan.apply(envelopes([event("c", after={"id": 1, "b": "x"})]))) == [(0, "decode", "type")]
    with pytest.raises(ContractViolation, match="a: "):
        plan.apply(envelopes([event("c", after={"id": 1, "a": "x"})]))


def test_a_required_column_is_missed_in_its_own_way():
    plan = planned(column("a", nullable=False, missing="stop"), column("b", nullable=False))
    assert letters(plan.apply(envelopes([{"a": 1}]))) == [(0, "decode", "missing")]
    with pytest.raises(ContractViolation, match="a: "):
        plan.apply(envelopes([{"b": 1}]))


def test_only_the_columns_that_may_widen_do():
    existing = pa.schema([pa.field("id", pa.int64()), pa.field("a", pa.int32()), pa.field("b", pa.int32())])
    table = {
        "columns": [column("id", "bigint"), column("a", wrong_type="widen"), column("b")],
        "features": ["typeWidening"],
        "source": False,
    }
    plan = plan_of({"": existing}, table=table)
    applied = plan.apply(envelopes([{"id": 1, "a": 2**40}, {"id": 2, "b": 2**40}, {"id": 3, "a": 1, "b": 1}]))
    assert [type_name(item.type) for item in applied.tables[RouteId()].schema] == ["long", "long", "integer"]
    assert [row["a"] for row in rows(applied)] == [2**40, 1]
    assert letters(applied) == [(1, "decode", "overflow")]
    table["contract"] = {"wrong_type": "widen"}
    table["columns"][1]["contract"] = {"wrong_type": "reject"}
    applied = plan_of({"": existing}, table=table).apply(envelopes([{"id": 1, "a": 2**40}, {"id": 2, "b": 2**40}]))
    assert [type_name(item.type) for item in applied.tables[RouteId()].schema] == ["long", "integer", "long"]
    assert letters(applied) == [(0, "decode", "overflow")]


@pytest.mark.parametrize(
    ("table", "more", "said"),
    [
        (
            [column("a", wrong_type="widen")],
            "",
            "table.columns[0].contract.wrong_type: widen requires the typeWidening feature",
        ),
        ([column("a", nullable=False, missing="default")], "", "table.columns[0].contract.missing: no default"),
        ([column("a", wrong_type="rescue")], "strict", "contract.wrong_type: conflicts with strict: true"),
        (
            [column("a", wrong_type="widen")],
            "sql",
            "table.columns[0].contract.wrong_type: widen is not supported with route.by.sql",
        ),
        ([column("a", new_field="stop")], "", "table.columns[0].contract.new_field: unknown key"),
    ],
)
def test_what_cannot_be_is_found_before_anything_runs(table: list[dict[str, Any]], more: str, said: str):
    content: dict[str, Any] = {
        "pipeline": "web",
        "source": {"generate": {}},
        "table": {"path": "/lake/{route}" if more == "sql" else "/lake/web", "columns": table},
        **({"route": {"by": {"sql": "a"}}} if more == "sql" else {}),
    }
    content["table"] |= (
        {"strict": True} if more == "strict" else {"features": ["typeWidening"]} if more == "sql" else {}
    )
    found = [str(each) for each in examine_text(json.dumps(content), Path("/lake"))[1]]
    assert any(said in each for each in found), found


def test_a_required_column_without_a_default_may_be_left_to_itself():
    columns = [
        {**column("a", nullable=False), "default": 1},
        column("b", nullable=False, missing="reject"),
    ]
    plan = planned(*columns, table={"contract": {"missing": "default"}})
    assert rows(plan.apply(envelopes([{"b": 2}]))) == [{"id": None, "a": 1, "b": 2}]
    assert letters(plan.apply(envelopes([{"a": 2}]))) == [(0, "decode", "missing")]
