"""The source `files`: new files below a directory or prefix."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from headrace.spec.base import InvalidValue, SpecModel, word_or_mapping
from headrace.spec.units import Duration, Integer, Moment, Rate
from headrace.spec.uris import StoragePath, is_local

FileFormatName = Literal["json_lines", "json_array", "csv", "text", "parquet", "avro"]
Compression = Literal["auto", "none", "gzip", "bz2", "xz", "zstd", "lz4"]


def _glob(text: str) -> str:
    if "/" in text or "\\" in text or not text.strip():
        raise ValueError("a pattern of file names such as *.jsonl.gz, without '/'")
    return text


def _single(text: str) -> str:
    if len(text) != 1 or not text.isascii() or text in "\r\n":
        raise ValueError("one ASCII character")
    return text


_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".crdownload", ".filepart", ".swp", "~")


class CsvSpec(SpecModel):
    """CSV files (RFC 4180); each row becomes a JSON object."""

    delimiter: Annotated[str, AfterValidator(_single)] = Field(default=",", description="Character between fields.")
    quote: Annotated[str, AfterValidator(_single)] = Field(
        default='"', description="Character around fields with delimiters or line breaks; written twice inside them."
    )
    columns: tuple[Annotated[str, Field(min_length=1)], ...] | None = Field(
        default=None,
        min_length=1,
        description="Names of the columns of files without a header row. Default: the first row of each file.",
    )
    literals: tuple[str, ...] = Field(
        default=(),
        description="Columns of numbers and booleans: their fields are JSON numbers, `true` and `false` without "
        "quotes. Fields of other columns are strings.",
    )

    @model_validator(mode="after")
    def _check_characters(self) -> CsvSpec:
        if self.delimiter == self.quote:
            raise InvalidValue("another character than delimiter", message="the same character", key="quote")
        return self


class MoveSpec(SpecModel):
    """Target of files that were read completely."""

    move: StoragePath = Field(
        description="Directory or prefix, on the same disk or in the same bucket, that files are moved to."
    )


class FilesStart(SpecModel):
    """Start position by modification time."""

    timestamp: Moment = Field(
        description="Read the files modified at or after this RFC 3339 timestamp with time zone; skip older ones."
    )


FilesStartPosition = Annotated[
    Annotated[Literal["earliest", "latest"], Tag("word")] | Annotated[FilesStart, Tag("mapping")],
    Discriminator(word_or_mapping),
]
After = Annotated[
    Annotated[Literal["keep", "delete"], Tag("word")] | Annotated[MoveSpec, Tag("mapping")],
    Discriminator(word_or_mapping),
]


class FilesSpec(SpecModel):
    """New files below a directory or an object store prefix."""

    path: StoragePath = Field(description="Directory or prefix; files in subdirectories are read as well.")
    pattern: Annotated[str, AfterValidator(_glob)] | None = Field(
        default=None, description="Pattern of file names (`*`, `?`, `[…]`), such as `*.jsonl.gz`. Default: all files."
    )
    format: FileFormatName = Field(
        default="json_lines",
        description="Format of the files: `json_lines`, `json_array`, `csv`, `text` (one record per line), `parquet` "
        "or `avro` (container files).",
    )
    compression: Compression = Field(
        default="auto",
        description="Compression of text formats; `auto`: by file name (`.gz`, `.bz2`, `.xz`, `.zst`, `.lz4`).",
    )
    csv: CsvSpec = Field(default=CsvSpec(), description="Options of the format `csv`.")
    topic: str = Field(
        default="files", pattern=r"^[A-Za-z0-9._-]{1,249}$", description="Topic name of the records; permanent."
    )
    start: FilesStartPosition = Field(
        default="earliest",
        description="Files that a new pipeline reads: all (`earliest`), those that appear after its start (`latest`), "
        "or those modified at or after `{timestamp: …}`.",
    )
    settle: Duration | None = Field(
        default=None,
        description="Time for which a file must be unmodified before it is read. Default: `10s` on local disk, `0s` in "
        "object stores, where objects appear when their upload is complete.",
    )
    poll: Duration = Field(
        default=timedelta(seconds=10), ge=timedelta(milliseconds=100), description="Interval between listings."
    )
    after: After = Field(
        default="keep",
        description="What happens to files whose rows are recorded in the ledger: `keep`, `delete` or `{move: path}`. "
        "Damaged and changed files are always kept.",
    )
    seen_files: Integer = Field(
        default=100_000,
        ge=100,
        le=10_000_000,
        description="Number of the newest files that are remembered by name. Of older ones, only the newest "
        "modification time is remembered: unknown files that are not newer are not read.",
    )
    rate: Rate | None = Field(default=None, description="Maximum rate of records. Default: unlimited.")

    @property
    def settle_seconds(self) -> float:
        """Seconds for which a file must be unmodified."""
        default = timedelta(seconds=10 if is_local(self.path) else 0)
        return (default if self.settle is None else self.settle).total_seconds()

    @property
    def move_target(self) -> str | None:
        """Where files are moved to."""
        return self.after.move if isinstance(self.after, MoveSpec) else None


def is_hidden(path: str) -> bool:
    """Whether a file is temporary or hidden: `.x`, `_x` (but not `_x=1`), `x.tmp`, or in such a directory."""
    parts = path.split("/")
    hidden = any(part.startswith(".") or (part.startswith("_") and "=" not in part) for part in parts)
    return hidden or parts[-1].lower().endswith(_TEMPORARY)
