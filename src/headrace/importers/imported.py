"""Result of an import: specs, and what they could not take over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from headrace.importers.settings import NOWHERE, Findings, Place, Setting
from headrace.importers.spec_draft import SpecDraft
from headrace.spec.diagnostics import Diagnostic
from headrace.spec.units import spell_duration


@dataclass
class Imported:
    """Specs of an imported configuration, in order, and the findings."""

    system: str
    origin: str  # file, `environment` or `arguments`
    drafts: list[SpecDraft]
    findings: Findings
    settings: Mapping[str, Setting] = field(default_factory=dict, repr=False)  # of kafka-delta-ingest, by flag

    def is_complete(self) -> bool:
        """Whether every key is honoured, and nothing is assumed."""
        return not (self.findings.not_honoured or self.findings.assumptions)

    def diagnostics(self) -> list[Diagnostic]:
        """Errors, and warnings about what is not taken over. An assumed value is an error: nothing runs on it."""
        findings = self.findings
        texts = [(each.name, each.place, each.reason, each.advice) for each in findings.not_honoured]
        advice = "Use a reference to a variable, or `headrace import`"
        texts += [(each.name, each.place, "a secret in plain text", advice) for each in findings.secrets]
        warnings = [_diagnostic(*text, severity="warning") for text in texts]
        assumed = [
            _diagnostic(each.name, each.place, each.reason, "the key in this file") for each in findings.assumptions
        ]
        return [*findings.errors, *assumed, *warnings]

    def text(self) -> str:
        """Specs as YAML, with the findings as comments."""
        documents = [draft.text() for draft in self.drafts]
        return "".join(f"{line}\n" for line in self._comments()) + "---\n".join(documents)

    def _comments(self) -> Iterator[str]:
        findings = self.findings
        yield f"# Imported from {self.origin} ({self.system})."
        if findings.run_options:
            yield f"# Run with: headrace run SPEC {' '.join(findings.run_options)}"
        if findings.overrides:
            yield f"# Overridden by environment variables: {', '.join(sorted(findings.overrides))}."
        yield from _listed("Without a key:", map(str, findings.fulfilled))
        yield from _listed("Not honoured:", map(str, findings.not_honoured))
        yield from _listed("Assumed; check these values:", map(str, findings.assumptions))
        yield from _listed("Secrets:", map(str, findings.secrets))


def _listed(title: str, lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not number:
            yield f"# {title}"
        yield f"#   {' '.join(line.split())}"


def pipeline_name(text: str) -> str:
    """Name of a pipeline from another name: lower-case letters, digits, `_` and `-`."""
    name = re.sub(r"[^a-z0-9_]+", "-", text.lower()).strip("-_")[:63]
    return name.rstrip("-_") or "imported"


def spell_milliseconds(milliseconds: int) -> str:
    """Duration in spec notation."""
    return spell_duration(timedelta(milliseconds=milliseconds))


def _diagnostic(
    name: str, place: Place, reason: str, advice: str, severity: Literal["error", "warning"] = "error"
) -> Diagnostic:
    spot = place.spot or NOWHERE
    message = f"{reason}. {advice}" if advice and severity == "warning" else reason
    expected = advice if severity == "error" else ""
    return Diagnostic(place.file, spot.line, spot.column, name, message, expected, severity=severity)
