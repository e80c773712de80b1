"""Decode: bytes into typed columns, or a reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from headrace.decode.contract import Decoded, Decoder, Limits, NewField, Rejects, Tombstone
from headrace.decode.json import json_decoder
from headrace.errors import UsageError

__all__ = ["FORMATS", "Decoded", "Decoder", "Limits", "NewField", "Rejects", "Tombstone", "decoder"]

Factory = Callable[[pa.Schema, NewField, Limits], Decoder]

# Every format by its name in a spec; a new one is one file and one line.
FORMATS: Mapping[str, Factory] = {
    "json": json_decoder,
}


def decoder(
    format: str,
    payload: pa.Schema,
    *,
    new_field: NewField = "ignore",
    limits: Limits | None = None,
    tombstone: Tombstone = "dead_letter",
) -> Decoder:
    """A format's decoder for a payload schema; null values are rejects whatever `tombstone` will make of them."""
    if format not in FORMATS:
        raise UsageError(f"'{format}' is not a format.", next=f"Known formats: {', '.join(FORMATS)}.")
    return FORMATS[format](payload, new_field, limits or Limits())
