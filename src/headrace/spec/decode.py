"""Record formats and their options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from headrace.spec.base import InvalidValue, Shorthand, SpecModel, exactly_one, model_keys
from headrace.spec.registry import RegistryAt, SchemaServerAt
from headrace.spec.units import Flag
from headrace.spec.uris import LocalPath

_Envelope = Literal["none", "debezium", "rivven", "rivven_changes", "cloudevents"]
Tombstone = Literal["dead_letter", "skip", "row"]
KeyFormat = Literal["json", "text", "int64", "avro"]
Framing = Literal["none", "confluent", "bare"]

Signal = Literal["traces", "metrics", "logs"]
OtlpLayout = Literal["flat", "zerobus", "telemetry"]
Attributes = Literal["map", "json"]

SIGNALS: tuple[Signal, ...] = get_args(Signal)
_SIGNAL_TOPICS: Mapping[str, Signal] = {
    **{signal: signal for signal in SIGNALS},
    # As the Kafka exporter of the OpenTelemetry collector names them.
    "otlp_spans": "traces",
    "otlp_metrics": "metrics",
    "otlp_logs": "logs",
}

UNKNOWN_FIELDS = "_unknown"  # column of `keep_unknown_fields`


class Format(SpecModel):
    """Options common to all formats."""

    tombstone: Tombstone | None = Field(
        default=None,
        description="Handling of records with a null value; `row` writes a row of NULLs. Default: "
        "`dead_letter`, or a delete by key if the table is merged.",
    )
    key: KeyFormat | None = Field(
        default=None,
        description="Format of the record key (a tombstone deletes the row with this key): `json` (an object with the "
        "key columns, with or without Debezium's schema part, or a single value), `text`, `int64` "
        "(8 bytes, big-endian) or `avro` (same registry as the value). Default: `avro` with "
        "`decode.avro.registry`, otherwise `json`.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        if self.key == "avro" and self.keyed_by_default != "avro":
            raise InvalidValue("json, text or int64", message="avro without decode.avro.registry", key="key")
        return self

    @property
    def keyed_by(self) -> KeyFormat:
        """Format of record keys."""
        return self.key or self.keyed_by_default

    @property
    def keyed_by_default(self) -> KeyFormat:
        """Format of record keys if `key` is not set."""
        return "json"

    @property
    def many(self) -> bool:
        """Whether one record can produce several rows."""
        return False

    @property
    def framing(self) -> Framing:
        """Framing of the schema id before the value: `confluent` (magic byte 0 and id), `bare` (id only) or `none`."""
        return "confluent" if getattr(self, "registry", None) is not None else "none"

    @property
    def typed(self) -> bool:
        """Whether a value carries its type name."""
        return self.framing != "none"


class JsonFormat(Format):
    """JSON; each object is a row."""

    rows: Literal["object", "array", "lines"] = Field(
        default="object",
        description="Content of a record: one `object`, an `array` of objects, or `lines` (newline-delimited "
        "objects). A record is written completely or becomes a dead letter.",
    )
    compression: Literal["none", "gzip", "zstd", "lz4", "snappy"] = Field(
        default="none", description="Compression of the value; `lz4` is the frame format, `snappy` the raw format."
    )

    registry: RegistryAt | None = Field(
        default=None,
        description="Schema registry for values in the Confluent wire format, as a URL or a mapping. Fields, "
        "required fields and the type name come from the JSON Schema.",
    )
    envelope: _Envelope = Field(
        default="none",
        description="Envelope around the row: a `debezium` change event (with or without its schema part), a "
        "`rivven` event or change (as the four columns of Rivven's sink), a Rivven change event "
        "unwrapped to its row (`rivven_changes`), or a structured-mode `cloudevents` event.",
    )

    @property
    def many(self) -> bool:
        """Whether one record can produce several rows."""
        return self.rows != "object"

    @property
    def typed(self) -> bool:
        """Whether a value carries its type name."""
        return self.framing != "none" or self.envelope == "cloudevents"


class AvroFormat(Format):
    """Avro binary encoding; exactly one of `registry`, `schema`, `single_object` and `container` is required."""

    registry: RegistryAt | None = Field(
        default=None, description="Schema registry for values in the Confluent wire format."
    )
    schema_: LocalPath | None = Field(
        default=None,
        alias="schema",
        description="Schema file (`.avsc`) that all records were written with; values have no header.",
    )
    single_object: LocalPath | None = Field(
        default=None,
        description="Schema file, or directory of schema files (`*.avsc`), for Avro single-object encoding.",
    )
    container: Flag = Field(
        default=False,
        description="Each value is an Avro object container file. Its records are written completely or the "
        "value becomes a dead letter.",
    )
    envelope: Literal["none", "debezium"] = Field(
        default="none",
        description="Envelope around the row: a `debezium` change event. Not supported with `container`.",
    )
    type_name: Literal["full", "short"] = Field(
        default="full",
        description="Type name of a record for `route.by: type`: its `full` name, or `short` without the namespace. "
        "Types of two namespaces with the same short name are written to one table.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> AvroFormat:
        options = {"registry": self.registry, "schema": self.schema_, "single_object": self.single_object}
        keys = [key for key, value in {**options, "container": self.container or None}.items() if value is not None]
        if len(keys) != 1:
            expected = "exactly one of registry, schema, single_object and container: true"
            raise InvalidValue(expected, message=f"{' and '.join(keys)} together" if keys else "none of them")
        if self.container and self.envelope != "none":
            raise InvalidValue("none", message="an envelope with container: true", key="envelope")
        return self

    @property
    def many(self) -> bool:
        """Whether one record can produce several rows."""
        return self.container

    @property
    def keyed_by_default(self) -> KeyFormat:
        """Same as for values: producers usually configure one serializer for both."""
        return "avro" if self.registry else "json"

    @property
    def typed(self) -> bool:
        """Whether a value carries its type name, which is the full name of the Avro record."""
        return not self.container and self.envelope == "none"


class StringFormat(Format):
    """UTF-8 text in the column `data`."""


class Int64Format(Format):
    """64-bit big-endian integer in the column `value`."""

    text: Flag = Field(default=False, description="Parse the value as decimal text instead.")


class BytesFormat(Format):
    """Arbitrary bytes: base64 text in the column `data`, length in bytes in the column `size`."""


class NumberFormat(Format):
    """JSON number in the column `value`."""


class RawFormat(Format):
    """Arbitrary bytes, unchanged, in the binary column `data`."""


class ProtobufFormat(Format):
    """Protobuf messages, described by a schema registry or a schema file."""

    registry: RegistryAt | None = Field(
        default=None, description="Schema registry for values in the Confluent wire format."
    )
    descriptor: LocalPath | None = Field(
        default=None,
        description="`.proto` file, or descriptor set that includes its imports; values are plain messages.",
    )
    message: str | None = Field(
        default=None, min_length=1, description="Full name of the message type in `descriptor`, such as `shop.Order`."
    )
    keep_unknown_fields: Flag = Field(
        default=False,
        description="Store fields that are not in the schema, in wire format, in the binary column `_unknown`.",
    )
    allow_empty: Flag = Field(
        default=False,
        description="Decode an empty value as a message of default values instead of rejecting it (`empty`).",
    )
    flatten: Flag = Field(
        default=False,
        description="Make the fields of nested messages fields of the record: `a.b` becomes `a_b`. Arrays and maps are "
        "not changed.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> ProtobufFormat:
        exactly_one(self, "registry", "descriptor")
        if (self.descriptor is None) != (self.message is None):
            raise InvalidValue("both descriptor and message", message="only one of them", key="message")
        return self

    @property
    def typed(self) -> bool:
        """Whether a value carries its type name."""
        return True


class MsgpackFormat(Format):
    """MessagePack after a schema id (four bytes, big-endian): a map, or an array in schema order."""

    schemas: LocalPath | None = Field(
        default=None, description="JSON file that maps ids to schemas, or directory of schema files (`*.json`)."
    )
    registry: SchemaServerAt | None = Field(
        default=None, description="HTTP server that returns the schema with id `<id>` at `<url>/<id>`."
    )

    @model_validator(mode="after")
    def _check_keys(self) -> MsgpackFormat:
        exactly_one(self, "schemas", "registry")
        return self

    @property
    def framing(self) -> Framing:
        """Framing of the schema id before the value."""
        return "bare"

    @property
    def typed(self) -> bool:
        """Whether a value carries its type name."""
        return True


class OtlpFormat(Format):
    """OTLP export requests in Protobuf: each span, log record or metric data point is a row."""

    signal: Annotated[Signal | Mapping[str, Signal] | None, Shorthand(enum=list(SIGNALS))] = Field(
        default=None,
        description="Signal of all topics, or of each topic (`{my_spans: traces}`). Default: `traces`, `metrics` and "
        "`logs` for topics of these names, and for `otlp_spans`, `otlp_metrics` and `otlp_logs`.",
    )
    layout: OtlpLayout = Field(
        default="flat",
        description="Columns of the rows: `flat`, `zerobus` (the nested columns of Lakeflow Zerobus) or `telemetry` "
        "(the columns of an OpenTelemetry bridge, the same for all signals).",
    )
    attributes: Attributes = Field(
        default="map",
        description="Type of columns with attributes: `map` (`map<string,string>`) or `json` (JSON text, which keeps "
        "the types of values).",
    )
    columns: Mapping[str, str] = Field(
        default_factory=dict,
        description="Additional columns with the text of one attribute each, as `{column: attribute}`: of the record, "
        "otherwise of its scope, otherwise of its resource.",
    )

    @property
    def many(self) -> bool:
        """Whether one record can produce several rows."""
        return True

    def signal_of(self, topic: str) -> Signal | None:
        """Signal of a topic; None if it is unknown."""
        if isinstance(self.signal, str):
            return self.signal
        return (self.signal or {}).get(topic) or _SIGNAL_TOPICS.get(topic)


class Decode(SpecModel):
    """Format of record values; exactly one key. A format name alone selects its defaults."""

    json_: JsonFormat | None = Field(default=None, alias="json", description="JSON objects.")
    avro: AvroFormat | None = Field(default=None, description="Avro records.")
    string: StringFormat | None = Field(default=None, description="UTF-8 text in `data`.")
    int64: Int64Format | None = Field(default=None, description="64-bit big-endian integer in `value`.")
    bytes: BytesFormat | None = Field(
        default=None, description="Arbitrary bytes: base64 text in `data`, length in `size`."
    )
    number: NumberFormat | None = Field(default=None, description="JSON number in `value`.")
    raw: RawFormat | None = Field(default=None, description="Arbitrary bytes, unchanged, in `data`.")
    protobuf: ProtobufFormat | None = Field(default=None, description="Protobuf messages.")
    msgpack: MsgpackFormat | None = Field(default=None, description="MessagePack messages after a schema id.")
    otlp: OtlpFormat | None = Field(default=None, description="OTLP export requests in Protobuf.")

    @model_validator(mode="after")
    def _check_keys(self) -> Decode:
        if len(formats := self._formats()) > 1:
            raise InvalidValue("one format", message=f"{' and '.join(formats)} together")
        return self

    def _formats(self) -> dict[str, Format]:
        formats = {key: getattr(self, "json_" if key == "json" else key) for key in model_keys(type(self))}
        return {key: options for key, options in formats.items() if options is not None}

    @property
    def format(self) -> str:
        """Name of the format."""
        return next(iter(self._formats()), "json")

    @property
    def options(self) -> Format:
        """Options of the format."""
        return next(iter(self._formats().values()), JsonFormat())

    @property
    def tombstone(self) -> Tombstone | None:
        """Handling of null values; None: depends on the write mode of the table."""
        return self.options.tombstone

    @property
    def changes(self) -> bool:
        """Whether records are change events that carry their operation."""
        return getattr(self.options, "envelope", "none") in CHANGES


FORMATS = tuple(model_keys(Decode))
CHANGES = frozenset({"debezium", "rivven_changes"})  # envelopes whose `_op` says what happened to the row


def expand_format_name(value: Any) -> Any:
    """Expand a format name to a mapping with default options."""
    return {value: {}} if isinstance(value, str) else value
