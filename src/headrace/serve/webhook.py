"""Webhook: each change of the state of a pipeline as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any


def state_json(event: Mapping[str, Any]) -> bytes | None:
    """A `state` event with its time; None for the others."""
    if event["event"] != "state":
        return None
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({**event, "time": at}, default=str).encode()
