"""Masks: SQL expressions that replace values which must not be readable in the table.

The key of a hash is not part of the SQL: it is in a column beside the rows, so that no statement, plan or error shows
it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.decode.payload_field import PayloadField, is_json_text, payload_field
from headrace.engine.duck import literal
from headrace.errors import UsageError
from headrace.spec.secrets import BadReference, Secret
from headrace.spec.types import type_name
from headrace.transform.sql.result_types import sql_type

STARS = "***"
SHORTEST = 16  # minimum bytes of a key
_BLOCK = 64  # block size of SHA-256


@dataclass(frozen=True, slots=True)
class HashMask:
    """HMAC-SHA-256 of the value's text, in hex."""

    key: Secret


@dataclass(frozen=True, slots=True)
class RedactMask:
    """The same text for every value."""

    text: str = STARS


@dataclass(frozen=True, slots=True)
class KeepMask:
    """Characters at one end, stars for the rest; a value that is not longer is all stars."""

    first: int = 0
    last: int = 0


@dataclass(frozen=True, slots=True)
class NullMask:
    """NULL; the column keeps its type."""


Form = HashMask | RedactMask | KeepMask | NullMask
Blocks = Callable[[Secret], tuple[str, str]]  # the columns of a key's pads, inner and outer


def pads(key: Secret) -> tuple[bytes, bytes]:
    """The inner and outer pad of HMAC; raises UsageError if the key is missing or too short."""
    try:
        secret = key.reveal().encode()
    except BadReference as lost:
        raise UsageError(lost.message, hint=lost.hint) from None
    if len(secret) < SHORTEST:
        raise UsageError(
            f"The key of a mask, {key.reference}, has {len(secret)} bytes.",
            hint=f"Use at least {SHORTEST} random bytes: a key that can be guessed reveals the hashed values.",
        )
    block = (hashlib.sha256(secret).digest() if len(secret) > _BLOCK else secret).ljust(_BLOCK, b"\0")
    return bytes(byte ^ 0x36 for byte in block), bytes(byte ^ 0x5C for byte in block)


def masked(sql: str, item: pa.Field, path: Sequence[str], form: Form, blocks: Blocks) -> tuple[str, pa.Field]:
    """SQL and field of a column with the mask over it, or over a nested field.

    UsageError if the mask cannot cover the type: a value is never stored unmasked.
    """
    if not path:
        return _covered(sql, item, form, blocks)
    if not pa.types.is_struct(item.type):
        raise UsageError(
            f"'{item.name}' is {_type_name(item)}, without a field '{path[0]}' to mask.", hint="Mask it as a whole."
        )
    parts, fields = [], []
    for inner in item.type:
        here = f"struct_extract({sql}, {literal(inner.name)})"
        if inner.name.lower() == path[0].lower():
            here, inner = masked(here, inner, path[1:], form, blocks)
        parts.append(f"{literal(inner.name)}: {here}")
        fields.append(inner)
    packed = "{" + ", ".join(parts) + "}"
    return f"CASE WHEN {sql} IS NOT NULL THEN {packed} END", item.with_type(pa.struct(fields))


def _covered(sql: str, item: pa.Field, form: Form, blocks: Blocks) -> tuple[str, pa.Field]:
    match form:
        case NullMask():
            return f"CAST(NULL AS {sql_type(item.type)})", item.with_nullable(True)
        case RedactMask(text):
            masked_sql = f"CASE WHEN {sql} IS NOT NULL THEN {literal(text)} END"
        case KeepMask(first, last):
            masked_sql = _kept(_text(sql, item), first, last)
        case HashMask(key):
            inner, outer = blocks(key)
            masked_sql = f"sha256({outer} || unhex(sha256({inner} || encode({_text(sql, item)}))))"
    masked_type = payload_field(item).masked_type or _type_name(item)
    return masked_sql, PayloadField(item.name, pa.string(), item.nullable, masked_type=masked_type).to_arrow()


def _kept(text: str, first: int, last: int) -> str:
    shown = f"left({text}, {first}) || {literal(STARS)}" if first else f"{literal(STARS)} || right({text}, {last})"
    return f"CASE WHEN length({text}) > {first or last} THEN {shown} WHEN {text} IS NOT NULL THEN {literal(STARS)} END"


def _text(sql: str, item: pa.Field) -> str:
    """SQL for the text of a value: text unchanged, numbers and times as DuckDB writes them, bytes in base64."""
    if is_json_text(item):
        return f"CASE WHEN starts_with({sql}, '\"') THEN json_extract_string({sql}, '$') ELSE {sql} END"
    if pa.types.is_string(item.type):
        return sql
    if pa.types.is_nested(item.type):
        raise UsageError(
            f"'{item.name}' is {_type_name(item)}, which cannot be hashed or cut.",
            hint="Mask its fields (a.b), redact it or set it to null.",
        )
    return f"to_base64({sql})" if pa.types.is_binary(item.type) else f"CAST({sql} AS VARCHAR)"


def _type_name(item: pa.Field) -> str:
    return "json" if is_json_text(item) else type_name(item.type)
