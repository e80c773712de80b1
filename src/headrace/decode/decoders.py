"""Decoders by format: bytes to typed columns or a reason for rejection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pyarrow as pa

from headrace.decode.base import LIMITS, Decoded, DecodeLimits, Decoder, NewField, Rejects, TypedDecoder, fills_of
from headrace.decode.payload_field import payload_fields
from headrace.errors import UsageError
from headrace.spec.decode import Decode, Format

__all__ = [
    "FORMATS",
    "DecodeLimits",
    "Decoded",
    "Decoder",
    "NewField",
    "Rejects",
    "TypedDecoder",
    "decoder",
    "fills_of",
]

Factory = Callable[[pa.Schema, NewField, DecodeLimits, Any], Decoder]

# The module of each format, by its name in a spec; imported when it is first used. To add a format, write its factory
# (`json_decoder` for `json`) and add a line here.
FORMATS: Mapping[str, str] = {
    "json": "headrace.decode.json.decoder",
    "avro": "headrace.decode.avro.decoder",
    "string": "headrace.decode.plain",
    "int64": "headrace.decode.plain",
    "bytes": "headrace.decode.plain",
    "number": "headrace.decode.plain",
    "raw": "headrace.decode.plain",
    "protobuf": "headrace.decode.protobuf.decoder",
    "msgpack": "headrace.decode.msgpack.decoder",
    "otlp": "headrace.decode.otlp.decoder",
}


def decoder(
    format: str,
    payload: pa.Schema,
    *,
    new_field: NewField = "ignore",
    limits: DecodeLimits | None = None,
    options: Format | None = None,
) -> Decoder:
    """Make the decoder of a format for a payload schema; null values are always rejects."""
    if format not in FORMATS:
        raise UsageError(f"'{format}' is not a format.", hint=f"Known formats: {', '.join(FORMATS)}.")
    if new_field == "rescue" and not any(item.rescue for item in payload_fields(payload)):
        raise UsageError("new_field cannot be 'rescue' without a column for rescued values.")
    settings = options or Decode.model_validate({format: {}}).options
    factory: Factory = getattr(import_module(FORMATS[format]), f"{format}_decoder")
    return factory(payload, new_field, limits or LIMITS, settings)
