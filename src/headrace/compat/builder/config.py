"""Where a table is, how it is laid out, what may be done to it; its fields."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from headrace.delta.properties import SUFFIXES
from headrace.errors import UsageError
from headrace.spec.partition import PartitionBy, column_of

TIME = "timestamp"  # the column that `date` and `hour` come from
_SECTIONS = {  # of a deltalake.toml
    "": ("table_path", "table_name", "partition_by", "partition_strategy", "partition_buckets"),
    "table": ("optimize_enabled", "vacuum_enabled", "retention_hours", "compression", "parallelism", "batch_size"),
    "operations": ("upsert_enabled", "delete_enabled", "bulk_insert_enabled", "streaming_enabled"),
    "schema": ("auto_evolution", "strict_mode", "allow_nullable", "merge_schema"),
    "storage": ("file_size_target", "file_size_max", "min_file_size"),
}
_TEXTS = ("table_path", "table_name", "partition_strategy", "compression")
_FLAGS = ("optimize_enabled", "vacuum_enabled", *_SECTIONS["operations"], *_SECTIONS["schema"])
_OPTIONAL = ("parallelism", "batch_size", *_SECTIONS["storage"])
_WHOLE = {**dict.fromkeys(_OPTIONAL, (1, 2**40)), "retention_hours": (0, 876_000), "partition_buckets": (2, 10_000)}
_STRATEGIES = ("value", "hash")
_CODECS = {**{name: name for name in SUFFIXES}, "uncompressed": "none"}


class DeltaFieldType(StrEnum):
    """The types of fields, by the names that a spec uses."""

    String = "string"
    Timestamp = "timestamp"
    Date = "date"
    Long = "long"
    Int = "int"
    Short = "short"
    Byte = "byte"
    Double = "double"
    Float = "float"
    Boolean = "boolean"
    Binary = "binary"
    Map = "map<string,string>"


@dataclass(frozen=True, slots=True)
class DeltaField:
    """One field of a schema."""

    name: str
    type: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class DeltaSchema:
    """The fields of a table."""

    fields: tuple[DeltaField, ...] = ()

    def with_field(self, name: str, type: str, required: bool = False) -> Self:
        """One field more; a required one is never NULL."""
        return replace(self, fields=(*self.fields, DeltaField(name, str(type), required)))

    def columns(self) -> dict[str, str]:
        """The same as a spec writes it."""
        return {each.name: f"{each.type}{'!' if each.required else ''}" for each in self.fields}


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """Where a table is, how it is laid out, and what may be done to it."""

    table_path: str = ""
    table_name: str = ""
    partition_by: tuple[str, ...] = ()
    partition_strategy: str = "value"  # or "hash": by `<column>_bucket`
    partition_buckets: int = 16
    optimize_enabled: bool = True
    vacuum_enabled: bool = True
    retention_hours: int = 168
    compression: str = "SNAPPY"
    parallelism: int | None = None  # kept; how many files are read and written at once is not for the caller to say
    batch_size: int | None = None  # kept; an operation is one commit, however many records it has
    upsert_enabled: bool = True
    delete_enabled: bool = True
    bulk_insert_enabled: bool = True
    streaming_enabled: bool = True  # kept; streams are pipelines, which have specs of their own
    auto_evolution: bool = True
    strict_mode: bool = False
    allow_nullable: bool = True
    merge_schema: bool = True
    file_size_target: int | None = None
    file_size_max: int | None = None  # kept; files end a little above their target
    min_file_size: int | None = None  # kept; `optimize` takes files below three quarters of the target
    storage: Mapping[str, Any] | None = field(default=None, repr=False)  # as `storage.s3` of a spec

    def __post_init__(self) -> None:
        if isinstance(self.partition_by, list):
            object.__setattr__(self, "partition_by", tuple(self.partition_by))
        for name, wanted in _wrong(self):
            raise UsageError(f"{name} is {getattr(self, name)!r}.", hint=f"It must be {wanted}.")

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Out of a deltalake.toml; a key that there is not, and a value of another type, are refused."""
        try:
            return cls(**_keys(tomllib.loads(Path(path).read_text())))
        except (OSError, ValueError) as error:
            raise UsageError(f"{os.fspath(path)} cannot be read: {error}.") from None
        except UsageError as error:
            raise UsageError(f"{os.fspath(path)}: {error.message}", hint=error.hint) from None

    def having(self, **values: Any) -> Self:
        """Some of it changed."""
        return replace(self, **values)

    def with_table_path(self, path: str | os.PathLike[str]) -> Self:
        """Where the table is: a folder, or s3://bucket/path."""
        return self.having(table_path=os.fspath(path))

    def with_table_name(self, name: str) -> Self:
        """What people call it."""
        return self.having(table_name=name)

    def with_partition_by(self, columns: str | Iterable[str]) -> Self:
        """The partition columns; `date` and `hour` come from `timestamp` where records lack them."""
        return self.having(partition_by=(columns,) if isinstance(columns, str) else tuple(columns))

    def with_partition_strategy(self, strategy: str) -> Self:
        """By `value`, or by `hash`: in buckets."""
        return self.having(partition_strategy=strategy)

    def with_optimize_enabled(self, enabled: bool) -> Self:
        """Whether `optimize` may be called."""
        return self.having(optimize_enabled=enabled)

    def with_vacuum_enabled(self, enabled: bool) -> Self:
        """Whether `vacuum` may be called."""
        return self.having(vacuum_enabled=enabled)

    def with_retention_hours(self, hours: int) -> Self:
        """For how long files of older versions are kept."""
        return self.having(retention_hours=hours)

    def with_compression(self, codec: str) -> Self:
        """SNAPPY, ZSTD, GZIP, LZ4 or NONE."""
        return self.having(compression=codec)

    def with_parallelism(self, count: int) -> Self:
        """Kept, and without effect."""
        return self.having(parallelism=count)

    def with_batch_size(self, records: int) -> Self:
        """Kept, and without effect."""
        return self.having(batch_size=records)

    def with_file_size_target(self, size: int) -> Self:
        """How large files shall be, in bytes."""
        return self.having(file_size_target=size)

    def with_storage(self, storage: Mapping[str, Any]) -> Self:
        """How to reach an object store."""
        return self.having(storage=storage)

    @property
    def partitions(self) -> tuple[str | PartitionBy, ...]:
        """What the table is partitioned by: columns, and those that are made from others."""
        return tuple(self._partition(name) for name in self.partition_by)

    def _partition(self, name: str) -> str | PartitionBy:
        if self.partition_strategy == "hash":
            return PartitionBy.model_validate({"hash": name, "buckets": self.partition_buckets, "as": f"{name}_bucket"})
        return PartitionBy.model_validate({name: TIME, "as": name}) if name in ("date", "hour") else name

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        return tuple(column_of(each) for each in self.partitions)

    @property
    def grows(self) -> bool:
        """Whether new fields of records become columns."""
        return self.auto_evolution and self.merge_schema and not self.strict_mode

    @property
    def properties(self) -> dict[str, str]:
        """The same as table properties."""
        said = {
            "delta.parquet.compression.codec": _CODECS[self.compression.lower()],
            "delta.deletedFileRetentionDuration": f"interval {self.retention_hours} hours",
        }
        return {**said, "delta.targetFileSize": str(self.file_size_target)} if self.file_size_target else said


def _wrong(config: DeltaConfig) -> Iterator[tuple[str, str]]:
    """What a configuration says that it cannot, and what it can."""
    yield from ((name, "a text") for name in _TEXTS if not isinstance(getattr(config, name), str))
    yield from ((name, "true or false") for name in _FLAGS if not isinstance(getattr(config, name), bool))
    for name, (least, most) in _WHOLE.items():
        value = getattr(config, name)
        if not (value is None and name in _OPTIONAL) and not (type(value) is int and least <= value <= most):
            yield name, f"a whole number from {least:,} to {most:,}"
    if not isinstance(config.partition_by, tuple) or not all(isinstance(name, str) for name in config.partition_by):
        yield "partition_by", "a list of columns"
    if config.partition_strategy not in _STRATEGIES:
        yield "partition_strategy", " or ".join(_STRATEGIES)
    if config.compression.lower() not in _CODECS:
        yield "compression", f"one of {', '.join(_CODECS)}"
    if not isinstance(config.storage, Mapping | None):
        yield "storage", "keys with values, as `storage.s3` of a spec"


def _keys(said: Mapping[str, Any]) -> dict[str, Any]:
    """What all sections of a file say."""
    whole = _section(said, "deltalake")
    if strange := [name for name in said if name != "deltalake"]:
        raise UsageError(f"There is '{strange[0]}' outside of [deltalake].", hint="Put it in there, or leave it out.")
    parts = {f"deltalake.{name}": _section(whole, f"deltalake.{name}") for name in _SECTIONS if name in whole}
    parts["deltalake"] = {name: value for name, value in whole.items() if name not in _SECTIONS}
    for where, keys in parts.items():
        known = _SECTIONS[where.removeprefix("deltalake").lstrip(".")]
        if strange := [name for name in keys if name not in known]:
            raise UsageError(f"There is no key '{strange[0]}' in [{where}].", hint=f"There are {', '.join(known)}.")
    return {name: value for keys in parts.values() for name, value in keys.items()}


def _section(said: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    found = said.get(where.rpartition(".")[2])
    if not isinstance(found, Mapping):
        seen = f"There is no section [{where}]." if found is None else f"{where} is {found!r}, which is no section."
        raise UsageError(seen, hint=f"Its keys follow a line [{where}].")
    return found
