"""When a batch starts, and how many records it reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.pipeline.batch_size import (
    BATCH_SECONDS,
    FIRST_RECORDS,
    BatchSize,
    Trigger,
    Triggers,
    ends_of_batch,
    waiting_records,
)
from headrace.spec import Spec
from services.plans import spec_of

PARTITIONS = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3)), st.tuples(st.integers(0, 10**9), st.integers(0, 10**7))
)


def trigger_of(spec: Spec) -> Trigger:
    return Trigger(spec.flush, spec.source.rate)


@given(PARTITIONS, st.integers(1, 10**8))
def test_a_batch_is_a_share_of_every_partition(partitions, records):
    position = {each: start for each, (start, _) in partitions.items()}
    latest = {each: start + count for each, (start, count) in partitions.items()}
    waiting = waiting_records(position, latest)
    ends = ends_of_batch(position, waiting, records)
    assert ends.keys() <= waiting.keys() == {each for each in position if latest[each] > position[each]}
    assert all(position[each] < until <= latest[each] for each, until in ends.items())
    assert sum(until - position[each] for each, until in ends.items()) == min(sum(waiting.values()), records)


def test_partitions_share_a_batch_by_what_they_have_waiting():
    a, b = ("t", 0), ("t", 1)
    assert ends_of_batch({a: 50, b: 0}, {a: 900, b: 100}, 100) == {a: 140, b: 10}
    assert ends_of_batch({a: 50, b: 0}, {a: 900, b: 100}, 1) == {a: 51}


def test_partitions_without_a_latest_offset_or_with_an_earlier_one_are_not_read():
    assert waiting_records({("t", 0): 5, ("t", 1): 5, ("t", 2): 5}, {("t", 0): 4, ("t", 1): 7}) == {("t", 1): 2}


def test_the_first_batch_is_small_and_later_ones_take_seven_seconds():
    size = BatchSize(spec_of())
    assert size.records == FIRST_RECORDS
    size.measured(FIRST_RECORDS, 5.0)  # without compiled code
    assert size.records == FIRST_RECORDS / 5 * BATCH_SECONDS
    size.measured(size.records, 0.1)
    assert size.records == FIRST_RECORDS / 5 * BATCH_SECONDS * 8  # at most eight times as many
    size.measured(size.records, 2.0)
    assert size.records == FIRST_RECORDS / 5 * BATCH_SECONDS * 8 / 2 * BATCH_SECONDS


def test_a_batch_does_not_shrink_where_fewer_records_take_as_long():
    size = BatchSize(spec_of())
    for _ in range(5):
        size.measured(size.records, 20.0)  # whatever their number, as with many tables
    assert size.records == FIRST_RECORDS
    for _ in range(5):
        size.measured(size.records, 20.0 + size.records / 50_000)
    assert size.records == FIRST_RECORDS


def test_a_batch_shrinks_where_fewer_records_take_less_time():
    size = BatchSize(spec_of())
    for _ in range(5):
        size.measured(size.records, size.records / 100)
    assert size.records == 100 * BATCH_SECONDS


def test_a_batch_of_all_that_waits_does_not_change_the_size():
    size = BatchSize(spec_of())
    size.measured(10, 0.4)
    assert size.records == FIRST_RECORDS


def test_a_slow_batch_makes_the_next_one_smaller():
    size = BatchSize(spec_of())
    size.measured(FIRST_RECORDS, 1.0)
    before = size.records
    size.measured(before, 70.0)
    assert size.records == before // 10


def test_a_batch_that_takes_a_little_longer_does_not():
    size = BatchSize(spec_of())
    size.measured(FIRST_RECORDS, 2 * BATCH_SECONDS)
    assert size.records == FIRST_RECORDS


def test_few_large_records_make_the_next_batch_smaller():
    size = BatchSize(spec_of())
    size.measured(1_000, 70.0)
    assert size.records == 100


@pytest.mark.parametrize(
    "content", [{"limits": {"batch_rows": 300}}, {"kafka": {"rate": "600/s"}, "flush": {"every": "500ms"}}]
)
def test_the_spec_limits_a_batch(content):
    kafka = {"brokers": "localhost:9", "topics": ["t"], **content.pop("kafka", {})}
    size = BatchSize(spec_of(source={"kafka": kafka}, **content))
    assert size.records == 300
    size.measured(300, 0.01)
    assert size.records == 300


def test_a_batch_starts_when_enough_waits_or_when_its_time_has_come():
    trigger = trigger_of(spec_of(flush={"every": "5s", "rows": 1000, "bytes": "1MB"}))
    assert not trigger.is_due(0, 100, now=0)
    assert trigger.is_due(1, 100, now=0)  # the first one at once
    trigger.started(now=0)
    assert not trigger.is_due(999, 100, now=4.9)
    assert trigger.is_due(1000, 100, now=0.1)
    assert trigger.is_due(500, 2000, now=0.1)
    assert trigger.is_due(1, 100, now=5)
    assert not trigger.is_due(0, 100, now=5)


def test_with_a_rate_a_batch_starts_by_time_alone():
    source = {"kafka": {"brokers": "localhost:9", "topics": ["t"], "rate": "100/s"}}
    trigger = trigger_of(spec_of(source=source, flush={"every": "1s", "rows": 10}))
    trigger.started(now=0)
    assert not trigger.is_due(10**6, 10**6, now=0.9)
    assert trigger.is_due(1, 1, now=1)


def test_the_latest_offsets_are_requested_at_the_time_of_the_next_batch():
    trigger = trigger_of(spec_of(flush={"every": "500ms"}))
    assert trigger.wait(now=0) == 0.1
    trigger.started(now=0)
    assert trigger.wait(now=0.1) == pytest.approx(0.4)
    assert trigger.wait(now=0.47) == pytest.approx(0.03)
    assert trigger.wait(now=0.6) == 0.1  # nothing was waiting at 0.5
    seldom = trigger_of(spec_of(flush={"every": "1h"}))
    assert seldom.wait(now=0) == 1.0
    seldom.started(now=0)
    assert seldom.wait(now=1) == 0.5  # `flush.rows` may be reached


def test_with_a_rate_the_latest_offsets_are_requested_once_per_batch():
    source = {"kafka": {"brokers": "localhost:9", "topics": ["t"], "rate": "100/s"}}
    trigger = trigger_of(spec_of(source=source, flush={"every": "2s"}))
    assert trigger.wait(now=0) == 2
    trigger.started(now=0)
    assert trigger.wait(now=0.5) == 1.5


TOPICS = {
    "source": {"kafka": {"brokers": "localhost:9", "topics": ["fast", "slow", "many", "other"]}},
    "flush": {"every": "5s", "rows": 1000},
    "topics": [
        {"name": "fast", "topic": "fast", "table": {"path": "/lake/fast"}, "flush": {"every": "1s"}},
        {"name": "slow", "match": "^slow", "table": {"path": "/lake/slow"}, "flush": {"every": "1h"}},
        {"name": "many", "topic": "many", "table": {"path": "/lake/many"}, "flush": {"every": "1h", "rows": 10}},
    ],
}
WAITING = {(topic, 0): 5 for topic in ("fast", "slow", "many", "other")}


def test_a_batch_reads_the_topics_that_are_due():
    triggers = Triggers(spec_of(**TOPICS))
    assert triggers.start(WAITING, 1.0, 0.0) == WAITING  # the first batch of a run has no interval before it
    assert triggers.start(WAITING, 1.0, 0.9) == {}
    assert triggers.start(WAITING, 1.0, 1.0) == {("fast", 0): 5}
    assert triggers.start(WAITING, 1.0, 1.9) == {}
    assert triggers.start({**WAITING, ("many", 0): 10}, 1.0, 1.9) == {("many", 0): 10}
    assert triggers.start(WAITING, 1.0, 5.0) == {("fast", 0): 5, ("other", 0): 5}
    assert triggers.start({("slow", 0): 5, ("slow", 1): 995}, 1.0, 6.0) == {("slow", 0): 5, ("slow", 1): 995}
    assert triggers.start(WAITING, 1.0, 3700.0) == WAITING


def test_the_next_request_is_at_the_time_of_the_topic_that_is_due_first():
    triggers = Triggers(spec_of(**TOPICS))
    triggers.start(WAITING, 1.0, 0.0)
    assert triggers.wait(0.75) == 0.25
    assert triggers.wait(1.0) == 0.2


def test_entries_with_equal_triggers_share_their_batches():
    topics = [{"name": name, "topic": name, "table": {"path": f"/lake/{name}"}} for name in ("fast", "slow")]
    triggers = Triggers(spec_of(**{**TOPICS, "topics": topics}))
    assert triggers.start({("fast", 0): 1}, 1.0, 0.0) == {("fast", 0): 1}
    assert triggers.start({("slow", 0): 600, ("other", 0): 399}, 1.0, 1.0) == {}
    assert triggers.start({("slow", 0): 600, ("other", 0): 400}, 1.0, 1.0) == {("slow", 0): 600, ("other", 0): 400}


def test_a_maximum_rate_is_that_of_all_topics_together():
    topics = [{"name": name, "topic": name, "table": {"path": f"/lake/{name}"}} for name in ("fast", "slow")]
    source = {"kafka": {**TOPICS["source"]["kafka"], "rate": "100/s"}}
    triggers = Triggers(spec_of(source=source, flush={"every": "2s"}, topics=topics))
    assert triggers.start(WAITING, 1.0, 0.0) == WAITING
    assert triggers.start(WAITING, 1.0, 1.9) == {}
    assert triggers.start({("slow", 0): 5}, 1.0, 2.0) == {("slow", 0): 5}
    assert triggers.start({("fast", 0): 5}, 1.0, 2.1) == {}
