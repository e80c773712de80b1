"""Values that are not UTF-8: found together, with the byte that the decoder of one value reports."""

from __future__ import annotations

import random

import pyarrow as pa

from headrace.decode.base import DecodeLimits
from headrace.decode.input import triage
from headrace.decode.json.strict import Parser
from headrace.decode.scalars import UnfitValue

BYTES = [b"a", b"\x7f", b"\xc3\xbc", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80", b"\xed\x9f\xbf", b"\xf4\x8f\xbf\xbf"]
BYTES += [
    b"\xed\xa0\x80",
    b"\xe0\x80\x80",
    b"\xf0\x80\x80\x80",
    b"\xf4\x90\x80\x80",
    b"\xc0\x80",
    b"\xff",
    b"\x80",
    b"\xe2",
]


def _values(rng: random.Random, count: int) -> list[bytes]:
    chosen = (b"".join(rng.choices(BYTES[:7], k=rng.randrange(1, 9))) + rng.choice([b"", *BYTES]) for _ in range(count))
    return [
        *(value + rng.choice([b"", b"x"]) for value in chosen),
        *(rng.randbytes(rng.randrange(1, 9)) for _ in range(count)),
    ]


def _told(value: bytes) -> str | None:
    try:
        Parser.text(value.removeprefix(b"\xef\xbb\xbf"))
    except UnfitValue as unfit:
        return unfit.detail
    return None


def test_the_first_byte_that_is_not_utf_8_is_reported():
    values = [*_values(random.Random(1), 3_000), "\u00fc".encode() * 100 + b"\xff", "\u00fc".encode() * 100]
    _, at, rejects = triage(pa.array(values, pa.binary()), DecodeLimits())
    expected = {nth: detail for nth, value in enumerate(values) if (detail := _told(value))}
    assert 1_000 < len(expected) < len(values) - 1_000
    assert {nth: detail for nth, _, detail in rejects} == expected
    assert at.tolist() == [nth for nth in range(len(values)) if nth not in expected]
