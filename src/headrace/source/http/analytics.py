"""The events of `POST /analytics`: their required fields, and the timestamp that is added."""

from __future__ import annotations

import json
import re
from datetime import datetime
from decimal import Decimal
from typing import Any

from headrace.source.http.body import BadRequest

REQUIRED = ("event_type", "channel", "session_id")


def analytics_event(body: bytes, now: datetime) -> tuple[bytes, str]:
    """The event as a record, and its session; BadRequest without the required fields.

    The record has the bytes of the body. A missing timestamp is added at the end, nothing else is changed.
    """
    try:
        # Text, because `loads` takes bytes in UTF-16 too; Decimal, because an int may have too many digits.
        event = json.loads(body.decode("utf-8-sig"), parse_int=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BadRequest(400, "malformed", f"The body is not valid JSON: {str(error)[:100]}.") from None
    if not isinstance(event, dict):
        raise BadRequest(400, "malformed", "The body is not a JSON object.")
    if not all(event.get(name) for name in REQUIRED):
        raise BadRequest(400, "missing_fields", f"Missing required fields: {', '.join(REQUIRED)}")
    value = body.strip()
    if "timestamp" not in event:
        stamp = now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        value = value[:-1].rstrip() + f',"timestamp":"{stamp}"}}'.encode()
    return value, _session(event["session_id"])


def _session(session: Any) -> str:
    """The session as the key of a record."""
    text = str(session) if isinstance(session, str | Decimal | float) else ""
    if not text or re.search("[\ud800-\udfff]", text):
        raise BadRequest(400, "malformed", "session_id: expected text or a number.")
    return text


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
