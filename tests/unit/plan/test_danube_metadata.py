"""The metadata column: the names of the Danube sink, with the record's own values."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa

from headrace.delta.schema import METADATA, SOURCE
from headrace.spec.route_id import RouteId
from services.plans import MOMENT, envelopes, letters, plan_of, rows


def test_the_column_is_last_required_and_true():
    applied = plan_of(table={"metadata": "danube"}).apply(envelopes([{"id": 1}, b"x", {"id": 2}], topic="orders"))
    assert applied.tables[RouteId()].schema == pa.schema([pa.field("id", pa.int64()), SOURCE, METADATA])
    assert [json.loads(row["_danube_metadata"]) for row in rows(applied)] == [
        {
            "topic": "orders",
            "offset": offset,
            "timestamp": int(MOMENT.timestamp() * 1000),
            "timestamp_iso": "2026-11-15T12:30:00.000Z",
            "partition": "0",
        }
        for offset in (0, 2)
    ]


def test_times_before_1970_and_odd_topics_are_told_as_they_are():
    moment = datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)
    applied = plan_of(table={"metadata": "danube"}).apply(envelopes([{"id": 1}], topic='o"é', timestamp=moment))
    told = json.loads(rows(applied)[0]["_danube_metadata"])
    assert (told["topic"], told["timestamp"], told["timestamp_iso"]) == ('o"é', -1, "1969-12-31T23:59:59.999Z")


def test_a_time_beyond_the_calendar_has_no_text():
    given = envelopes([{"id": 1}])
    far = pa.array([1 << 62], pa.int64()).cast(given.schema.field("timestamp").type)
    given = given.set_column(3, given.schema.field("timestamp"), far)
    told = json.loads(rows(plan_of(table={"metadata": "danube", "source": False}).apply(given))[0]["_danube_metadata"])
    assert (told["timestamp"], told["timestamp_iso"]) == ((1 << 62) // 1000, None)


def test_an_existing_table_gets_the_column_when_asked_and_has_it_filled_when_there():
    have = pa.schema([pa.field("id", pa.int64())])
    asked = plan_of({"": have}, table={"metadata": "danube"}).apply(envelopes([{"id": 1}]))
    assert asked.tables[RouteId()].schema == have.append(METADATA.with_nullable(True))
    there = plan_of({"": have.append(METADATA)}).apply(envelopes([{"id": 1}]))
    assert rows(there)[0]["_danube_metadata"] is not None


def test_a_record_cannot_bring_a_column_of_that_name():
    applied = plan_of(table={"metadata": "danube"}).apply(envelopes([{"id": 1}, {"id": 2, "_danube_metadata": "x"}]))
    assert letters(applied) == [(1, "decode", "bad_name")]


def test_messages_of_danube_tell_their_position_on_the_broker():
    given = envelopes([{"id": 1}, {"id": 2}, {"id": 3}], topic="default.orders")
    headers = [
        [("danube.offset", b"7"), ("danube.offset", b"41"), ("danube.partition", b"2")],  # an attribute cannot pretend
        [("trace", b"x"), ("danube.offset", b"0")],
        [],
    ]
    column = pa.array(headers, given.schema.field("headers").type)
    at = given.schema.get_field_index("headers")
    given = given.set_column(at, given.schema.field("headers"), column)
    source = {"danube": {"url": "http://localhost:6650", "topics": ["/default/orders"]}}
    told = [
        json.loads(row["_danube_metadata"])
        for row in rows(plan_of(source=source, table={"metadata": "danube"}).apply(given))
    ]
    assert [(each["topic"], each["offset"], each["partition"]) for each in told] == [
        ("/default/orders", 41, "2"),
        ("/default/orders", 0, "none"),
        ("/default/orders", 2, "none"),
    ]
    kafka = rows(plan_of(table={"metadata": "danube"}).apply(given))
    assert [json.loads(row["_danube_metadata"])["offset"] for row in kafka] == [0, 1, 2]
