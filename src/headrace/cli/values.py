"""Values of records and rows as text and as JSON."""

from __future__ import annotations

import json
from datetime import date
from typing import Any


def cell(value: Any) -> str:
    """Value as a single printable line: control characters are escaped, bytes shown as text if they are UTF-8."""
    text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else cell_text(value)
    text = json.dumps(value, default=cell_text, ensure_ascii=False) if isinstance(value, dict | list) else text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def cell_text(value: object) -> str:
    """Text form of values that JSON cannot represent; timestamps as RFC 3339."""
    return value.isoformat() if isinstance(value, date) else str(value)


def utf8_text(data: bytes) -> str | None:
    """Bytes as text; None if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def readable_value(value: Any) -> Any:
    """Bytes as text if they are UTF-8, otherwise as hex."""
    if isinstance(value, bytes):
        text = utf8_text(value)
        return {"hex": value.hex()} if text is None else text
    if isinstance(value, list):
        return [readable_value(item) for item in value]
    return {key: readable_value(item) for key, item in value.items()} if isinstance(value, dict) else value
