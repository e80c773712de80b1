"""A file of the source and how its records are read: fixed when the file is discovered, so that ranges never change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headrace.spec.files_source import FilesSpec

CODECS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zst": "zstd", ".lz4": "lz4"}


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How files are read; recorded with each file, because another limit or delimiter would make other records."""

    name: str
    compression: str
    record_bytes: int
    delimiter: str = ","
    quote: str = '"'
    columns: tuple[str, ...] = ()  # of CSV files without a header row
    literals: tuple[str, ...] = ()

    @classmethod
    def of(cls, spec: FilesSpec, record_bytes: int) -> FileFormat:
        """The format of a spec."""
        csv = spec.csv
        return cls(
            spec.format, spec.compression, record_bytes, csv.delimiter, csv.quote, csv.columns or (), csv.literals
        )

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FileFormat:
        """Parse the JSON form."""
        return cls(**{**raw, "columns": tuple(raw["columns"]), "literals": tuple(raw["literals"])})

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return asdict(self)

    def codec(self, path: str) -> str:
        """Compression of a file; Parquet and Avro files compress their blocks themselves."""
        if self.name in ("parquet", "avro"):
            return "none"
        if self.compression != "auto":
            return self.compression
        return next((codec for suffix, codec in CODECS.items() if path.lower().endswith(suffix)), "none")


@dataclass(frozen=True, slots=True)
class FileContent:
    """The records of a file, counted when it is discovered."""

    rows: int
    damaged: bool = False  # whether a part of the file cannot be read
    checkpoints: tuple[tuple[int, int], ...] = ()  # number and position of some rows, to start reading there


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A discovered file, with the offset of its first record."""

    path: str  # below the path of the source
    size: int
    tag: str
    modified: float  # seconds since the epoch
    number: int  # of the file, in the order of discovery
    first: int  # offset of its first record
    content: FileContent
    format: FileFormat
    status: str = ""  # "", "skipped", "lost", "deleted", or "moved"
    moved_to: str = ""  # the root that the file was moved to

    @property
    def until(self) -> int:
        """The offset after its last record."""
        return self.first + self.content.rows

    @property
    def identity(self) -> tuple[int, str, float]:
        """Changes when the file is replaced."""
        return self.size, self.tag, self.modified

    @property
    def order(self) -> tuple[float, str]:
        """The order in which files are discovered and forgotten."""
        return self.modified, self.path

    def to_json(self, formats: list[dict[str, Any]]) -> list[Any]:
        """The JSON form; `formats` receives its format."""
        raw = self.format.to_json()
        if raw not in formats:
            formats.append(raw)
        content = [self.content.rows, int(self.content.damaged), self.content.checkpoints]
        at = [self.path, self.size, self.tag, self.modified, self.number, self.first]
        return [*at, content, formats.index(raw), self.status, self.moved_to]

    @classmethod
    def from_json(cls, raw: list[Any], formats: list[FileFormat]) -> IndexedFile:
        """Parse the JSON form."""
        path, size, tag, modified, number, first, (rows, damaged, checkpoints), form, status, moved_to = raw
        content = FileContent(rows, bool(damaged), tuple((row, position) for row, position in checkpoints))
        return cls(path, size, tag, modified, number, first, content, formats[form], status, moved_to)
