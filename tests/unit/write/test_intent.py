"""The write-ahead record of a batch: what is read back is what was written."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace.delta.staged_file import StagedFile
from headrace.plan.accounting import Counts
from headrace.source.ranges import Range
from headrace.write.intent import Intent, IntentKind, MergeRules, ReplayInput, Scd2Columns, TableIntent

FILE = StagedFile("/lake/t", "day=a%2Fb/é.parquet", (("day", "a/b"), ("hour", None)), 7, 3, '{"numRecords":3}')
RULES = MergeRules(("id",), "seq", True, ("a",), True, 60.0, Scd2Columns("from", "to", "current", ("a",)))
TABLE = TableIntent(
    "/lake/t",
    "id",
    True,
    '{"type":"struct","fields":[]}',
    ("day", "hour"),
    {"delta.appendOnly": "true"},
    (FILE,),
    merging=RULES,
    replaces=("day=a",),
    cluster_by=("id",),
    version=4,
    attempt=1,
    constraints=("id > 0",),
    foreign={'app "1"-0': (-1, 8)},
)


def test_an_intent_is_read_back_as_it_was_written() -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    intent = Intent(
        "shop",
        7,
        (Range("orders", 0, 3, 9, "topic-id"),),
        (TABLE,),
        Counts(read=6, routed=4, dead=2, reasons={"type": 2}, duplicates={"/lake/t": 1}),
        now,
        "token",
        "pipeline: shop # é\n",
        "digest",
        "0.1.0",
        runs=2,
        idle_ranges=(Range("orders", 1, 5, 5),),
        replay=ReplayInput(3, ("type",), (), "", (FILE,)),
        reread=(Range("orders", 2, 0, 4),),
        reingested=("a.parquet",),
        attempt=1,
        retention_time=now,
        resumed=now,
        kind=IntentKind.REPLAY,
    )
    assert Intent.from_json(intent.to_json()) == intent
