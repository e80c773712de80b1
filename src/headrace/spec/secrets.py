"""References to environment variables and files: `${env:NAME}` and `${file:path}`. Secrets are never printed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema

from headrace.errors import UsageError

MAX_BYTES = 64 * 1024

# Secrets that imported configurations have in plain text, with their file, by the variable that their specs refer to.
_provided: dict[str, tuple[str, str]] = {}

_ANY = re.compile(r"\$\$\{|\$\{([^}]*)\}")
_ONE = re.compile(r"\$\{(env:[A-Za-z_][A-Za-z0-9_]*|file:[^}\x00]+)\}")


class BadReference(UsageError):
    """Invalid or unresolvable reference."""


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Reference to a secret; only `reveal` resolves it. The repr shows the reference, never the value."""

    reference: str
    base: Path
    value: str | None = None  # set only in Spark tasks, whose machines may not have the variable or the file

    def __post_init__(self) -> None:
        if not is_reference(self.reference):
            raise ValueError("a reference: ${env:NAME} or ${file:path}; plain-text secrets are not allowed in a spec")

    def reveal(self) -> str:
        """Resolve the secret (on each call, so that rotation works); BadReference if that fails."""
        return resolve_reference(self.reference, self.base) if self.value is None else self.value

    def is_open(self) -> bool:
        """Whether the secret is in a world-readable file."""
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
    """Directory that relative paths of the spec are resolved against."""
    return Path((info.context or {}).get("base", "")).absolute()


def is_reference(text: str) -> bool:
    """Whether the text consists of exactly one reference."""
    return _ONE.fullmatch(text) is not None


def resolve_reference(text: str, base: Path) -> str:
    """Resolve the references in a text, not recursively; `$${` is an escaped `${`."""
    return _ANY.sub(lambda match: "${" if match[1] is None else _follow(match[0], match[1], base), text)


def _follow(reference: str, inner: str, base: Path) -> str:
    if not is_reference(reference):
        raise BadReference(f"Invalid reference: '{reference}'.", hint="Use ${env:NAME} or ${file:path}.")
    kind, _, name = inner.partition(":")
    return _variable(name) if kind == "env" else secret_in_file(base / name)


def provide_secret(variable: str, value: str, file: str) -> bool:
    """Keep a secret of an imported configuration in memory, for references to this variable in this process.

    False if another file has another secret for the variable.
    """
    other = _provided.setdefault(variable, (value, file))
    if other[1] == file:
        _provided[variable] = value, file
    return other[1] == file or other[0] == value


def _variable(name: str) -> str:
    value = _provided[name][0] if name in _provided else os.environ.get(name)
    if value is None:
        raise BadReference(f"Environment variable {name} is not set.", hint=f"Set {name}.")
    if len(value) > MAX_BYTES:
        raise BadReference(f"Environment variable {name} is larger than 64 KiB.")
    return value


def secret_in_file(path: Path) -> str:
    """Content of a small text file without its last line break; BadReference if it cannot be read."""
    try:
        if path.exists() and not path.is_file():
            raise BadReference(f"{path} is not a regular file.")  # reading a pipe or device may block forever
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise BadReference(f"File {path} is larger than 64 KiB.")
        return content.decode().rstrip("\r\n")  # editors end the last line with a newline
    except OSError as error:
        raise BadReference(f"Cannot read file {path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        # The decoder's own message would quote the content.
        raise BadReference(f"File {path} is not valid UTF-8.") from None
