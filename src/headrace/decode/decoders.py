"""Decoders by format: bytes to typed columns or a reason for rejection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from headrace.decode.avro.decoder import avro_decoder
from headrace.decode.base import LIMITS, Decoded, DecodeLimits, Decoder, NewField, Rejects, TypedDecoder, fills_of
from headrace.decode.json.decoder import json_decoder
from headrace.decode.msgpack.decoder import msgpack_decoder
from headrace.decode.payload_field import payload_fields
from headrace.decode.plain import bytes_decoder, int64_decoder, number_decoder, raw_decoder, string_decoder
from headrace.decode.protobuf.decoder import protobuf_decoder
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

# Formats by their name in a spec. To add a format, write its factory and add a line here.
FORMATS: Mapping[str, Factory] = {
    "json": json_decoder,
    "avro": avro_decoder,
    "string": string_decoder,
    "int64": int64_decoder,
    "bytes": bytes_decoder,
    "number": number_decoder,
    "raw": raw_decoder,
    "protobuf": protobuf_decoder,
    "msgpack": msgpack_decoder,
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
    return FORMATS[format](payload, new_field, limits or LIMITS, settings)
