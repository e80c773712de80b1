"""Deterministic sample events of three types, with a ratio of malformed ones; for the demo, tests and benchmarks."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_COUNTRIES = ("DE", "FR", "PT", "JP", "BR", "US", "IN", "KE")
_PLANS = ("free", "team", "business")
_PATHS = ("/", "/pricing", "/docs/guide", "/docs/spec", "/blog/first-light", "/account", "/cart", "/search")
_TAGS = ("new", "mobile", "beta", "campaign-7", "returning", "eu", "night")
KINDS = ("page_view", "purchase", "signup")


@dataclass(frozen=True)
class Event:
    """One record as a producer would send it."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp: datetime
    bad: bool


def event(seed: int, partition: int, offset: int, bad: float = 0.0) -> Event:
    """The event at an offset; equal arguments give equal bytes."""
    rng = random.Random(f"{seed}/{partition}/{offset}")  # noqa: S311
    at = _EPOCH + timedelta(milliseconds=offset * 37 + rng.randrange(37))
    session = f"{rng.getrandbits(48):012x}"
    headers = (("trace", f"{rng.getrandbits(64):016x}".encode()),)
    body = _body(rng, partition, offset, at, session)
    if rng.random() < bad:
        return Event(session.encode(), _malformed(rng, body), headers, at, True)
    return Event(session.encode(), _dump(body), headers, at, False)


def events(seed: int, partition: int, start: int, until: int, bad: float = 0.0) -> Iterator[Event]:
    """The events of a range."""
    return (event(seed, partition, offset, bad) for offset in range(start, until))


def _body(rng: random.Random, partition: int, offset: int, at: datetime, session: str) -> dict[str, Any]:
    kind = KINDS[0] if rng.random() < 0.8 else rng.choice(KINDS[1:])
    common = {
        "id": offset * 64 + partition,
        "type": kind,
        "occurred_at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "session": session,
        "user": {"id": rng.randrange(10**9), "country": rng.choice(_COUNTRIES), "plan": rng.choice(_PLANS)},
        "path": rng.choice(_PATHS),
        "tags": rng.sample(_TAGS, rng.randrange(1, 4)),
    }
    if kind == "page_view":
        return {**common, "status": rng.choice((200, 200, 200, 304, 404, 500)), "ms": round(rng.uniform(1, 900), 3)}
    if kind == "purchase":
        return {**common, "amount": round(rng.uniform(1, 500), 2), "items": rng.randrange(1, 9)}
    return {**common, "referrer": rng.choice(("search", "friend", "ad")), "newsletter": rng.random() < 0.3}


def _dump(body: dict[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _malformed(rng: random.Random, body: dict[str, Any]) -> bytes:
    """A malformed value, as real producers send them."""
    good = _dump(body)
    return rng.choice(
        (
            good[: rng.randrange(1, len(good))],
            good[:-1] + b",}",
            good + b" {}",
            b"",
            b"[1, 2]",
            b"\xff\xfe" + good,
            _dump({**body, "id": "not a number"}),
            _dump({**body, "id": 2**63}),
            good[:-1] + b',"id":1}',
            _dump({**body, "user": "nobody"}),
        )
    )


def bench_event(seed: int, offset: int) -> bytes:
    """An event of about 320 bytes: 11 fields, a nested struct and an array; the input of `make bench`."""
    rng = random.Random(f"{seed}/{offset}")  # noqa: S311
    return _dump(
        {
            "id": offset,
            "event_type": rng.choice(KINDS),
            "timestamp": (_EPOCH + timedelta(milliseconds=offset)).isoformat(timespec="milliseconds"),
            "session_id": f"{rng.getrandbits(96):024x}",
            "user": {"id": rng.randrange(10**9), "country": rng.choice(_COUNTRIES), "plan": rng.choice(_PLANS)},
            "url": f"https://shop.example/{rng.choice(_PATHS)}/{rng.getrandbits(32):08x}",
            "status": rng.choice((200, 301, 404, 500)),
            "duration_ms": round(rng.uniform(1, 900), 3),
            "amount": round(rng.uniform(0, 500), 2),
            "tags": rng.sample(_TAGS, 3),
            "ok": rng.random() < 0.9,
        }
    )
