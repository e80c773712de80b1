"""The closed list of dead-letter reasons: why a record could not become a row."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """One code per way in which a record can be unusable; the text beside it is what people read."""

    EMPTY = "empty"
    TOMBSTONE = "tombstone"
    MALFORMED = "malformed"
    ENCODING = "encoding"
    NOT_AN_OBJECT = "not_an_object"
    TRAILING_DATA = "trailing_data"
    DUPLICATE_KEY = "duplicate_key"
    TOO_DEEP = "too_deep"
    TOO_WIDE = "too_wide"
    TOO_BIG = "too_big"
    RATIO = "ratio"
    TYPE = "type"
    OVERFLOW = "overflow"
    TIMESTAMP = "timestamp"
    MISSING = "missing"
    BAD_NAME = "bad_name"
    BAD_ROUTE = "bad_route"
    BAD_PARTITION = "bad_partition"
    UNROUTED = "unrouted"
    TRANSFORM = "transform"
    EXPECTATION = "expectation"
    CONSTRAINT = "constraint"
    NEW_FIELD = "new_field"
    TOO_MANY_TABLES = "too_many_tables"
    FRAMING = "framing"
    UNKNOWN_SCHEMA = "unknown_schema"
    UNKNOWN_OPERATION = "unknown_operation"
    NO_KEY = "no_key"


MISFITS = frozenset({Reason.TYPE, Reason.OVERFLOW, Reason.TIMESTAMP})  # what a contract calls a wrong type

MEANING: dict[Reason, str] = {
    Reason.EMPTY: "the value has no bytes",
    Reason.TOMBSTONE: "the value is null and the table does not delete",
    Reason.MALFORMED: "the value is not well-formed in its format",
    Reason.ENCODING: "the value is not valid UTF-8",
    Reason.NOT_AN_OBJECT: "the value is valid but not an object",
    Reason.TRAILING_DATA: "something follows the first value",
    Reason.DUPLICATE_KEY: "an object holds the same key twice",
    Reason.TOO_DEEP: "the value is nested deeper than the limit",
    Reason.TOO_WIDE: "an object has more keys, or the record more new fields, than the limit",
    Reason.TOO_BIG: "the value, or what its rows repeat of it, is larger than the limit",
    Reason.RATIO: "the compressed value expands beyond the limit",
    Reason.TYPE: "a value has another type than its column",
    Reason.OVERFLOW: "a number does not fit its column",
    Reason.TIMESTAMP: "a date or time cannot be read",
    Reason.MISSING: "a required column has no value",
    Reason.BAD_NAME: "a field's name cannot be a column",
    Reason.BAD_ROUTE: "the route's value cannot name a table",
    Reason.BAD_PARTITION: "a partition column's value cannot be stored",
    Reason.UNROUTED: "no table of the spec takes the record",
    Reason.TRANSFORM: "an expression fails for the record",
    Reason.EXPECTATION: "the record breaks a named expectation",
    Reason.CONSTRAINT: "the row violates a CHECK constraint of the table",
    Reason.NEW_FIELD: "the record brings a field the contract refuses",
    Reason.TOO_MANY_TABLES: "the record would make one table too many",
    Reason.FRAMING: "the frame around the value is wrong",
    Reason.UNKNOWN_SCHEMA: "the value names a schema nobody knows",
    Reason.UNKNOWN_OPERATION: "a change event's operation is unknown",
    Reason.NO_KEY: "a change has no key by which its row could be found",
}
