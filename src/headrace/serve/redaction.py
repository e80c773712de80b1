"""Secrets never leave the process in events: their values are replaced in every text."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from headrace.errors import HeadraceError
from headrace.pipeline.events import Report
from headrace.serve.access import tokens_from
from headrace.spec import Spec
from headrace.spec.secrets import Secret

REDACTED = "[redacted]"
_SHORTEST = 6  # characters: shorter values occur in texts by chance
_VARIABLES = ("HEADRACE_WEBHOOK", "HEADRACE_WEBHOOK_TOKEN", "HEADRACE_TRACES_TOKEN", "HEADRACE_LINEAGE_TOKEN")


class Redaction:
    """Replaces the secrets of specs, and the tokens of the endpoint and of what is posted to other systems."""

    def __init__(self, specs: Iterable[Spec] = ()) -> None:
        self._values = {value for name in _VARIABLES if len(value := os.environ.get(name, "").strip()) >= _SHORTEST}
        self._note(())
        with suppress(HeadraceError):  # reported where the endpoint is opened
            self._note(tokens_from(os.environ).values())
        for spec in specs:
            self.add(spec)

    def add(self, spec: Spec) -> None:
        """Replace the secrets of this spec too."""
        self._note(_secrets(spec))

    def text(self, text: str) -> str:
        """A text without secrets."""
        return self._pattern.sub(REDACTED, text) if self._values else text

    def value(self, value: Any) -> Any:
        """A JSON value whose texts have no secrets; keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(each) for key, each in value.items()}
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.value(each) for each in value]
        return value

    def of(self, report: Report) -> Report:
        """Report events without secrets to `report`."""
        return lambda event: report(self.value(event))

    def _note(self, secrets: Iterable[Secret]) -> None:
        for secret in secrets:
            with suppress(HeadraceError):  # a missing variable or file is reported where it is needed
                value = secret.reveal().strip()
                self._values |= {each for each in (value, *value.splitlines()) if len(each) >= _SHORTEST}
        ordered = sorted(self._values, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)))


def _secrets(value: Any) -> Iterator[Secret]:
    """All secrets of a spec."""
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, BaseModel):
        for each in vars(value).values():
            yield from _secrets(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _secrets(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _secrets(each)
