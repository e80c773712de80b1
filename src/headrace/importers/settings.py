"""Settings of an imported configuration: values with their places, and the keys that a section may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.spec.diagnostics import Diagnostic, closest
from headrace.spec.yaml_reader import Spot, YamlNode

NOWHERE = Spot(0, 0)  # environment variables and arguments have no lines
Kind = Literal["text", "integer", "flag", "texts", "section", "sections", "anything"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a setting is written. Environment variables and arguments have no line."""

    file: str
    spot: Spot | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.spot.line}" if self.spot else self.file


@dataclass(frozen=True, slots=True)
class Setting:
    """Value of a key as written, or the default of the other system."""

    name: str
    value: Any
    place: Place
    is_set: bool = True

    def as_value(self, value: Any) -> Setting:
        """The same setting with its value in the notation of a spec."""
        return replace(self, value=value)


@dataclass(frozen=True, slots=True)
class Key:
    """Key of another system: its type, its default, and why Headrace does not honour it if it does not."""

    kind: Kind = "text"
    default: Any = None
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 2**63 - 1
    reason: str = ""
    advice: str = ""


@dataclass(frozen=True, slots=True)
class NotHonoured:
    """Key without an equal one in the spec: why, and what to do instead."""

    name: str
    place: Place
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.place}: {self.name}: {self.reason}.{f' {self.advice}.' if self.advice else ''}"

    def fields(self) -> dict[str, str | int | None]:
        """JSON representation."""
        line = self.place.spot.line if self.place.spot else None
        return {
            "key": self.name,
            "file": self.place.file,
            "line": line,
            "reason": self.reason,
            "advice": self.advice,
        }


@dataclass(frozen=True, slots=True)
class LiteralSecret:
    """Secret that the configuration has as plain text, and the variable that the spec refers to instead."""

    variable: str
    name: str
    place: Place
    value: str = field(repr=False)

    def __str__(self) -> str:
        return (
            f"{self.place}: {self.name}: a secret in plain text; the spec refers to it as ${{env:{self.variable}}}. "
            f"Set {self.variable} to it."
        )


@dataclass
class Findings:
    """What an importer reports besides the spec."""

    errors: list[Diagnostic] = field(default_factory=list)
    not_honoured: list[NotHonoured] = field(default_factory=list)
    assumptions: list[NotHonoured] = field(default_factory=list)  # values that the configuration lacks
    secrets: list[LiteralSecret] = field(default_factory=list)
    fulfilled: list[NotHonoured] = field(default_factory=list)  # keys that need no key of a spec
    overrides: list[str] = field(default_factory=list)  # environment variables that were used
    run_options: list[str] = field(default_factory=list)  # of `headrace run`, for keys that are no part of a spec

    def names(self) -> set[str]:
        """Names of all keys that are reported."""
        reported = {each.name for each in (*self.not_honoured, *self.assumptions, *self.fulfilled)}
        return reported | {secret.name for secret in self.secrets} | {error.key for error in self.errors}

    def error(self, place: Place, name: str, message: str, expected: str = "", suggestion: str = "") -> None:
        """Report an error at a key."""
        spot = place.spot or NOWHERE
        self.errors.append(Diagnostic(place.file, spot.line, spot.column, name, message, expected, suggestion))

    def skip(self, setting: Setting, reason: str, advice: str = "") -> None:
        """Report a key that is not honoured; defaults are not reported."""
        if setting.is_set:
            self.not_honoured.append(NotHonoured(setting.name, setting.place, reason, advice))

    def fulfill(self, setting: Setting, reason: str) -> None:
        """Report a key that needs none in a spec, because Headrace always does what it says."""
        if setting.is_set:
            self.fulfilled.append(NotHonoured(setting.name, setting.place, reason))

    def assume(self, name: str, place: Place, reason: str, advice: str = "") -> None:
        """Report a value that the configuration lacks and the spec requires."""
        self.assumptions.append(NotHonoured(name, place, reason, advice))

    def secret(self, setting: Setting, variable: str) -> Setting:
        """Replace a secret in plain text by a reference; references stay."""
        if is_variable_reference(setting.value):
            return setting
        self.secrets.append(LiteralSecret(variable, setting.name, setting.place, setting.value))
        return setting.as_value(f"${{env:{variable}}}")


def is_variable_reference(text: Any) -> bool:
    """Whether a text is one reference of a spec, and nothing else."""
    return isinstance(text, str) and text.startswith(("${env:", "${file:")) and text.find("}") == len(text) - 1


class Section:
    """Keys of one mapping. Unknown keys and values of another type are errors; keys with a reason are not honoured."""

    def __init__(
        self, name: str, place: Place, entries: Mapping[str, Setting], keys: Mapping[str, Key], findings: Findings
    ) -> None:
        self.name, self.place, self.findings = name, place, findings
        self._keys = keys
        self._entries: dict[str, Setting] = {}
        for key, setting in entries.items():
            if key not in keys:
                findings.error(setting.place, setting.name, "unknown key", ", ".join(keys), closest(key, keys))
            elif message := _misfit(setting.value, keys[key]):
                findings.error(setting.place, setting.name, *message)
            else:
                self._entries[key] = setting.as_value(_plain(setting.value, keys[key]))
                if keys[key].reason:
                    findings.skip(setting, keys[key].reason, keys[key].advice)

    def __contains__(self, key: str) -> bool:
        """Whether a key is set, and valid."""
        return key in self._entries

    def get(self, key: str) -> Setting:
        """A key as written, or the default."""
        name = f"{self.name}.{key}" if self.name else key
        return self._entries.get(key) or Setting(name, self._keys[key].default, self.place, is_set=False)

    def required(self, key: str, message: str = "") -> Setting:
        """A key as written; an error, and an empty value, if it is missing or empty."""
        setting = self.get(key)
        if not setting.value and not isinstance(setting.value, bool):
            self.findings.error(setting.place, setting.name, message or "required key is missing")
        return setting

    def section(self, key: str, keys: Mapping[str, Key]) -> Section:
        """A section in this one; empty if it is missing."""
        setting = self.get(key)
        return section_of(setting.value, setting.name, setting.place, keys, self.findings)

    def sections(self, key: str, keys: Mapping[str, Key]) -> list[Section]:
        """A list of sections, or the sections of a mapping, in this one."""
        setting = self.get(key)
        content = setting.value.content if isinstance(setting.value, YamlNode) else None
        return [
            section_of(node, f"{setting.name}[{index}]", Place(self.place.file, node.spot), keys, self.findings)
            for index, node in enumerate(content if isinstance(content, tuple) else ())
        ]

    def named_sections(self, key: str, keys: Mapping[str, Key]) -> Iterator[tuple[str, Section]]:
        """The sections of a mapping, by name."""
        setting = self.get(key)
        content = setting.value.content if isinstance(setting.value, YamlNode) else None
        for name, (spot, node) in content.items() if isinstance(content, Mapping) else ():
            yield name, section_of(node, f"{setting.name}.{name}", Place(self.place.file, spot), keys, self.findings)

    def texts(self, key: str) -> list[Setting]:
        """Items of a list, each with its place."""
        setting = self.get(key)
        if not isinstance(setting.value, YamlNode):
            return [setting.as_value(item) for item in setting.value or ()]
        nodes = setting.value.content if isinstance(setting.value.content, tuple) else (setting.value,)
        return [
            Setting(f"{setting.name}[{index}]", str(node.content), Place(self.place.file, node.spot))
            for index, node in enumerate(nodes)
        ]

    def skip(self, key: str, reason: str, advice: str = "") -> None:
        """Report a key as not honoured if it is set."""
        self.findings.skip(self.get(key), reason, advice)


def section_of(node: Any, name: str, place: Place, keys: Mapping[str, Key], findings: Findings) -> Section:
    """Section of a file, from its node."""
    entries = {}
    if isinstance(node, YamlNode) and isinstance(node.content, Mapping):
        for key, (spot, inner) in node.content.items():
            entries[key] = Setting(f"{name}.{key}" if name else key, inner, Place(place.file, spot))
    elif isinstance(node, YamlNode) and node.content is not None:
        findings.error(place, name, "not a section", f"a section with {', '.join(keys)}")
    return Section(name, place, entries, keys, findings)


def _plain(value: Any, key: Key) -> Any:
    """Plain value; nodes of sections and lists are kept for their places."""
    if key.kind in ("section", "sections", "texts") and isinstance(value, YamlNode):
        return value
    value = value.plain() if isinstance(value, YamlNode) else value
    if key.kind == "integer" and isinstance(value, str):
        return int(value)
    return value.strip().lower() not in ("", "0", "false") if key.kind == "flag" and isinstance(value, str) else value


def _misfit(value: Any, key: Key) -> tuple[str, str] | None:
    """What is wrong with a value, and what is expected."""
    is_node = isinstance(value, YamlNode)
    content = value.content if is_node else value
    fits = {
        "text": isinstance(content, str),
        "integer": _is_integer(content, is_node),
        "flag": _is_flag(content, is_node),
        "texts": _is_list_of_texts(content),
        "section": isinstance(content, Mapping) or content is None,
        "sections": isinstance(content, tuple),
        "anything": True,
    }
    if not fits[key.kind]:
        return f"not {_EXPECTED[key.kind]}", _EXPECTED[key.kind]
    if key.kind == "integer" and not key.minimum <= int(content) <= key.maximum:
        return f"{int(content)} is out of range", f"{key.minimum:,} to {key.maximum:,}"
    if key.choices and str(content) not in key.choices:
        return f"unknown value {str(content)[:60]!r}", ", ".join(key.choices)
    return None


_EXPECTED = {
    "text": "text",
    "integer": "an integer",
    "flag": "true or false",
    "texts": "a list of texts",
    "section": "a section",
    "sections": "a list of sections",
    "anything": "a value",
}


def _is_integer(content: Any, is_node: bool) -> bool:
    if isinstance(content, str) and not is_node:  # environment variables and arguments are text
        return content.removeprefix("-").isdecimal()
    return isinstance(content, int) and not isinstance(content, bool)


def _is_flag(content: Any, is_node: bool) -> bool:
    if isinstance(content, str) and not is_node:
        return content.strip().lower() in ("", "0", "1", "false", "true")
    return isinstance(content, bool)


def _is_list_of_texts(content: Any) -> bool:
    items = content if isinstance(content, Sequence) and not isinstance(content, str) else ()
    texts = [item.content if isinstance(item, YamlNode) else item for item in items]
    return isinstance(content, tuple | list) and all(isinstance(text, str) for text in texts)
