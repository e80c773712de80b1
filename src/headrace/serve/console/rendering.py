"""Templates of the console, rendered with escaping and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from headrace.errors import plural
from headrace.serve.access import Role
from headrace.serve.console import text
from headrace.serve.redaction import Redaction
from headrace.version import VERSION


@dataclass(frozen=True, slots=True)
class Visit:
    """A request for a page: who asks for what."""

    role: Role | None
    address: str  # of the client
    url: str  # path and query
    params: Mapping[str, str] = field(default_factory=dict)  # of the path
    query: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    has_session: bool = False
    part: str = ""  # the part of the page that a script replaces; empty: the whole page

    @property
    def is_operator(self) -> bool:
        """Whether the visitor may change something and see raw records."""
        return self.role is Role.OPERATOR

    def param(self, name: str) -> str:
        """A parameter of the path."""
        return self.params.get(name, "")

    def number(self, name: str) -> int | None:
        """A number in the query; None if it is missing or invalid."""
        value = self.query.get(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None


@dataclass(frozen=True, slots=True)
class Page:
    """A page: a template and its values."""

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


class Templates:
    """Renders pages; the values of secrets are replaced in every text."""

    def __init__(self, redaction: Redaction) -> None:
        self._environment = Environment(
            loader=PackageLoader("headrace.serve.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            finalize=lambda value: _redacted(redaction, value),
        )
        self._environment.filters |= {
            "number": text.number_text,
            "size": text.size_text,
            "moment": text.moment_text,
            "age": text.age_text,
            "printable": text.printable,
            "segment": lambda value: quote(str(value), safe=""),
            "iso": lambda value: value.isoformat() if isinstance(value, datetime) else "",
        }
        self._environment.globals |= {"plural": plural, "version": VERSION}

    def render(self, page: Page, visit: Visit, **values: Any) -> str:
        """The HTML of a page."""
        template = self._environment.get_template(page.template)
        return template.render(page=page, visit=visit, **page.values, **values)


def _redacted(redaction: Redaction, value: Any) -> Any:
    # HTML is of macros, which redact their texts.
    is_text = isinstance(value, str) and not hasattr(value, "__html__")
    return redaction.text(value) if is_text else value
