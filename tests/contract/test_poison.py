"""Every kind of poison in every format, wherever it stands: it costs only itself, and a letter has its bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import cycle
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from contract.formats import Case, avro, envelopes, json, msgpack, plain, protobuf
from contract.poison import KINDS, Cell, Entry
from contract.poison import json as of_json
from contract.poison import plain as of_plain
from contract.poison import typed as of_typed
from headrace.decode.decoders import FORMATS
from headrace.decode.payload_field import is_json_text
from headrace.delta.schema import RECORD_SCHEMA
from headrace.plan.batch_result import BatchResult
from headrace.plan.plan import Plan
from headrace.spec.types import type_name
from services.plans import MOMENT, adds_up, envelope, plan_of
from services.plans import envelopes as envelopes_of

CHANGES = replace(envelopes.CASES["json debezium"], good=lambda n: envelopes.change(json.good(5 * n), "cd"[n % 2]))
CASES: dict[str, tuple[Case, Mapping[str, Cell]]] = {
    "json": (json.CASES["json"], of_json.JSON),
    "json gzip": (json.CASES["json gzip"], of_json.GZIP),
    "json debezium": (CHANGES, of_json.DEBEZIUM),
    "json rivven": (envelopes.CASES["json rivven"], of_json.RIVVEN),
    "json cloudevents": (envelopes.CASES["json cloudevents"], of_json.CLOUDEVENTS),
    "avro": (avro.CASES["avro registry"], of_typed.AVRO),
    "protobuf": (protobuf.CASES["protobuf framed"], of_typed.PROTOBUF),
    "msgpack": (msgpack.CASES["msgpack"], of_typed.MSGPACK),
    "string": (plain.CASES["string"], of_plain.STRING),
    "int64": (plain.CASES["int64"], of_plain.INT64),
    "int64 text": (plain.CASES["int64 text"], of_plain.INT64_TEXT),
    "number": (plain.CASES["number"], of_plain.NUMBER),
    "number whole": (plain.CASES["number whole"], of_plain.WHOLE_NUMBER),
    "bytes": (plain.CASES["bytes"], of_plain.BYTES),
    "raw": (plain.CASES["raw"], of_plain.RAW),
}
CELLS = [(name, kind) for name, (_, table) in CASES.items() for kind in KINDS if not isinstance(table[kind], str)]
GOODS = 1000
Placed = dict[int, Entry]


def test_every_format_answers_for_every_kind():
    # A request of OTLP has many rows, and no columns that a spec declares: see `test_otlp.py`.
    assert {case.format for case, _ in CASES.values()} == FORMATS.keys() - {"otlp"}
    for name, (_, table) in CASES.items():
        assert table.keys() == KINDS.keys(), name
        assert all(table.values()), name


@pytest.mark.parametrize(("name", "kind"), CELLS)
def test_poison_costs_only_itself_wherever_it_stands(name: str, kind: str):
    _, table = CASES[name]
    for asked, group in alike(table[kind]).items():
        plan, goods, alone = around(name, asked, group[0])
        for placed, count in positions(group):
            given = records(goods[:count], placed)
            applied = plan.apply(given)
            held(applied, placed)
            kept = np.delete(np.arange(count), list(placed))
            assert _goods(applied, alone, kept).equals(alone.take(pa.array(kept))), str(placed)[:500]
        again = plan.apply(given)
        assert again.dead_letters == applied.dead_letters
        assert repr(again.tables) == repr(applied.tables)  # a number that is none equals nothing, not even itself


def around(name: str, asked: str, entry: Entry, kept: dict[Any, Any] = {}) -> tuple[Plan, list[bytes], pa.Table]:  # noqa: B006
    """A plan, good values, and what these become where there is nothing else; made once, as a task does it."""
    if (name, asked) not in kept:
        case, _ = CASES[name]
        plan = planned(case, entry)
        goods = [case.good(number) if entry.good is None else entry.good for number in range(GOODS)]
        alone = _rows(plan.apply(envelopes_of(goods))).select(case.schema.names)
        assert len(alone) == GOODS
        kept[name, asked] = plan, goods, alone
    return kept[name, asked]


def alike(cell: Cell) -> dict[str, list[Entry]]:
    """The entries by what they ask of the spec and of the records around them."""
    groups: dict[str, list[Entry]] = {}
    for entry in cell:
        assert isinstance(entry, Entry)
        groups.setdefault(repr((entry.also, entry.under, entry.good)), []).append(entry)
    return groups


def positions(group: list[Entry]) -> Iterator[tuple[Placed, int]]:
    """Each alone; first and last; in the middle of many; every tenth; and nothing else."""
    turn = cycle(group)
    for entry in group:
        yield {0: entry}, 1
        yield {0: entry, 11: entry}, 12
    yield {GOODS // 2 + 2 * at: entry for at, entry in enumerate(group)}, GOODS
    yield {at: next(turn) for at in range(3, 100 + 10 * len(group), 10)}, 100 + 10 * len(group)
    yield dict(enumerate([*group, *group])), 2 * len(group)


def planned(case: Case, entry: Entry) -> Plan:
    columns = [*(_column(item) for item in case.schema), *entry.also]
    under = {**entry.under}
    table = {"columns": columns, **under.pop("table", {})}
    return plan_of(decode={case.format: dict(case.options)}, table=table, **under)


def _column(item: pa.Field) -> dict[str, Any]:
    text = {"json": True} if is_json_text(item) else {}
    return {"name": item.name, "type": type_name(item.type), "nullable": item.nullable, **text}


def records(goods: list[bytes], placed: Placed) -> pa.Table:
    """Good records with the poison in its places."""
    made = [envelope(offset, value) for offset, value in enumerate(goods)]
    for place, entry in placed.items():
        made[place] |= {"value": entry.value, **entry.record}
    return pa.Table.from_pylist(made, RECORD_SCHEMA)


def held(applied: BatchResult, placed: Placed) -> None:
    """The poison is what its table says: letters with its bytes, or rows."""
    adds_up(applied)
    letters = {letter["offset"]: letter for letter in applied.dead_letters.to_pylist()}
    rows = {row["_source"]["offset"]: row for row in _rows(applied).to_pylist()} if applied.tables else {}
    told = {at: (letter["reason"], letter["detail"]) for at, letter in letters.items()}
    expected = [at for at, entry in placed.items() if entry.reason is not None]
    assert sorted(letters) == expected, (told, str(placed)[:500])
    for place, entry in placed.items():
        if entry.reason is None:
            assert [_told(rows[place][name]) for name in entry.row] == [_told(value) for value in entry.row.values()]
            continue
        letter = letters[place]
        assert (letter["step"], letter["reason"]) == (entry.step, entry.reason), (letter["detail"], str(entry)[:500])
        assert letter["value"] == entry.value
        assert letter["headers"] == entry.record.get("headers", [])
        assert 0 < len(letter["detail"]) <= 512
        assert letter["rejected_at"] == MOMENT


def _told(value: Any) -> str:
    return str(value) if isinstance(value, datetime) else repr(value)


def _rows(applied: BatchResult) -> pa.Table:
    """All rows in the order of their records."""
    whole = pa.concat_tables(applied.tables.values(), promote_options="default")
    return whole.take(pc.sort_indices(pc.struct_field(whole["_source"], "offset")))


def _goods(applied: BatchResult, alone: pa.Table, kept: np.ndarray) -> pa.Table:
    if not len(kept):
        return alone.slice(0, 0)
    rows = _rows(applied)
    offsets = pc.struct_field(rows["_source"], "offset")
    return rows.filter(pc.is_in(offsets, pa.array(kept))).select(alone.column_names)


def test_dead_letters_are_few_words_however_many_ways_there_are_to_fail():
    values = [b'{"id":"%d%b"}' % (at, b"x" * 2_000) for at in range(2_000)]
    applied = planned(json.CASES["json"], Entry(None, None)).apply(envelopes_of(values))
    assert applied.counts.reasons == {"type": 2_000}
    assert max(len(each) for each in applied.dead_letters["detail"].to_pylist()) <= 512
