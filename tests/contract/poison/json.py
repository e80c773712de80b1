"""What JSON makes of the 28 kinds: plain, packed, and in envelopes."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from contract.formats import envelopes
from contract.formats import json as plain
from headrace.reasons import Reason

from . import Cell, Entry, bad, cuts, fine, in_every_format, partitioned, routed, texts

EVOLVE = {"table": {"contract": {"new_field": "evolve"}}}
REJECT = {"table": {"contract": {"new_field": "reject"}}}
SMALL = {"limits": {"record_bytes": 10_000}}
MS = {"name": "ms", "type": "timestamp", "unit": "ms"}
MAP = {"name": "more", "type": "map<string,bigint>"}
WIDE = b"{" + b",".join(b'"k%d":1' % at for at in range(10_001)) + b"}"
NOT_AVRO, NOT_PROTOBUF = "a matter of Avro", "a matter of Protobuf"
NOT_DEBEZIUM = "a matter of Debezium's envelope"


def write(text: str) -> bytes:
    return json.dumps({"id": 1, "name": text}).encode()


def inside(members: bytes) -> bytes:
    """An object with an id and more."""
    return b'{"id":1,%b}' % members


JSON: dict[str, Cell] = {
    **in_every_format(plain.CASES["json"]),
    **texts("name", write),
    "Q1": [bad(b"", Reason.EMPTY), bad(None, Reason.TOMBSTONE), bad(b" \t\r\n", Reason.MALFORMED)],
    "Q2": cuts(plain.good(17), Reason.MALFORMED),
    "Q3": [
        bad(inside(b'"name":"\x80"'), Reason.ENCODING),
        bad(inside(b'"name":"\xc0\xaf"'), Reason.ENCODING),
        bad(inside(b'"name":"\xed\xa0\x80"'), Reason.ENCODING),
        bad(inside(b'"name":"\\ud800"'), Reason.ENCODING),
        fine(b'\xef\xbb\xbf{"id":1,"name":"x"}', row={"id": 1, "name": "x"}),
    ],
    "Q5": [
        bad(b'{"id":9223372036854775808}', Reason.OVERFLOW),
        bad(b'{"id":-9223372036854775809}', Reason.OVERFLOW),
        bad(b'{"id":1' + b"0" * 400 + b"}", Reason.OVERFLOW),
        bad(inside(b'"amount":1e400'), Reason.OVERFLOW),
        bad(b'{"id":1.0}', Reason.TYPE),
        bad(b'{"id":"12"}', Reason.TYPE),
        fine(b'{"id":9223372036854775807}', row={"id": 2**63 - 1}),
    ],
    "Q6": [
        bad(inside(b'"amount":NaN'), Reason.MALFORMED),
        bad(inside(b'"amount":Infinity'), Reason.MALFORMED),
        bad(inside(b'"amount":-Infinity'), Reason.MALFORMED),
        fine(inside(b'"amount":-0.0'), row={"amount": -0.0}),
    ],
    "Q7": [
        bad(inside(b'"price":' + b"1" * 40), Reason.OVERFLOW),
        bad(inside(b'"price":0.' + b"0" * 38 + b"1"), Reason.OVERFLOW),
        bad(inside(b'"price":1.234'), Reason.OVERFLOW),
    ],
    "Q8": [
        bad(b'{"id":1,"id":1}', Reason.DUPLICATE_KEY),
        bad(b'{"id":1,"ID":1}', Reason.DUPLICATE_KEY),
        bad(inside(b'"x":{"y":1,"y":1}'), Reason.DUPLICATE_KEY),
        bad(inside(b'"more":{"a":1,"a":1}'), Reason.DUPLICATE_KEY, also=(MAP,)),
    ],
    "Q9": [
        *(bad(plain.nested(depth), Reason.TOO_DEEP) for depth in (100, 1_000, 10_000)),
        bad(inside(b'"x":' + b'{"y":' * 1_000), Reason.TOO_DEEP),
        fine(plain.nested(60), row={"id": 1}),
    ],
    "Q10": [
        bad(WIDE, Reason.TOO_WIDE),  # a hundred thousand keys are in the contract suite
        bad(b'{"id":1,"%b":1}' % (b"k" * 65_536), Reason.BAD_NAME, under=EVOLVE),
        fine(b'{"id":1,"%b":1}' % (b"k" * 65_536), row={"id": 1}),
        bad(write("x" * 20_000), Reason.TOO_BIG, under=SMALL),
        fine(write("x" * 9_000), row={"name": "x" * 9_000}, under=SMALL),
    ],
    "Q11": "values that are not packed: those that are have a table of their own",
    "Q12": [bad(value, Reason.NOT_AN_OBJECT) for value in (b"[1,2]", b'"text"', b"5", b"true", b"null")],
    "Q13": [bad(b'{"id":1}{"id":2}', Reason.TRAILING_DATA), bad(b'{"id":1}\n{"id":2}', Reason.TRAILING_DATA)],
    "Q14": [
        *(
            bad(inside(b'"at":"%b"' % text), Reason.TIMESTAMP)
            for text in (
                b"0000-00-00",
                b"9999-12-31T23:59:60Z",
                b"2024-02-30T00:00:00Z",
                b"+12024-01-01T00:00:00Z",
                b"2024-03-31T02:30:00",  # a time that some zones do not have, and no zone
            )
        ),
        bad(inside(b'"ms":1714564800000000000'), Reason.TIMESTAMP, also=(MS,)),
        fine(inside(b'"at":"0001-01-01T00:00:00Z"'), row={"at": datetime(1, 1, 1, tzinfo=UTC)}),
        fine(inside(b'"at":"2034-05-01T00:00:00Z"'), row={"at": datetime(2034, 5, 1, tzinfo=UTC)}),
    ],
    "Q15": [
        bad(b'{"name":"x"}', Reason.MISSING),
        bad(b'{"id":null}', Reason.MISSING),
        bad(inside(b'"name":5'), Reason.TYPE),
        fine(inside(b'"new":1'), row={"id": 1}),
        fine(inside(b'"new":7'), row={"new": 7}, under=EVOLVE),
        bad(inside(b'"new":1'), Reason.NEW_FIELD, under=REJECT),
    ],
    "Q16": [
        bad(inside(b'"inner":"n"'), Reason.TYPE),
        bad(inside(b'"name":{}'), Reason.TYPE),
        bad(inside(b'"tags":["a",1]'), Reason.TYPE),
        bad(inside(b'"tags":{"a":1}'), Reason.TYPE),
    ],
    "Q17": [
        *(
            bad(json.dumps({"id": 1, name: 1}).encode(), Reason.BAD_NAME, under=EVOLVE)
            for name in ("a b", "a,b", "a;b", "{a}", "a=b", "a\tb", "a\nb", "x" * 300, "_change_type", "_source", "")
        ),
        bad(b'{"ID":1}', Reason.BAD_NAME),
        *(
            fine(json.dumps({"id": 1, name: 7}, ensure_ascii=False).encode(), row={name: 7}, under=EVOLVE)
            for name in ("a.b", "a`b", "👍", "x" * 255, "1st", "select")
        ),
    ],
    "Q18": NOT_AVRO,
    "Q19": NOT_PROTOBUF,
    "Q20": NOT_DEBEZIUM,
    "Q28": [bad(b'{"id":"%b"}' % (b"x" * 2_000), Reason.TYPE), bad(b"x" * 2_000, Reason.MALFORMED)],
}


def rewritten(table: dict[str, Cell], wrap: Any, **own: Cell) -> dict[str, Cell]:
    """The same values in another wrapping; what has no bytes to wrap stays."""
    made: dict[str, Cell] = {}
    for kind, cell in table.items():
        made[kind] = cell if isinstance(cell, str) else [_wrapped(entry, wrap) for entry in cell]
    return made | own


def _wrapped(entry: Entry, wrap: Any) -> Entry:
    good = None if entry.good is None else wrap(entry.good)
    return replace(entry, value=wrap(entry.value) if entry.value else entry.value, good=good)


def packed(value: bytes) -> bytes:
    return gzip.compress(value, 1, mtime=0)


WHOLE = packed(plain.good(1))
GZIP = rewritten(
    JSON,
    packed,
    Q2=[*cuts(WHOLE, Reason.MALFORMED), bad(packed(plain.good(17)[:-1]), Reason.MALFORMED)],
    Q9=[bad(packed(plain.nested(100)), Reason.TOO_DEEP), bad(packed(plain.nested(100_000)), Reason.RATIO)],
    Q10=[
        bad(packed(WIDE), Reason.TOO_WIDE),
        bad(packed(write("".join(map(str, range(5_000))))), Reason.TOO_BIG, under=SMALL),
    ],
    Q11=[
        bad(packed(b" " * 1_000_000), Reason.RATIO),
        bad(packed(WHOLE), Reason.ENCODING),
        bad(plain.good(1), Reason.MALFORMED),
        bad(WHOLE + b"x", Reason.MALFORMED),
        bad(packed(b""), Reason.EMPTY),
        bad(b"\x28\xb5\x2f\xfd" + WHOLE[4:], Reason.MALFORMED),  # another format's magic
    ],
    Q28=[bad(packed(b'{"id":"%d"}' % 10**1_000), Reason.TYPE)],
)

TOO_NEAR = [bad(b"{", Reason.MALFORMED), bad(b"", Reason.EMPTY), bad(None, Reason.TOMBSTONE)]
CHANGE = envelopes.change
DEBEZIUM = rewritten(
    JSON,
    CHANGE,
    Q1=[*TOO_NEAR, bad(b" \n", Reason.MALFORMED), bad(CHANGE(b" \n"), Reason.MALFORMED)],
    Q2=cuts(CHANGE(plain.good(17)), Reason.MALFORMED),
    Q3=[bad(CHANGE(inside(b'"name":"\x80"')), Reason.ENCODING), bad(b"\xff", Reason.ENCODING)],
    Q12=[bad(CHANGE(value), Reason.TYPE) for value in (b"[1,2]", b'"text"', b"5", b"true")],
    Q13=[bad(CHANGE(b'{"id":1}') + CHANGE(b'{"id":2}'), Reason.TRAILING_DATA)],
    Q20=[
        bad(b'{"schema":{"type":"struct"}}', Reason.UNKNOWN_OPERATION),
        bad(b'{"ts_ms":1}', Reason.UNKNOWN_OPERATION),
        bad(CHANGE(b'{"id":1}', "x"), Reason.UNKNOWN_OPERATION),
        bad(CHANGE(b"null", "d"), Reason.MISSING),
        bad(CHANGE(b"null", "t"), Reason.UNKNOWN_OPERATION),
        bad(b'{"status":"BEGIN","id":"571","event_count":null}', Reason.UNKNOWN_OPERATION),
        fine(CHANGE(b'{"id":5}', "d"), row={"id": 5, "_op": "delete"}),
    ],
    Q21=[
        *(fine(CHANGE(b'{"id":1}', op), row={"id": 1}) for op in "cud"),
        fine(CHANGE(b'{"id":1}'), record={"key": None}),
    ],
    Q26=routed("after.name", lambda text: CHANGE(write(text))),
    Q28=[bad(b'{"op":"%b"}' % (b"x" * 2_000), Reason.UNKNOWN_OPERATION)],
)
CLOUDEVENTS = rewritten(
    JSON,
    envelopes.event,
    Q1=[*TOO_NEAR, bad(b" \n", Reason.MALFORMED), bad(envelopes.event(b" \n"), Reason.MALFORMED)],
    Q2=cuts(envelopes.event(plain.good(17)), Reason.MALFORMED),
    Q3=[bad(envelopes.event(inside(b'"name":"\x80"')), Reason.ENCODING), bad(b"\xff", Reason.ENCODING)],
    Q12=[bad(envelopes.event(value), Reason.TYPE) for value in (b"[1,2]", b'"text"', b"5", b"true")],
    Q13=[bad(envelopes.event(b'{"id":1}') * 2, Reason.TRAILING_DATA)],
    Q26=routed("data.name", lambda text: envelopes.event(write(text))),
    Q28=[bad(envelopes.event(b'{"id":1}', specversion="x" * 2_000), Reason.FRAMING)],
)


def logged(stream: str) -> bytes:
    """An event of a stream."""
    return json.dumps({"event_type": "log", "stream": stream, "data": 1}).encode()


FREE = "the row is kept as text, whatever it holds"
RIVVEN: dict[str, Cell] = {
    **dict.fromkeys(("Q5", "Q7", "Q15", "Q16", "Q17"), FREE),
    **in_every_format(envelopes.CASES["json rivven"]),
    "Q1": [*TOO_NEAR, bad(b" \n", Reason.MALFORMED)],
    "Q2": cuts(envelopes.told(17), Reason.MALFORMED),
    "Q3": [bad(b'{"event_type":"log","data":"\x80"}', Reason.ENCODING), bad(b'{"any":"\xc0\xaf"}', Reason.ENCODING)],
    "Q4": [fine(b'{"any":"\\u0000"}', row={"data": '{"any":"\\u0000"}'})],
    "Q6": [bad(b'{"event_type":"log","data":NaN}', Reason.MALFORMED), bad(b'{"any":NaN}', Reason.MALFORMED)],
    "Q8": [bad(b'{"any":1,"any":2}', Reason.DUPLICATE_KEY), bad(b'{"any":1,"ANY":2}', Reason.DUPLICATE_KEY)],
    "Q9": [bad(plain.nested(depth), Reason.TOO_DEEP) for depth in (100, 1_000)],
    "Q10": [bad(write("x" * 20_000), Reason.TOO_BIG, under=SMALL)],
    "Q11": "values that are not packed: those that are have a table of their own",
    "Q12": JSON["Q12"],
    "Q13": JSON["Q13"],
    "Q14": [
        bad(b'{"event_type":"log","timestamp":"yesterday","data":1}', Reason.TIMESTAMP),
        bad(b'{"source_type":"pg","op":"Insert","timestamp":1714564800000,"after":{}}', Reason.TIMESTAMP),
    ],
    "Q18": NOT_AVRO,
    "Q19": NOT_PROTOBUF,
    "Q20": [
        bad(b'{"event_type":"dance","data":{}}', Reason.UNKNOWN_OPERATION),
        bad(b'{"source_type":"pg","op":"Dance"}', Reason.UNKNOWN_OPERATION),
        fine(b'{"source_type":"pg","op":"Truncate","timestamp":1}', row={"event_type": "truncate", "data": "null"}),
    ],
    "Q23": partitioned("stream", logged),
    "Q24": [fine(write(word), row={"data": write(word).decode()}) for word in ("=cmd()", "<script>", "\x1b[2J")],
    "Q25": [fine(write("'; drop"), row={"event_type": "record"}, under={"transform": [{"where": "data <> 'x'"}]})],
    "Q26": routed("stream", logged),
    "Q28": [bad(b'{"event_type":"%b"}' % (b"x" * 2_000), Reason.UNKNOWN_OPERATION)],
}
