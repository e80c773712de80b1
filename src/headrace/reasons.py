"""Dead-letter reasons: a closed list."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Code of a dead letter; `MEANING` has the text that users read."""

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


MISFITS = frozenset({Reason.TYPE, Reason.OVERFLOW, Reason.TIMESTAMP})  # the contract's `wrong_type`

MEANING: dict[Reason, str] = {
    Reason.EMPTY: "the value is empty",
    Reason.TOMBSTONE: "the value is null and the table does not apply deletes",
    Reason.MALFORMED: "the value is not well-formed in its format",
    Reason.ENCODING: "the value is not valid UTF-8",
    Reason.NOT_AN_OBJECT: "the value is valid but not an object",
    Reason.TRAILING_DATA: "data follows the first value",
    Reason.DUPLICATE_KEY: "an object has a duplicate key",
    Reason.TOO_DEEP: "the value is nested deeper than the limit",
    Reason.TOO_WIDE: "an object has more keys, or the record more new fields, than the limit",
    Reason.TOO_BIG: "the value, or the data that its rows repeat, exceeds the limit",
    Reason.RATIO: "the compressed value expands beyond the limit",
    Reason.TYPE: "a value does not match the type of its column",
    Reason.OVERFLOW: "a number does not fit its column",
    Reason.TIMESTAMP: "a date or time cannot be parsed",
    Reason.MISSING: "a required column has no value",
    Reason.BAD_NAME: "a field name is not a valid column name",
    Reason.BAD_ROUTE: "the route value is not a valid table name",
    Reason.BAD_PARTITION: "the value of a partition column cannot be stored",
    Reason.UNROUTED: "no table of the spec matches the record",
    Reason.TRANSFORM: "an expression fails for the record",
    Reason.EXPECTATION: "the record violates an expectation",
    Reason.CONSTRAINT: "the row violates a CHECK constraint of the table",
    Reason.NEW_FIELD: "the contract rejects a new field",
    Reason.TOO_MANY_TABLES: "the record would exceed the limit on tables",
    Reason.FRAMING: "the framing of the value is invalid",
    Reason.UNKNOWN_SCHEMA: "the value refers to an unknown schema",
    Reason.UNKNOWN_OPERATION: "a change event's operation is unknown",
    Reason.NO_KEY: "a change has no key",
}
