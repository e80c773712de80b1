"""JSON Schema and Markdown reference of the spec, both generated from the models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import PydanticUndefined

from headrace.spec import start, units, uris
from headrace.spec.base import SpecModel, model_keys, parts_in
from headrace.spec.kafka_settings import CONSUMER_SETTINGS
from headrace.spec.model import BranchSpec, Spec, TopicSpec
from headrace.spec.secrets import Secret
from headrace.spec.spark_settings import SETTING_FAMILIES, SPARK_SETTINGS
from headrace.spec.table import TableMatch, TableOptions


class _Schema(GenerateJsonSchema):
    """Pydantic's generator, with durations in spec notation and without redundant titles."""

    def encode_default(self, dft: Any) -> Any:
        return units.spell_duration(dft) if isinstance(dft, timedelta) else super().encode_default(dft)

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON Schema of one pipeline."""
    schema = Spec.model_json_schema(by_alias=True, schema_generator=_Schema)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Headrace pipeline"}
    return {**head, **{key: value for key, value in schema.items() if key != "title"}}


def json_schema_text() -> str:
    """JSON Schema as text."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def spec_reference() -> str:
    """Markdown reference of all spec keys."""
    return "\n".join(line for path, part in _parts(Spec, "") for line in _section(path, part))


def _parts(part: type[SpecModel], path: str) -> Iterator[tuple[str, type[SpecModel]]]:
    yield path, part
    if part in (TableMatch, BranchSpec, TopicSpec):  # documented at the pipeline and its table
        return
    for key, field in model_keys(part).items():
        for inner in parts_in(field.annotation):
            many = "[]" if get_origin(field.annotation) is tuple else ""
            yield from _parts(inner, f"{path}.{key}{many}".removeprefix("."))


def _section(path: str, part: type[SpecModel]) -> Iterator[str]:
    yield f"### `{path}`\n" if path else "### Pipeline\n"
    yield f"{part.__doc__}\n"
    yield "| key | type | default | description |"
    yield "|---|---|---|---|"
    for key, field in sorted(_own_keys(part), key=lambda item: not item[1].is_required()):
        meaning = (field.description or "").replace("|", "\\|")
        yield f"| `{key}` | {_value(field)} | {_default(field)} | {meaning} |"
    yield ""


def _own_keys(part: type[SpecModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Keys of a model; for `tables`, only the keys that `table` does not have."""
    shared = model_keys(TableOptions) if part is TableMatch else {}
    return ((key, field) for key, field in model_keys(part).items() if key not in shared)


def _value(field: FieldInfo) -> str:
    return _words(field.annotation, field.metadata)


_KINDS: dict[Any, str] = {
    units.duration: "duration",
    units.size: "size",
    units.rate: "rate",
    units.parse_integer: "integer",
    units.ratio: "ratio",
    units.flag: "`true`, `false`",
    units.moment: "time",
    units.plain_text: "string",
    units.regex: "regular expression",
    uris.storage_path: "path",
    uris.server: "address",
    start.first_offsets: "mapping",
}


def _words(annotation: Any, metadata: Any = ()) -> str:
    """Short type name of a field."""
    for item in metadata:
        if kind := _KINDS.get(getattr(item, "func", None)):
            return kind
    inner = [item for item in get_args(annotation) if item is not NoneType]
    if hasattr(annotation, "__metadata__"):
        return _words(annotation.__origin__, annotation.__metadata__)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{item}`" for item in inner)
    if get_origin(annotation) is tuple:
        return f"list of {_plural(inner[0])}"
    if get_origin(annotation) is Mapping:
        return f"mapping of {_plural(inner[1])}"
    if inner:
        return ", ".join(dict.fromkeys(_words(item) for item in inner))
    return _plain(annotation)


def _plural(annotation: Any) -> str:
    """`strings, mappings`; names of values stay as they are: `typeWidening`, `deletionVectors`."""
    names = _words(annotation).split(", ")
    return ", ".join(name if name.endswith(("`", "s")) else f"{name}s" for name in names)


def _plain(annotation: Any) -> str:
    if annotation is Secret:
        return "secret"
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return "mapping"
    return {str: "string", int: "integer"}.get(annotation, "any value")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default is PydanticUndefined or field.default is None or field.default == () or _is_part(field.default):
        return ""
    kind = _value(field)
    spellings: dict[str, Callable[[Any], str]] = {"duration": units.spell_duration, "size": units.spell_size}
    spelled = spellings.get(kind, _json)
    return f"`{spelled(field.default)}`"


def _is_part(value: object) -> bool:
    return isinstance(value, SpecModel)


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def settings_reference() -> str:
    """Markdown reference of the Kafka consumer settings that a spec may set."""
    return _settings_table(CONSUMER_SETTINGS)


def spark_settings_reference() -> str:
    """Markdown reference of the Spark settings that a spec may set."""
    return _settings_table(SPARK_SETTINGS | SETTING_FAMILIES)


def _settings_table(settings: Mapping[str, str]) -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in settings.items()]
    return "\n".join(["| setting | description |", "|---|---|", *rows])
