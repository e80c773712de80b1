"""The 28 kinds of poison, and what each format makes of every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from contract.formats import Case
from headrace.reasons import Reason

KINDS: Mapping[str, str] = {
    "Q1": "nothing: no bytes, null, white space",
    "Q2": "cut short",
    "Q3": "not UTF-8, and a byte order mark",
    "Q4": "the character U+0000",
    "Q5": "numbers beyond their column, or of another type",
    "Q6": "numbers that are none, and minus zero",
    "Q7": "decimals of too many digits",
    "Q8": "a key twice",
    "Q9": "too deep",
    "Q10": "too wide, too big",
    "Q11": "packed: bombs, another magic, what follows the end",
    "Q12": "no object at the top",
    "Q13": "several values in one",
    "Q14": "dates and times that are none",
    "Q15": "a field that is missing, new, or of another type than before",
    "Q16": "an object for a scalar and the reverse, mixed arrays",
    "Q17": "names that no column can have",
    "Q18": "Avro: frames, schemas, unions and blocks that are wrong",
    "Q19": "Protobuf: unknown fields, wire types, message indexes",
    "Q20": "Debezium: what is no change of a row",
    "Q21": "a key thrice in one batch, and no key",
    "Q22": "headers: null, twice, thousands, not UTF-8",
    "Q23": "partition values that are no folder's name",
    "Q24": "texts that a shell, a browser, a terminal or a log would obey",
    "Q25": "SQL in a text that expressions read",
    "Q26": "paths in a field that routes",
    "Q27": "records of another age",
    "Q28": "endlessly many ways to fail",
}


@dataclass(frozen=True)
class Entry:
    """A value, and what must become of it: a letter with its reason, or a row (of which some columns are told)."""

    value: bytes | None
    reason: Reason | None
    row: Mapping[str, Any] = field(default_factory=dict)
    step: str = "decode"
    also: tuple[Mapping[str, Any], ...] = ()  # columns beside the case's own
    under: Mapping[str, Any] = field(default_factory=dict)  # more keys of the spec
    record: Mapping[str, Any] = field(default_factory=dict)  # more of the record: headers, key, timestamp
    good: bytes | None = None  # what stands around it, instead of the case's good values


Cell = Sequence[Entry] | str  # a text says why the format cannot have such a thing


def bad(value: bytes | None, reason: Reason, **more: Any) -> Entry:
    """A letter."""
    return Entry(value, reason, **more)


def fine(value: bytes | None, **more: Any) -> Entry:
    """A row, for all its strangeness."""
    return Entry(value, None, **more)


HEADERS: list[dict[str, Any]] = [
    {"key": "none", "value": None},
    {"key": "twice", "value": b"1"},
    {"key": "twice", "value": b"2"},
    {"key": "", "value": b"\xff\x00"},
]
WORDS = [
    "=cmd()",
    "<script>alert(1)</script>",
    "\x1b[2J",
    '\n{"level":"INFO"',
    "'; drop table t; --",
    "s3://other/x",
    "../../etc/passwd",
    "№ 水 👍🏽",
]


def in_every_format(case: Case) -> dict[str, Cell]:
    """What has nothing to do with a value's bytes."""
    good, long = case.good(1), [{"key": f"h{at}", "value": b"x"} for at in range(10_000)]
    return {
        "Q21": [fine(good), fine(good, record={"key": None}), fine(good, record={"key": b"\xff"})],
        "Q22": [
            fine(good, record={"headers": HEADERS}),
            fine(good, record={"headers": None}),
            fine(good, record={"headers": long}),
            bad(None, Reason.TOMBSTONE, record={"headers": HEADERS}),
        ],
        "Q27": [
            fine(good, record={"timestamp": moment})
            for moment in (None, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC))
        ],
    }


def cuts(value: bytes, reason: Reason, at: Sequence[int] = ()) -> list[Entry]:
    """A value cut short; at every byte it is cut by the contract suite."""
    places = at or sorted({1, len(value) // 4, len(value) // 2, len(value) - 1})
    return [bad(value[:end], reason) for end in places]


def partitioned(column: str, write: Any) -> list[Entry]:
    """Texts as values of a partition column."""
    under = {"table": {"partition_by": [column]}}
    stored = ["../", "a/b", "%2F", "x" * 200, " "]
    refused = ["", "x" * 300, "__HIVE_DEFAULT_PARTITION__"]
    return [
        *(fine(write(text), row={column: text}, under=under) for text in stored),
        *(bad(write(text), Reason.BAD_PARTITION, step="stage", under=under) for text in refused),
    ]


def texts(column: str, write: Any) -> dict[str, Cell]:
    """What a text may hold, for formats that have texts."""
    where = {"transform": [{"where": f"{column} IS NULL OR {column} <> 'nobody'"}]}
    return {
        "Q4": [fine(write("\0"), row={column: "\0"}), fine(write("a\0b"), row={column: "a\0b"})],
        "Q23": partitioned(column, write),
        "Q24": [fine(write(word), row={column: word}) for word in WORDS],
        "Q25": [fine(write(word), row={column: word}, under=where) for word in ("'; drop table t; --", "nobody' OR 1")],
        "Q26": routed(column, write),
    }


def routed(column: str, write: Any) -> list[Entry]:
    """Texts as routes; a good record has its own name there."""
    under = {"route": {"by": {"field": column}}, "table": {"path": "/lake/{route}"}}
    names = ["../b", "/etc/passwd", "s3://other/x", "", "a b", "x" * 200, "_headrace", ".."]
    return [bad(write(name), Reason.BAD_ROUTE, step="route", under=under, good=write("shop")) for name in names]
