"""What the contract suite must know of each format: a schema, good values, and poison with its one reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.decode.base import DecodeLimits, Decoder
from headrace.decode.decoders import decoder
from headrace.reasons import Reason
from headrace.spec import Decode, Format

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
    peeked: tuple[str, str] | None = ("id", "1")  # a path and what good(1) has there; None: no single value has it

    @property
    def many(self) -> bool:
        """Whether a value may hold many rows."""
        return self._options.many

    @property
    def _options(self) -> Format:
        return Decode.model_validate({self.format: dict(self.options)}).options

    def decoder(self, payload: pa.Schema | None = None, limits: DecodeLimits | None = None) -> Decoder:
        """A new decoder of the case."""
        payload = self.schema if payload is None else payload
        return decoder(self.format, payload, limits=limits, options=self._options)
