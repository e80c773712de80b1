"""How a record's bytes are read: every format with its options."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from headrace.spec.base import InvalidValue, SpecModel, exactly_one, model_keys
from headrace.spec.registry import RegistryAt
from headrace.spec.units import Flag
from headrace.spec.uris import LocalPath

Envelope = Literal["none", "debezium", "rivven", "rivven_changes", "cloudevents"]
Tombstone = Literal["dead_letter", "skip", "row"]
Key = Literal["json", "text", "int64", "avro"]
Framing = Literal["none", "confluent", "bare"]


class Format(SpecModel):
    """What every format has."""

    tombstone: Tombstone | None = Field(
        default=None,
        description="What becomes of a record whose value is null; `row` keeps it as a row of NULLs. Without it, a "
        "dead letter; where the table merges, the row of its key is deleted.",
    )
    key: Key | None = Field(
        default=None,
        description="How the key of such a record is read: `json` (an object with the key columns, with or without "
        "Debezium's schema part, or the one value itself), `text`, `int64` (8 bytes, big-endian), or `avro` of the "
        "registry that values are of. Without it `avro` with `decode.avro.registry`, else `json`.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.key == "avro" and self.keyed_by_default != "avro":
            raise InvalidValue("json, text or int64", message="avro without decode.avro.registry", key="key")
        return self

    @property
    def keyed_by(self) -> Key:
        """How keys are read."""
        return self.key or self.keyed_by_default

    @property
    def keyed_by_default(self) -> Key:
        """How they are where nothing is said."""
        return "json"

    @property
    def many(self) -> bool:
        """Whether a record may have many rows."""
        return False

    @property
    def framing(self) -> Framing:
        """How values carry the id of their schema in front: `confluent` behind a zero byte, `bare`, or not at all."""
        return "confluent" if getattr(self, "registry", None) is not None else "none"

    @property
    def typed(self) -> bool:
        """Whether a value tells its type."""
        return self.framing != "none"


class JsonFormat(Format):
    """JSON: an object is a row."""

    rows: Literal["object", "array", "lines"] = Field(
        default="object",
        description="What a record holds: one `object`, an `array` of objects, or `lines` with an object each. "
        "All of its rows are stored, or none and a letter.",
    )
    compression: Literal["none", "gzip", "zstd", "lz4", "snappy"] = Field(
        default="none", description="How the value is packed; `lz4` is the frame format, `snappy` the raw one."
    )

    registry: RegistryAt | None = Field(
        default=None,
        description="The schema registry of values in Confluent's frame, as an address or a mapping; the JSON "
        "Schema gives the fields, which of them are required, and the type.",
    )
    envelope: Envelope = Field(
        default="none",
        description="What lies around the row: a change of `debezium` (with or without its schema part), an event or "
        "change of `rivven` (in the four columns of its sink), a change of Rivven as the row it is of "
        "(`rivven_changes`), or a structured `cloudevents` event.",
    )

    @property
    def many(self) -> bool:
        """Whether a record may have many rows."""
        return self.rows != "object"

    @property
    def typed(self) -> bool:
        """Whether a value tells its type."""
        return self.framing != "none" or self.envelope == "cloudevents"


class AvroFormat(Format):
    """Avro's binary encoding; exactly one of its keys says where the schema is."""

    registry: RegistryAt | None = Field(
        default=None, description="Confluent's frame: each record names its schema's id in this registry."
    )
    schema_: LocalPath | None = Field(
        default=None, alias="schema", description="Bare records, all written with the schema in this file."
    )
    single_object: LocalPath | None = Field(
        default=None,
        description="Avro's single-object encoding: each record names its schema's fingerprint; a schema file, or a "
        "folder of them (`*.avsc`).",
    )
    container: Flag = Field(
        default=False, description="Each value is a whole container file: all of its records are rows, or none."
    )
    envelope: Literal["none", "debezium"] = Field(
        default="none", description="What lies around the row: a change of `debezium`. Not in container files."
    )

    @model_validator(mode="after")
    def _one(self) -> AvroFormat:
        named = {"registry": self.registry, "schema": self.schema_, "single_object": self.single_object}
        given = [key for key, value in {**named, "container": self.container or None}.items() if value is not None]
        if len(given) != 1:
            allowed = "exactly one of registry, schema, single_object and container: true"
            raise InvalidValue(allowed, message=f"{' and '.join(given)} together" if given else "none of them")
        if self.container and self.envelope != "none":
            raise InvalidValue("none", message="an envelope in container files", key="envelope")
        return self

    @property
    def many(self) -> bool:
        """Whether a record may have many rows."""
        return self.container

    @property
    def keyed_by_default(self) -> Key:
        """As values are: a serializer is usually set for both."""
        return "avro" if self.registry else "json"

    @property
    def typed(self) -> bool:
        """Whether a value tells its type: the full name of its record."""
        return not self.container and self.envelope == "none"


class StringFormat(Format):
    """UTF-8 text, as `data`."""


class Int64Format(Format):
    """A whole number in 8 bytes, big-endian, as `value`."""

    text: Flag = Field(default=False, description="The number is decimal text instead.")


class BytesFormat(Format):
    """Any bytes: in base64 as `data`, their number as `size`."""


class NumberFormat(Format):
    """A JSON number, as `value`."""


class RawFormat(Format):
    """Any bytes, as they are, as the binary `data`."""


class ProtobufFormat(Format):
    """Protobuf messages: by a schema registry, or by a schema in a file."""

    registry: RegistryAt | None = Field(
        default=None, description="Values in Confluent's frame: schema id and message index, then the message."
    )
    descriptor: LocalPath | None = Field(
        default=None, description="A `.proto` file, or a descriptor set with its imports; values are bare messages."
    )
    message: str | None = Field(
        default=None, min_length=1, description="The full name of the message in `descriptor`: `shop.Order`."
    )
    keep_unknown_fields: Flag = Field(
        default=False, description="Keeps fields that the schema does not name, as they were, in the binary `_unknown`."
    )
    allow_empty: Flag = Field(
        default=False, description="A value of no bytes is a message of defaults, not a dead letter (`empty`)."
    )

    @model_validator(mode="after")
    def _way(self) -> ProtobufFormat:
        exactly_one(self, "registry", "descriptor")
        if (self.descriptor is None) != (self.message is None):
            raise InvalidValue("message beside descriptor", message="one of them alone", key="message")
        return self

    @property
    def typed(self) -> bool:
        """Whether a value tells its type."""
        return True


class MsgpackFormat(Format):
    """MessagePack behind the id of its schema (four bytes, big-endian): one map, or an array in the schema's order."""

    schemas: LocalPath | None = Field(
        default=None, description="A file of schemas by id (JSON), or a folder of them (`*.json`)."
    )
    registry: RegistryAt | None = Field(
        default=None, description="A server that answers `<url>/<id>` with a schema as in a file."
    )

    @model_validator(mode="after")
    def _way(self) -> MsgpackFormat:
        exactly_one(self, "schemas", "registry")
        return self

    @property
    def framing(self) -> Framing:
        """How values carry the id of their schema in front."""
        return "bare"

    @property
    def typed(self) -> bool:
        """Whether a value tells its type."""
        return True


class Decode(SpecModel):
    """How a record's bytes are read: one format; its name alone takes its defaults."""

    json_: JsonFormat | None = Field(default=None, alias="json", description="JSON objects.")
    avro: AvroFormat | None = Field(default=None, description="Avro records.")
    string: StringFormat | None = Field(default=None, description="UTF-8 text: `data`.")
    int64: Int64Format | None = Field(default=None, description="8 bytes, big-endian: `value`.")
    bytes: BytesFormat | None = Field(default=None, description="Any bytes: `data` in base64, and `size`.")
    number: NumberFormat | None = Field(default=None, description="A number as text: `value`.")
    raw: RawFormat | None = Field(default=None, description="Any bytes as they are: `data`.")
    protobuf: ProtobufFormat | None = Field(default=None, description="Protobuf messages.")
    msgpack: MsgpackFormat | None = Field(default=None, description="MessagePack behind the id of its schema.")

    @model_validator(mode="after")
    def _one(self) -> Decode:
        if len(given := self._given()) > 1:
            raise InvalidValue("one format", message=f"{' and '.join(given)} together")
        return self

    def _given(self) -> dict[str, Format]:
        named = {key: getattr(self, "json_" if key == "json" else key) for key in model_keys(type(self))}
        return {key: options for key, options in named.items() if options is not None}

    @property
    def format(self) -> str:
        """The format's name."""
        return next(iter(self._given()), "json")

    @property
    def options(self) -> Format:
        """The format's options."""
        return next(iter(self._given().values()), JsonFormat())

    @property
    def tombstone(self) -> Tombstone | None:
        """What becomes of a null value; None: what its table makes of one."""
        return self.options.tombstone

    @property
    def changes(self) -> bool:
        """Whether records are change events, which say themselves what is to happen to their row."""
        return getattr(self.options, "envelope", "none") in CHANGES


FORMATS = tuple(model_keys(Decode))
CHANGES = frozenset({"debezium", "rivven_changes"})  # envelopes whose `_op` says what happened to the row


def named_format(value: Any) -> Any:
    """A format's name alone is that format with its defaults."""
    return {value: {}} if isinstance(value, str) else value
