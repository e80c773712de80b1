"""Schema evolution: whether files fit a table, and merged schemas. Works on Delta's JSON, so no metadata is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from headrace.delta.snapshot import TableState
from headrace.errors import TableChanged


def check_fits(file_schema_json: str, state: TableState) -> None:
    """TableChanged unless files of this schema fit the table: names, case, types, nullability."""
    if problems := _all_misfits(file_schema_json, state.schema_json):
        text = "; ".join(problems)
        raise TableChanged(
            f"Staged files do not fit version {state.version} of the table: {text}.", version=state.version
        )


@lru_cache(maxsize=1024)
def _all_misfits(file_schema_json: str, schema_json: str) -> tuple[str, ...]:
    return tuple(_misfits(json.loads(file_schema_json)["fields"], json.loads(schema_json)["fields"], ""))


def _misfits(files: list[dict[str, Any]], table: list[dict[str, Any]], prefix: str) -> Iterator[str]:
    columns = {item["name"]: item for item in table}
    for item in files:
        path = prefix + item["name"]
        if (column := columns.pop(item["name"], None)) is None:
            yield f"column {path} is not in the table"
            continue
        if item["nullable"] and not column["nullable"]:
            yield f"column {path} is NOT NULL in the table"
        yield from _type_misfits(item["type"], column["type"], path)
    for name, column in columns.items():
        if not column["nullable"]:
            yield f"column {prefix}{name} is NOT NULL and not in the files"


def _type_misfits(file: Any, table: Any, path: str) -> Iterator[str]:
    if not (isinstance(file, dict) and isinstance(table, dict) and file["type"] == table["type"]):
        if not _same_type(file, table):
            yield f"column {path} is {_type_text(table)} in the table and {_type_text(file)} in the files"
        return
    if file["type"] == "struct":
        yield from _misfits(file["fields"], table["fields"], f"{path}.")
        return
    for flag in ("containsNull", "valueContainsNull"):
        if file.get(flag) and not table.get(flag):
            yield f"the values inside {path} are NOT NULL in the table"
    for inner in ("elementType", "keyType", "valueType"):
        yield from _type_misfits(file.get(inner), table.get(inner), path)


def _same_type(first: Any, second: Any) -> bool:
    """Whether two types are equal; writers differ in the blanks of `decimal(10, 2)`."""
    if isinstance(first, str) and isinstance(second, str):
        return first.replace(" ", "") == second.replace(" ", "")
    return bool(first == second)


def _type_text(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])


def merge_schemas(current: str, wanted: str) -> str:
    """Add the columns of `wanted` to the current schema, in the order of `wanted`; TableChanged if types differ."""
    fields = _merge_fields(json.loads(current)["fields"], json.loads(wanted)["fields"], "")
    if fields == json.loads(current)["fields"]:
        return current
    return json.dumps({"type": "struct", "fields": fields}, ensure_ascii=False)


def _merge_fields(current: list[dict[str, Any]], wanted: list[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    old = {item["name"]: item for item in current}
    new = {item["name"]: item for item in wanted}
    if old.keys() >= new.keys():  # no new column at this level: the order of the table stays
        return [_merge_field(item, new.get(item["name"]), prefix) for item in current]
    _check_case(old.keys(), new.keys() - old.keys(), prefix)
    fields = [
        _merge_field(old[name], item, prefix) if name in old else _added(item, prefix) for name, item in new.items()
    ]
    return fields + [item for name, item in old.items() if name not in new]


def _check_case(names: Iterable[str], added: Iterable[str], prefix: str) -> None:
    """TableChanged if an added name differs from another one only in case: no reader could open the table."""
    lower = {name.lower(): name for name in names}
    for name in added:
        if (twin := lower.setdefault(name.lower(), name)) != name:
            raise TableChanged(f"Column {prefix}{name} cannot be added: the table has {prefix}{twin}.")


def _added(item: dict[str, Any], prefix: str) -> dict[str, Any]:
    if not item["nullable"]:
        raise TableChanged(
            f"Column {prefix}{item['name']} cannot be added as NOT NULL: existing rows have no value for it."
        )
    return item


def _merge_field(current: dict[str, Any], wanted: dict[str, Any] | None, prefix: str) -> dict[str, Any]:
    if wanted is None:
        return current
    return {**current, "type": _merge_type(current["type"], wanted["type"], prefix + current["name"])}


def _merge_type(current: Any, wanted: Any, path: str) -> Any:
    if not (isinstance(current, dict) and isinstance(wanted, dict) and current["type"] == wanted["type"]):
        if not _same_type(current, wanted):
            raise TableChanged(f"Column {path} is {_type_text(current)} in the table, not {_type_text(wanted)}.")
        return current
    if current["type"] == "struct":
        return {**current, "fields": _merge_fields(current["fields"], wanted["fields"], f"{path}.")}
    inner = [key for key in ("elementType", "keyType", "valueType") if key in current]
    return {**current, **{key: _merge_type(current[key], wanted[key], path) for key in inner}}
