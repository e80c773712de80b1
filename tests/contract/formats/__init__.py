"""What the contract suite must know of each format: a schema, good values, and poison with its one reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.decode import Decoder, Limits, decoder
from headrace.reasons import Reason
from headrace.spec import Decode

Poison = list[tuple[bytes | None, Reason]]


@dataclass(frozen=True)
class Case:
    """One format with one set of options."""

    format: str
    schema: pa.Schema
    good: Callable[[int], bytes]
    poison: Poison
    options: Mapping[str, Any] = field(default_factory=dict)
    truncated: frozenset[Reason] | None = frozenset({Reason.EMPTY, Reason.MALFORMED})  # None: a part is a value, too
    alphabet: bytes = bytes(range(256))  # what a changed byte may become
    peeked: tuple[str, str] = ("id", "1")  # a path and what good(1) has there

    def decoder(self, payload: pa.Schema | None = None, limits: Limits | None = None) -> Decoder:
        """A new decoder of the case."""
        options = Decode.model_validate({self.format: dict(self.options)}).options
        return decoder(self.format, self.schema if payload is None else payload, limits=limits, options=options)
