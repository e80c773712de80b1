"""Bodies of requests: decompression within limits, and the records in them, as the bytes that were sent."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.decode.base import DecodeLimits
from headrace.decode.unpack import json_elements

_LINES = ("application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines")
_JSON = "application/json"
_SPACE, _BOM = b" \t\r\n", b"\xef\xbb\xbf"
_PREVIEW = 40  # characters of a body in a message


class BadRequest(Exception):
    """A request that is not accepted: a status, an error code and what was seen."""

    def __init__(self, status: int, error: str, message: str) -> None:
        super().__init__(message)
        self.status, self.error, self.message = status, error, message


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of a request."""

    body_bytes: int
    records: int
    record_bytes: int
    depth: int = 64


def plain_body(body: bytes, encoding: str, limits: BodyLimits) -> bytes:
    """The body without its content encoding; BadRequest if it is too large, damaged or of another encoding."""
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in _CODECS:
        message = f"Content-Encoding '{encoding[:_PREVIEW]}' is not supported; send {', '.join(_CODECS)} or none."
        raise BadRequest(415, "encoding", message)
    try:
        plain = _CODECS[name](body, limits.body_bytes)
    except (zlib.error, OSError, ValueError) as error:
        raise BadRequest(400, "encoding", f"The body is not valid {name}: {error}.") from None
    if len(plain) > limits.body_bytes:
        raise too_large(limits)
    return plain


def too_large(limits: BodyLimits) -> BadRequest:
    """The response to a body that is too large."""
    message = f"The body has more than {limits.body_bytes:,} bytes (max_body), after decompression."
    return BadRequest(413, "body_too_large", message)


def _gunzip(body: bytes, most: int) -> bytes:
    """All members of a gzip body, up to one byte more than allowed."""
    plain, rest = b"", body
    while rest:
        member = zlib.decompressobj(wbits=31)
        plain += member.decompress(rest, most + 1 - len(plain))
        if len(plain) > most:
            return plain
        if not member.eof:
            raise ValueError("it ends early")
        rest = member.unused_data
    return plain


def _unzstd(body: bytes, most: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
        plain: bytes = stream.read(most + 1)
    return plain


_CODECS: dict[str, Callable[[bytes, int], bytes]] = {"gzip": _gunzip, "zstd": _unzstd}


def media_type(content_type: str) -> str:
    """The media type without its parameters."""
    return content_type.partition(";")[0].strip().lower()


def split_body(body: bytes, content_type: str, limits: BodyLimits) -> Sequence[bytes]:
    """The records of a body, exactly as sent; BadRequest if there are none, or too many.

    Only arrays are scanned, for the bounds of their elements. Nothing is parsed: the format of the pipeline validates
    records, and invalid ones become dead letters.
    """
    kind = media_type(content_type)
    if kind in _LINES:
        records: Sequence[bytes] = [line for line in map(bytes.strip, body.split(b"\n")) if line]
    elif kind == _JSON or kind.endswith("+json"):
        stripped = body.removeprefix(_BOM).strip(_SPACE)
        records = _elements(stripped, limits) if stripped.startswith(b"[") else [stripped] if stripped else []
    else:
        records = [body] if body else []
    if not records:
        raise BadRequest(400, "no_records", f"The body has no records ({len(body)} bytes, Content-Type '{kind}').")
    if len(records) > limits.records:
        message = f"The body has {len(records):,} records; at most {limits.records:,} are allowed (max_records)."
        raise BadRequest(413, "too_many_records", message)
    return records


def _elements(body: bytes, limits: BodyLimits) -> Sequence[bytes]:
    """The elements of a JSON array."""
    bounds = DecodeLimits(record_bytes=len(body), rows=len(body), depth=limits.depth)
    pieces = json_elements(pa.array([body], pa.binary()), bounds)
    if details := pieces.rejects.detail:
        seen = body[:_PREVIEW].decode(errors="replace")
        raise BadRequest(400, "malformed", f"The body is not a JSON array: {details[0]}. It starts with '{seen}'.")
    elements: list[bytes] = pieces.values.to_pylist()
    return [element.strip(_SPACE) for element in elements]
