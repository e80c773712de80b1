"""References to what a spec must not hold itself: `${env:NAME}` and `${file:path}`; secrets never print."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from headrace.errors import UsageError

LARGEST = 64 * 1024

_ANY = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_ONE = re.compile(r"\$\{(env:[A-Za-z_][A-Za-z0-9_]*|file:[^}\x00]+)\}")


class BadReference(UsageError):
    """A reference that is none, or that leads nowhere."""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A reference to a secret, followed only by `reveal`; printing it shows where it is, never what it is."""

    reference: str
    base: Path

    def __post_init__(self) -> None:
        if not is_reference(self.reference):
            raise ValueError("only a reference, ${env:NAME} or ${file:path}; a secret is never in the spec itself")

    def reveal(self) -> str:
        """The secret itself, read now (so a rotated one is seen); BadReference when there is none."""
        return resolve_reference(self.reference, self.base)

    def is_open(self) -> bool:
        """Whether it is in a file that everybody may read."""
        name = self.reference.removeprefix("${file:").removesuffix("}")
        return name != self.reference.removesuffix("}") and bool((self.base / name).stat().st_mode & 0o004)

    def __repr__(self) -> str:
        return f"Secret({self.reference})"

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _next: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(
            _secret, serialization=core_schema.plain_serializer_function_ser_schema(lambda secret: secret.reference)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _core: CoreSchema, _next: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^\$\{(env:[A-Za-z_][A-Za-z0-9_]*|file:[^}]+)\}$"}


def _secret(value: Any, info: ValidationInfo) -> Secret:
    if isinstance(value, Secret):
        return value
    return Secret(value if isinstance(value, str) else "", base_of(info))


def base_of(info: ValidationInfo) -> Path:
    """The folder that relative paths of the spec start from."""
    return Path((info.context or {}).get("base", "")).absolute()


def is_reference(text: str) -> bool:
    """Whether a text is one reference and nothing else."""
    return _ONE.fullmatch(text) is not None


def resolve_reference(text: str, base: Path) -> str:
    """A text with its references followed once (what they bring is not looked at again); `$${` stands for `${`."""
    return _ANY.sub(lambda found: "${" if found[1] is None else _follow(found[0], found[1], base), text)


def _follow(reference: str, inner: str, base: Path) -> str:
    if not is_reference(reference):
        raise BadReference(f"'{reference}' is not a reference.", hint="Write ${env:NAME} or ${file:path}.")
    kind, _, name = inner.partition(":")
    return _variable(name) if kind == "env" else _file(base / name)


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise BadReference(f"The environment has no variable {name}.", hint=f"Set {name}.")
    if len(value) > LARGEST:
        raise BadReference(f"The variable {name} holds more than 64 KiB.")
    return value


def _file(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise BadReference(f"{path} is not a plain file.")  # a pipe or a device could keep us for ever
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise BadReference(f"The file {path} is larger than 64 KiB.")
        return content.decode().rstrip("\r\n")  # editors end the last line; no secret does
    except OSError as trouble:
        raise BadReference(f"The file {path} cannot be read: {trouble.strerror}.") from None
    except UnicodeDecodeError:
        # The decoder's own message would quote the content.
        raise BadReference(f"The file {path} is not UTF-8 text.") from None
