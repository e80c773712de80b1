"""Configuration and schema of a table."""

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

TIME = "timestamp"  # source column of the partition columns `date` and `hour`
_SECTIONS = {  # keys of a deltalake.toml by section
    "": ("table_path", "table_name", "partition_by", "partition_strategy", "partition_buckets"),
    "table": ("optimize_enabled", "vacuum_enabled", "retention_hours", "compression", "parallelism", "batch_size"),
    "operations": ("upsert_enabled", "delete_enabled", "bulk_insert_enabled", "streaming_enabled"),
    "schema": ("auto_evolution", "strict_mode", "allow_nullable", "merge_schema"),
    "storage": ("file_size_target", "file_size_max", "min_file_size"),
}
_TEXTS = ("table_path", "table_name", "partition_strategy", "compression")
_FLAGS = ("optimize_enabled", "vacuum_enabled", *_SECTIONS["operations"], *_SECTIONS["schema"])
_OPTIONAL = ("parallelism", "batch_size", *_SECTIONS["storage"])
_RANGES = {**dict.fromkeys(_OPTIONAL, (1, 2**40)), "retention_hours": (0, 876_000), "partition_buckets": (2, 10_000)}
_STRATEGIES = ("value", "hash", "time")
IGNORED = {  # keys without effect on operations, and the reason
    "parallelism": "an operation chooses its number of threads",
    "batch_size": "an operation is one commit, however many records it has",
}
_CODECS = {**{name: name for name in SUFFIXES}, "uncompressed": "none"}


class DeltaFieldType(StrEnum):
    """Field types, with the type names of a spec."""

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
    """Fields of a table."""

    fields: tuple[DeltaField, ...] = ()

    def with_field(self, name: str, type: str, required: bool = False) -> Self:
        """Add a field; a required one is NOT NULL."""
        return replace(self, fields=(*self.fields, DeltaField(name, str(type), required)))

    def columns(self) -> dict[str, str]:
        """Column names with their types, as in a spec."""
        return {item.name: f"{item.type}{'!' if item.required else ''}" for item in self.fields}


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """Path, file layout and permitted operations of a table."""

    table_path: str = ""
    table_name: str = ""
    partition_by: tuple[str, ...] = ()
    partition_strategy: str = "value"  # or "time", which is equal, or "hash": partition by `<column>_bucket`
    partition_buckets: int = 16
    optimize_enabled: bool = True
    vacuum_enabled: bool = True
    retention_hours: int = 168
    compression: str = "SNAPPY"
    parallelism: int | None = None  # of the pipeline that `headrace run deltalake.toml` starts
    batch_size: int | None = None  # of that pipeline, too
    upsert_enabled: bool = True
    delete_enabled: bool = True
    bulk_insert_enabled: bool = True
    streaming_enabled: bool = True  # whether `headrace run deltalake.toml` may run the file as a pipeline
    auto_evolution: bool = True
    strict_mode: bool = False
    allow_nullable: bool = True
    merge_schema: bool = True
    file_size_target: int | None = None
    file_size_max: int | None = None  # larger files are split by `optimize`
    min_file_size: int | None = None  # smaller files are compacted by `optimize`; default: 75 % of the target
    storage: Mapping[str, Any] | None = field(default=None, repr=False)  # keys of `storage` in a spec

    def __post_init__(self) -> None:
        if isinstance(self.partition_by, list):
            object.__setattr__(self, "partition_by", tuple(self.partition_by))
        for name, expected in _invalid(self):
            raise UsageError(f"Invalid {name}: {getattr(self, name)!r}.", hint=f"Specify {expected}.")

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Read a deltalake.toml; UsageError for unknown keys and invalid values."""
        try:
            return cls(**_keys(tomllib.loads(Path(path).read_text())))
        except (OSError, ValueError) as error:
            raise UsageError(f"Cannot read {os.fspath(path)}: {error}.") from None
        except UsageError as error:
            raise UsageError(f"{os.fspath(path)}: {error.message}", hint=error.hint) from None

    def having(self, **values: Any) -> Self:
        """Copy with other values."""
        return replace(self, **values)

    def with_table_path(self, path: str | os.PathLike[str]) -> Self:
        """Path of the table: a folder, or s3://bucket/path."""
        return self.having(table_path=os.fspath(path))

    def with_table_name(self, name: str) -> Self:
        """Display name of the table."""
        return self.having(table_name=name)

    def with_partition_by(self, columns: str | Iterable[str]) -> Self:
        """Partition columns; `date` and `hour` are derived from `timestamp` if records lack them."""
        return self.having(partition_by=(columns,) if isinstance(columns, str) else tuple(columns))

    def with_partition_strategy(self, strategy: str) -> Self:
        """Partition by `value` or `time`, which derive `date` and `hour`, or by `hash` (buckets)."""
        return self.having(partition_strategy=strategy)

    def with_optimize_enabled(self, enabled: bool) -> Self:
        """Permit `optimize`."""
        return self.having(optimize_enabled=enabled)

    def with_vacuum_enabled(self, enabled: bool) -> Self:
        """Permit `vacuum`."""
        return self.having(vacuum_enabled=enabled)

    def with_retention_hours(self, hours: int) -> Self:
        """Retention of the files of older versions."""
        return self.having(retention_hours=hours)

    def with_compression(self, codec: str) -> Self:
        """Compression of data files: SNAPPY, ZSTD, GZIP, LZ4 or NONE."""
        return self.having(compression=codec)

    def with_parallelism(self, count: int) -> Self:
        """Cores of the pipeline of a deltalake.toml; a table warns that its operations ignore it."""
        return self.having(parallelism=count)

    def with_batch_size(self, records: int) -> Self:
        """Records per batch of the pipeline of a deltalake.toml; a table warns that its operations ignore it."""
        return self.having(batch_size=records)

    def with_file_size_target(self, size: int) -> Self:
        """Target size of data files, in bytes."""
        return self.having(file_size_target=size)

    def with_storage(self, storage: Mapping[str, Any]) -> Self:
        """Access to an object store, with the keys of `storage` in a spec."""
        return self.having(storage=storage)

    @property
    def partitions(self) -> tuple[str | PartitionBy, ...]:
        """Partition columns, plain and derived."""
        return tuple(self._partition(name) for name in self.partition_by)

    def _partition(self, name: str) -> str | PartitionBy:
        if self.partition_strategy == "hash":
            return PartitionBy.model_validate({"hash": name, "buckets": self.partition_buckets, "as": f"{name}_bucket"})
        return PartitionBy.model_validate({name: TIME, "as": name}) if name in ("date", "hour") else name

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the partition columns."""
        return tuple(column_of(partition) for partition in self.partitions)

    @property
    def grows(self) -> bool:
        """Whether new fields of records are added as columns."""
        return self.auto_evolution and self.merge_schema and not self.strict_mode

    @property
    def ignored(self) -> tuple[str, ...]:
        """The keys of this configuration without effect on operations."""
        return tuple(name for name in IGNORED if getattr(self, name) is not None)

    @property
    def properties(self) -> dict[str, str]:
        """Table properties for this configuration."""
        properties = {
            "delta.parquet.compression.codec": _CODECS[self.compression.lower()],
            "delta.deletedFileRetentionDuration": f"interval {self.retention_hours} hours",
        }
        if self.file_size_target:
            properties["delta.targetFileSize"] = str(self.file_size_target)
        return properties


def _invalid(config: DeltaConfig) -> Iterator[tuple[str, str]]:
    """Keys with invalid values, and the values that are valid."""
    yield from ((name, "a string") for name in _TEXTS if not isinstance(getattr(config, name), str))
    yield from ((name, "true or false") for name in _FLAGS if not isinstance(getattr(config, name), bool))
    for name, (minimum, maximum) in _RANGES.items():
        value = getattr(config, name)
        if not (value is None and name in _OPTIONAL) and not (type(value) is int and minimum <= value <= maximum):
            yield name, f"an integer from {minimum:,} to {maximum:,}"
    if not isinstance(config.partition_by, tuple) or not all(isinstance(name, str) for name in config.partition_by):
        yield "partition_by", "a list of columns"
    target = config.file_size_target
    if type(target) is int:
        if type(config.min_file_size) is int and config.min_file_size > target:
            yield "min_file_size", f"at most file_size_target, which is {target:,}"
        if type(config.file_size_max) is int and config.file_size_max < 2 * target:
            yield "file_size_max", f"at least twice file_size_target, which is {target:,}"
    if config.partition_strategy not in _STRATEGIES:
        yield "partition_strategy", " or ".join(_STRATEGIES)
    if config.compression.lower() not in _CODECS:
        yield "compression", f"one of {', '.join(_CODECS)}"
    if not isinstance(config.storage, Mapping | None):
        yield "storage", "a mapping with the keys of `storage` in a spec"


def _keys(document: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of all sections of a file."""
    root = _section(document, "deltalake")
    if unknown := [name for name in document if name != "deltalake"]:
        raise UsageError(f"Unknown key outside of [deltalake]: '{unknown[0]}'.", hint="Move it to [deltalake].")
    sections = {f"deltalake.{name}": _section(root, f"deltalake.{name}") for name in _SECTIONS if name in root}
    sections["deltalake"] = {name: value for name, value in root.items() if name not in _SECTIONS}
    for section, keys in sections.items():
        valid = _SECTIONS[section.removeprefix("deltalake").lstrip(".")]
        if unknown := [name for name in keys if name not in valid]:
            raise UsageError(f"Unknown key in [{section}]: '{unknown[0]}'.", hint=f"Valid keys: {', '.join(valid)}.")
    return {name: value for keys in sections.values() for name, value in keys.items()}


def _section(parent: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    section = parent.get(path.rpartition(".")[2])
    if not isinstance(section, Mapping):
        message = f"Missing section [{path}]." if section is None else f"{path} is {section!r}, not a section."
        raise UsageError(message, hint=f"Write its keys below a line [{path}].")
    return section
