"""Where a table is, how it is laid out, what may be done to it; its fields."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

from headrace.errors import UsageError

_SECTIONS = {  # of a deltalake.toml
    "": ("table_path", "table_name", "partition_by", "partition_strategy", "partition_buckets"),
    "table": ("optimize_enabled", "vacuum_enabled", "retention_hours", "compression", "parallelism", "batch_size"),
    "operations": ("upsert_enabled", "delete_enabled", "bulk_insert_enabled", "streaming_enabled"),
    "schema": ("auto_evolution", "strict_mode", "allow_nullable", "merge_schema"),
    "storage": ("file_size_target", "file_size_max", "min_file_size"),
}


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

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Out of a deltalake.toml; a key that there is not is refused."""
        try:
            said = tomllib.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"{os.fspath(path)} cannot be read: {error}.") from None
        whole = said.get("deltalake", {})
        parts = {"": {name: value for name, value in whole.items() if name not in _SECTIONS}}
        parts |= {name: whole[name] for name in _SECTIONS if name in whole}
        for section, keys in parts.items():
            if strange := [name for name in keys if name not in _SECTIONS[section]]:
                where = f"deltalake.{section}" if section else "deltalake"
                raise UsageError(
                    f"{os.fspath(path)}: there is no key '{strange[0]}' in [{where}].",
                    next=f"There are {', '.join(_SECTIONS[section])}.",
                )
        return cls().having(**{name: value for keys in parts.values() for name, value in keys.items()})

    def having(self, **values: Any) -> Self:
        """Some of it changed."""
        if isinstance(columns := values.get("partition_by"), list):
            values["partition_by"] = tuple(columns)
        if (strategy := values.get("partition_strategy", "value")) not in ("value", "hash"):
            raise UsageError(f"'{strategy}' is no partition strategy.", next="There are value and hash.")
        return replace(self, **values)

    def with_table_path(self, path: str | os.PathLike[str]) -> Self:
        """Where the table is: a folder, or s3://bucket/path."""
        return self.having(table_path=os.fspath(path))

    def with_table_name(self, name: str) -> Self:
        """What people call it."""
        return self.having(table_name=name)

    def with_partition_by(self, columns: Iterable[str]) -> Self:
        """The partition columns; `date` and `hour` come from `timestamp` where records lack them."""
        return self.having(partition_by=tuple(columns))

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
    def columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        if self.partition_strategy == "hash":
            return tuple(f"{name}_bucket" for name in self.partition_by)
        return self.partition_by

    @property
    def properties(self) -> dict[str, str]:
        """The same as table properties."""
        said = {
            "delta.parquet.compression.codec": self.compression.lower(),
            "delta.deletedFileRetentionDuration": f"interval {self.retention_hours} hours",
        }
        return {**said, "delta.targetFileSize": str(self.file_size_target)} if self.file_size_target else said
