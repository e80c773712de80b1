"""What texts, numbers and bytes make of the 28 kinds."""

from __future__ import annotations

import struct

from contract.formats.plain import CASES
from headrace.reasons import Reason

from . import Cell, bad, cuts, fine, in_every_format, texts
from .json import NOT_AVRO, NOT_DEBEZIUM, NOT_PROTOBUF, SMALL

FLAT = "values have no fields"
NOT_PACKED = "values are not packed"
ANYTHING = "any bytes are a value"
NONE_OF_THESE: dict[str, Cell] = {
    **dict.fromkeys(("Q8", "Q15", "Q16", "Q17"), FLAT),
    "Q9": "values have no depth",
    "Q11": NOT_PACKED,
    "Q14": "values are no times",
    "Q18": NOT_AVRO,
    "Q19": NOT_PROTOBUF,
    "Q20": NOT_DEBEZIUM,
}
NO_NUMBERS: dict[str, Cell] = dict.fromkeys(("Q5", "Q6", "Q7"), "values are no numbers")
NO_TEXTS: dict[str, Cell] = dict.fromkeys(("Q4", "Q23", "Q24", "Q25", "Q26"), "values are no texts")
NULL = bad(None, Reason.TOMBSTONE)
LARGE = bad(b"x" * 20_000, Reason.TOO_BIG, under=SMALL)
UTF8 = [bad(raw, Reason.ENCODING) for raw in (b"\x80", b"\xc0\xaf", b"\xed\xa0\x80")]

STRING: dict[str, Cell] = {
    **NONE_OF_THESE,
    **NO_NUMBERS,
    **in_every_format(CASES["string"]),
    **texts("data", str.encode),
    "Q1": [NULL, fine(b"", row={"data": ""}), fine(b" \t\n", row={"data": " \t\n"})],
    "Q2": [bad("é".encode()[:1], Reason.ENCODING), fine(b"n1", row={"data": "n1"})],
    "Q3": [*UTF8, fine(b"\xef\xbb\xbfx", row={"data": "\ufeffx"})],
    "Q10": [LARGE],
    "Q12": [fine(raw, row={"data": raw.decode()}) for raw in (b"[1,2]", b"5", b"null")],
    "Q13": [fine(b"a\nb", row={"data": "a\nb"})],
    "Q28": [bad(b"\xff" * 2_000, Reason.ENCODING)],
}
INT64: dict[str, Cell] = {
    **NONE_OF_THESE,
    **NO_TEXTS,
    **in_every_format(CASES["int64"]),
    "Q1": [NULL, bad(b"", Reason.EMPTY), bad(b" \t\n", Reason.TYPE)],
    "Q2": cuts(struct.pack(">q", 1), Reason.TYPE),
    "Q3": "values are no texts",
    "Q5": [bad(b"12", Reason.TYPE), fine(struct.pack(">q", -(2**63)), row={"value": -(2**63)})],
    "Q6": "a double's bytes are a whole number, too",
    "Q7": "values are no decimals",
    "Q10": [LARGE, bad(b"\0" * 9, Reason.TYPE)],
    "Q12": "values are no JSON",
    "Q13": [bad(struct.pack(">qq", 1, 2), Reason.TYPE)],
    "Q28": [bad(b"x" * 2_000, Reason.TYPE)],
}
DIGITS: dict[str, Cell] = {
    **NONE_OF_THESE,
    **NO_TEXTS,
    "Q1": [NULL, bad(b"", Reason.EMPTY), bad(b" \t\n", Reason.TYPE)],
    "Q2": [bad(b"-", Reason.TYPE)],
    "Q3": UTF8,
    "Q7": "values are no decimals",
    "Q10": [LARGE],
    "Q12": [bad(raw, Reason.TYPE) for raw in (b"[1,2]", b'"1"', b"true", b"null")],
    "Q13": [bad(b"1 2", Reason.TYPE), bad(b"1\n2", Reason.TYPE)],
    "Q28": [bad(b"x" * 2_000, Reason.TYPE)],
}
INT64_TEXT: dict[str, Cell] = {
    **DIGITS,
    **in_every_format(CASES["int64 text"]),
    "Q5": [
        bad(b"9223372036854775808", Reason.OVERFLOW),
        bad(b"-9223372036854775809", Reason.OVERFLOW),
        bad(b"1" * 400, Reason.OVERFLOW),
        bad(b"1.0", Reason.TYPE),
        fine(b"-9223372036854775808", row={"value": -(2**63)}),
    ],
    "Q6": [bad(raw, Reason.TYPE) for raw in (b"NaN", b"Infinity", b"-0.0")],
}
NUMBER: dict[str, Cell] = {
    **DIGITS,
    **in_every_format(CASES["number"]),
    "Q5": [bad(b"1e400", Reason.OVERFLOW), bad(b"1" * 400, Reason.OVERFLOW), bad(b'"12"', Reason.TYPE)],
    "Q6": [bad(b"NaN", Reason.TYPE), bad(b"Infinity", Reason.TYPE), fine(b"-0.0", row={"value": -0.0})],
}
WHOLE_NUMBER: dict[str, Cell] = {
    **NUMBER,
    **in_every_format(CASES["number whole"]),
    "Q5": [
        *(bad(raw, Reason.TYPE) for raw in (b"1.5", b"1.0", b"1e3", b"1e400")),
        *(bad(raw, Reason.OVERFLOW) for raw in (b"9223372036854775808", b"9" * 400)),
        fine(b"9007199254740993", row={"value": 9007199254740993}),
    ],
    "Q6": [bad(raw, Reason.TYPE) for raw in (b"NaN", b"Infinity", b"-0.0")],
}
BYTES: dict[str, Cell] = {
    **NONE_OF_THESE,
    **NO_NUMBERS,
    **NO_TEXTS,
    **dict.fromkeys(("Q2", "Q3", "Q12", "Q13"), ANYTHING),
    **in_every_format(CASES["bytes"]),
    "Q1": [NULL, fine(b"", row={"data": "", "size": 0}), fine(b" ", row={"data": "IA==", "size": 1})],
    "Q10": [LARGE],
    "Q23": [bad(b"", Reason.BAD_PARTITION, step="stage", under={"table": {"partition_by": ["data"]}})],
    "Q28": "only too many bytes can fail",
}
RAW: dict[str, Cell] = {
    **BYTES,
    **in_every_format(CASES["raw"]),
    "Q1": [NULL, fine(b"", row={"data": b""}), fine(b" ", row={"data": b" "})],
    "Q23": "binary columns are no partitions",
}
