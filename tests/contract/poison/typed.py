"""What Avro, Protobuf and MessagePack make of the 28 kinds."""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import msgpack

from contract.formats import avro, protobuf
from contract.formats import msgpack as packs
from headrace.reasons import Reason
from services.schemas import registered

from . import Cell, bad, cuts, fine, in_every_format, texts
from .json import EVOLVE, NOT_AVRO, NOT_DEBEZIUM, NOT_PROTOBUF, REJECT, SMALL

MAP = {"name": "more", "type": "map<string,bigint>"}
NOT_PACKED = "values are not packed; container files are, and the contract suite has their bombs"

# ---- Avro, in Confluent's frame ----


def value(content: dict[str, Any], *fields: Any, without: str = "") -> bytes:
    """A record by a schema with other fields than the case's: replaced by name, or added."""
    given = {field["name"]: field for field in avro.SCHEMA["fields"] if field["name"] != without}
    schema = {**avro.SCHEMA, "fields": list((given | {field["name"]: field for field in fields}).values())}
    row = {**avro.row(3), **content}
    return avro.framed(_registered(schema), avro.written(row, fastavro.parse_schema(schema)))


def _registered(schema: Any) -> int:
    """Ids of both registries of the tests: the contract's own answers for what is registered here."""
    text = json.dumps(schema)
    id = registered(text, "AVRO")
    avro.REGISTERED[id] = schema
    return id


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def record(content: bytes) -> bytes:
    return avro.framed(1, content)


def named(text: str) -> bytes:
    return record(avro.written(avro.row(3, name=text)))


MORE = {"type": "map", "values": "long"}
GARBAGE = dict(zip(range(len(avro.GARBAGE)), avro.GARBAGE, strict=True))
AVRO: dict[str, Cell] = {
    **in_every_format(avro.CASES["avro registry"]),
    **texts("name", named),
    "Q1": [
        bad(b"", Reason.EMPTY),
        bad(None, Reason.TOMBSTONE),
        bad(b" \t\r\n", Reason.FRAMING),
        bad(record(b""), Reason.MALFORMED),
    ],
    "Q2": [
        *cuts(record(avro.good(17)), Reason.FRAMING, [1, 4]),
        *cuts(record(avro.good(17)), Reason.MALFORMED, [5, 9]),
    ],
    "Q3": [
        bad(record(b"\x02\x02\x02\x80" + avro.written(avro.row(3))[2:]), Reason.ENCODING),
        bad(record(b"\x02\x02\x04\xc0\xaf" + avro.written(avro.row(3))[2:]), Reason.ENCODING),
        bad(record(b"\x02\x02\x06\xed\xa0\x80" + avro.written(avro.row(3))[2:]), Reason.ENCODING),
        fine(named("\ufeffx"), row={"name": "\ufeffx"}),
    ],
    "Q5": [
        bad(record(avro.written(avro.row(1, inner={"n": 1 << 40}))), Reason.OVERFLOW),
        bad(record(b"\xff" * 10 + avro.good(1)[1:]), Reason.MALFORMED),  # a number of 70 bits
        bad(value({"id": 1.0}, field("id", "double")), Reason.TYPE),
        bad(value({"id": "12"}, field("id", "string")), Reason.TYPE),
        fine(record(avro.written(avro.row(3, id=-(2**63)))), row={"id": -(2**63)}),
    ],
    "Q6": [
        fine(record(avro.written(avro.row(3, amount=amount))), row={"amount": amount})
        for amount in (float("nan"), float("inf"), float("-inf"), -0.0)
    ],
    "Q7": [
        bad(record(avro.written(avro.row(1, price=Decimal(10**9)))), Reason.OVERFLOW),
        bad(record(avro.HEAD[:-1] + b"\x02\x22" + b"\x7f" * 17 + b"\0" * 5), Reason.OVERFLOW),
        bad(
            value(
                {"price": Decimal(10**39)},
                field("price", {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 0}),
            ),
            Reason.TYPE,
        ),
    ],
    "Q8": [
        bad(
            value({"more": {}}, field("more", MORE))[:-1] + b"\x04\x02a\x02\x02a\x04\x00",
            Reason.DUPLICATE_KEY,
            also=(MAP,),
        ),
        bad(value({"more": {}}, field("more", MORE))[:-1] + b"\x04\x02a\x02\x02a\x04\x00", Reason.DUPLICATE_KEY),
        bad(avro.framed(7, b"\x02\x02"), Reason.UNKNOWN_SCHEMA),  # two fields that differ only in case
    ],
    "Q9": [bad(avro.framed(4, b"\0"), Reason.UNKNOWN_SCHEMA)],
    "Q10": [
        bad(named("x" * 20_000), Reason.TOO_BIG, under=SMALL),
        bad(avro.framed(5, b"\0"), Reason.UNKNOWN_SCHEMA),  # a schema of millions of fields
        bad(value({"more": {str(at): at for at in range(10_001)}}, field("more", MORE)), Reason.TOO_WIDE, also=(MAP,)),
        bad(value({"more": {str(at): at for at in range(10_001)}}, field("more", MORE)), Reason.TOO_WIDE),
    ],
    "Q11": NOT_PACKED,
    "Q12": [
        bad(avro.framed(registered_alone, content), Reason.MISSING)
        for registered_alone, content in [
            (_registered("string"), b"\x02x"),
            (_registered({"type": "array", "items": "long"}), b"\0"),
        ]
    ],
    "Q13": [
        bad(record(avro.good(1) + avro.good(2)), Reason.TRAILING_DATA),
        bad(record(avro.good(1) + b"\0"), Reason.TRAILING_DATA),
    ],
    "Q14": [
        bad(record(avro.written(avro.row(1, at=moment))), Reason.TIMESTAMP)
        for moment in (1 << 50, -(1 << 62), 1_714_564_800_000_000_000)
    ],
    "Q15": [
        bad(value({}, without="id"), Reason.MISSING),
        fine(value({"new": 7}, field("new", "long")), row={"id": 3}),
        fine(value({"new": 7}, field("new", "long")), row={"new": 7}, under=EVOLVE),
        bad(value({"new": 7}, field("new", "long")), Reason.NEW_FIELD, under=REJECT),
        bad(value({"name": 5}, field("name", "long")), Reason.TYPE),
    ],
    "Q16": [
        bad(value({"inner": "n"}, field("inner", "string")), Reason.TYPE),
        bad(
            value({"name": {"a": 1}}, field("name", {"type": "record", "name": "A", "fields": [field("a", "int")]})),
            Reason.TYPE,
        ),
        bad(value({"tags": ["a", 1]}, field("tags", {"type": "array", "items": ["string", "int"]})), Reason.TYPE),
    ],
    "Q17": [
        bad(value({name: 7}, field(name, "long")), Reason.BAD_NAME, under=EVOLVE)
        for name in ("_change_type", "_source", "x" * 300)
    ],
    "Q18": [
        bad(avro.good(1), Reason.FRAMING),
        bad(b"\x01\0\0\0\x01" + avro.good(1), Reason.FRAMING),
        bad(avro.framed(77, avro.good(1)), Reason.UNKNOWN_SCHEMA),
        bad(avro.framed(8, avro.good(1)), Reason.TRAILING_DATA),  # another schema's bytes
        bad(record(b"\x02\x04" + avro.good(1)[2:]), Reason.MALFORMED),  # a third branch of two
        bad(record(avro.HEAD + b"\x00\x00" + b"\x80\x80\x80\x80\x10" + b"\x02x" * 9), Reason.MALFORMED),  # 2³¹ items
        bad(avro.framed(3, b"\0"), Reason.UNKNOWN_SCHEMA),  # recursive
    ],
    "Q19": NOT_PROTOBUF,
    "Q20": NOT_DEBEZIUM,
    "Q28": [bad(value({"id": "x" * 2_000}, field("id", "string")), Reason.TYPE)],
}

# ---- Protobuf, in Confluent's frame ----


def message(piece: bytes) -> bytes:
    return protobuf.framed(protobuf.order(piece), protobuf.ID_OF)


def texted(text: str) -> bytes:
    raw = text.encode()
    return message(b"\x12" + _varint(len(raw)) + raw)


def _varint(number: int) -> bytes:
    made = b""
    while number > 0x7F:
        made, number = made + bytes([number & 0x7F | 0x80]), number >> 7
    return made + bytes([number])


NOT_NAMED = "names come from the schema's own, which are letters, digits and signs"
PROTOBUF: dict[str, Cell] = {
    **in_every_format(protobuf.CASES["protobuf framed"]),
    **texts("name", texted),
    "Q1": [
        bad(b"", Reason.EMPTY),
        bad(None, Reason.TOMBSTONE),
        bad(b" \t\r\n", Reason.FRAMING),
        bad(protobuf.framed(b"", protobuf.ID_OF), Reason.MISSING),
    ],
    "Q2": [
        *cuts(message(b""), Reason.FRAMING, [1, 4, 5, 6]),
        *cuts(message(b"\x12\x02ab"), Reason.MALFORMED, [8, 10, 12]),
    ],
    "Q3": [
        bad(message(b"\x12\x01\x80"), Reason.ENCODING),
        bad(message(b"\x12\x02\xc0\xaf"), Reason.ENCODING),
        bad(message(b"\x12\x03\xed\xa0\x80"), Reason.ENCODING),
        fine(texted("\ufeffx"), row={"name": "\ufeffx"}),
    ],
    "Q5": [
        bad(message(b"\x08" + b"\xff" * 9 + b"\x02"), Reason.MALFORMED),  # 65 bits
        bad(message(b"\x48\x80\x80\x80\x80\x10"), Reason.OVERFLOW),  # 33 bits for a uint32
        bad(message(protobuf.inside(7, b"\x08\x80\x80\x04")), Reason.OVERFLOW),  # more than its column takes
        bad(message(b"\x19" + struct.pack("<d", 1e300)), Reason.OVERFLOW),  # a double for a float
    ],
    "Q6": [
        fine(message(b"\x19" + struct.pack("<d", amount)), row={"amount": amount})
        for amount in (float("nan"), float("inf"), -0.0)
    ],
    "Q7": "Protobuf has no decimals",
    "Q8": [fine(message(b"\x12\x01a\x12\x01b"), row={"name": "b"})],  # as everywhere in Protobuf, the last one counts
    "Q9": [bad(message(b"\xa3\x06" * depth + b"\xa4\x06" * depth), Reason.TOO_DEEP) for depth in (100, 1_000, 10_000)],
    "Q10": [
        bad(texted("x" * 20_000), Reason.TOO_BIG, under=SMALL),
        bad(
            message(b"".join(protobuf.inside(11, b"\x0a\x05%05d\x10\x01" % at) for at in range(10_001))),
            Reason.TOO_WIDE,
        ),
    ],
    "Q11": "values are not packed",
    "Q12": "whatever is at the top is a message",
    "Q13": [fine(message(b"") + protobuf.order(b"\x12\x01b"), row={"id": 1, "name": "b"})],  # they are one, merged
    "Q14": [
        bad(message(protobuf.inside(5, b"\x08\xff\xff\xff\xff\xff\xff\xff\x7f")), Reason.TIMESTAMP),
        bad(message(protobuf.inside(5, b"\x10\xff\xff\xff\xff\x07")), Reason.TIMESTAMP),  # too many nanoseconds
    ],
    "Q15": [
        bad(protobuf.framed(protobuf.CHECK, protobuf.ID_OF), Reason.MISSING),
        bad(protobuf.framed(protobuf.ID, protobuf.ID_OF), Reason.MISSING),
        fine(message(b"\xa0\x06\x07"), row={"id": 1}),
        bad(message(b"\xa0\x06\x07"), Reason.NEW_FIELD, under=REJECT, also=({"name": "check", "type": "int"},)),
        bad(message(b"\x10\x05"), Reason.MALFORMED),  # the name has become a number
    ],
    "Q16": [
        bad(message(b"\x38\x05"), Reason.MALFORMED),  # a number for a message
        bad(message(b"\x60\x05"), Reason.MALFORMED),  # a number for a group
        bad(message(protobuf.inside(12, b"\x08\x01")), Reason.MALFORMED),  # a message for a group
    ],
    "Q17": NOT_NAMED,
    "Q18": NOT_AVRO,
    "Q19": [
        fine(message(b"\xa2\x06\x01x"), row={"id": 1}),
        bad(message(b"\x0a\x01\x05"), Reason.MALFORMED),  # another wire type
        bad(protobuf.framed(b"", protobuf.ID_OF, b""), Reason.FRAMING),  # no message index
        bad(protobuf.framed(protobuf.good(1), protobuf.ID_OF, b"\x02\x40"), Reason.FRAMING),
        bad(protobuf.framed(protobuf.good(1), protobuf.RECURSIVE, b"\0"), Reason.UNKNOWN_SCHEMA),
        bad(protobuf.framed(protobuf.good(1), 999_999_999), Reason.UNKNOWN_SCHEMA),
        bad(protobuf.framed(protobuf.good(1), protobuf.AVRO), Reason.UNKNOWN_SCHEMA),
    ],
    "Q20": NOT_DEBEZIUM,
    "Q28": [bad(message(b"\x12" + _varint(2_000) + b"\xff" * 2_000), Reason.ENCODING)],
}

# ---- MessagePack ----


def packed(**content: Any) -> bytes:
    return packs.framed({"id": 1, **content})


MSGPACK: dict[str, Cell] = {
    **in_every_format(packs.CASES["msgpack"]),
    **texts("name", lambda text: packed(name=text)),
    "Q1": [bad(b"", Reason.EMPTY), bad(None, Reason.TOMBSTONE), bad(b" \t\n", Reason.FRAMING)],
    "Q2": [
        *cuts(packs.good(17), Reason.FRAMING, [1, 4]),
        *cuts(packs.good(17), Reason.MALFORMED, [5, 20, len(packs.good(17)) - 1]),
    ],
    "Q3": [
        *(
            bad(packs.framed(b"\x82\xa2id\x01\xa4name" + bytes([0xA0 + len(raw)]) + raw), Reason.ENCODING)
            for raw in (b"\x80", b"\xc0\xaf", b"\xed\xa0\x80")
        ),
        fine(packed(name="\ufeffx"), row={"name": "\ufeffx"}),
    ],
    "Q5": [
        bad(packs.framed({"id": 2**63}), Reason.OVERFLOW),
        bad(packed(inner={"n": 2**15}), Reason.OVERFLOW),
        bad(packed(amount=1e300), Reason.OVERFLOW),
        bad(packs.framed({"id": 1.0}), Reason.TYPE),
        bad(packs.framed({"id": "12"}), Reason.TYPE),
    ],
    "Q6": [fine(packed(amount=amount), row={"amount": amount}) for amount in (float("nan"), float("inf"), -0.0)],
    "Q7": "MessagePack has no decimals",
    "Q8": [
        bad(packs.framed(b"\x82\xa2id\x01\xa2id\x02"), Reason.DUPLICATE_KEY),
        bad(packs.framed(b"\x82\xa2id\x01\xa3any\x82\xa1a\x01\xa1a\x02"), Reason.DUPLICATE_KEY),
        fine(packed(ID=2), row={"id": 1}),  # a field that the schema does not have
    ],
    "Q9": [
        *(bad(packs.framed(b"\x91" * depth + b"\x01"), Reason.TOO_DEEP) for depth in (100, 1_000, 100_000)),
        bad(packs.framed(b"\x82\xa2id\x01\xa3any" + b"\x91" * 80 + b"\x01"), Reason.TOO_DEEP),
    ],
    "Q10": [
        bad(packed(any={str(number): 1 for number in range(10_001)}), Reason.TOO_WIDE),
        bad(packed(name="x" * 20_000), Reason.TOO_BIG, under=SMALL),
        bad(packs.framed(b"\xdf\x7f\xff\xff\xff\xa1a"), Reason.MALFORMED),  # a map that promises two billion keys
    ],
    "Q11": "values are not packed",
    "Q12": [bad(packs.framed(top), Reason.NOT_AN_OBJECT) for top in (5, "text", True, None)],
    "Q13": [
        bad(packed() + b"\x01", Reason.TRAILING_DATA),
        bad(packed() + msgpack.packb({"id": 2}), Reason.TRAILING_DATA),
    ],
    "Q14": [
        bad(packed(at=msgpack.Timestamp(1 << 40, 0)), Reason.TIMESTAMP),
        bad(packs.framed(b"\x82\xa2id\x01\xa2at\xc7\x0c\xff" + b"\xff" * 12), Reason.MALFORMED),  # too many nanoseconds
        *(bad(packed(day=day), Reason.TIMESTAMP) for day in ("0000-00-00", "2024-02-30", "yesterday")),
        fine(
            packed(at=msgpack.Timestamp(-62_135_596_800, 0)),
            row={"at": datetime(1, 1, 1, tzinfo=UTC)},
        ),
    ],
    "Q15": [
        bad(packs.framed({}), Reason.MISSING),
        bad(packs.framed({"id": None}), Reason.MISSING),
        bad(packed(name=5), Reason.TYPE),
        fine(packed(new=1), row={"id": 1}),
        bad(packed(new=1), Reason.NEW_FIELD, under=REJECT),
    ],
    "Q16": [
        bad(packed(inner="n"), Reason.TYPE),
        bad(packed(name={}), Reason.TYPE),
        bad(packed(tags=["a", 1]), Reason.TYPE),
        bad(packs.framed({"id": 1, 5: 1}), Reason.TYPE),  # a key that is no text
    ],
    "Q17": "columns come from the schema; other names are ignored, or letters under the contract (Q15)",
    "Q18": NOT_AVRO,
    "Q19": NOT_PROTOBUF,
    "Q20": NOT_DEBEZIUM,
    "Q28": [bad(packed(name=5, **{f"k{at}": at for at in range(500)}), Reason.TYPE)],
}
