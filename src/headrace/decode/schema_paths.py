"""Schema files of a spec, which travel with tasks: executors of a cluster do not see the driver's disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.decode.protobuf import schema_files
from headrace.errors import HeadraceError
from headrace.spec import Spec
from headrace.spec.decode import AvroFormat, Decode, MsgpackFormat, ProtobufFormat

_KEYS = ("schema_", "single_object", "descriptor", "schemas")  # of all formats


def read_schema_files(spec: Spec) -> dict[str, bytes]:
    """Content of all schema files of a spec by path; decoders report files that cannot be read."""
    files: dict[str, bytes] = {}
    with suppress(OSError, HeadraceError):
        for decode in (spec.decode, *(entry.decode for entry in spec.topics if entry.decode)):
            for path in _schema_files(decode):
                files[str(path)] = path.read_bytes()
    return files


def _schema_files(decode: Decode) -> Iterator[Path]:
    options = decode.options
    if isinstance(options, AvroFormat) and options.schema_ is not None:
        yield Path(options.schema_)
    if isinstance(options, AvroFormat) and options.single_object is not None:
        yield from _file_or_folder(options.single_object, "*.avsc")
    if isinstance(options, MsgpackFormat) and options.schemas is not None:
        yield from _file_or_folder(options.schemas, "*.json")
    if isinstance(options, ProtobufFormat) and options.descriptor is not None:
        yield from schema_files.files_of(options.descriptor)


def _file_or_folder(path: str, pattern: str) -> list[Path]:
    return sorted(Path(path).glob(pattern)) if Path(path).is_dir() else [Path(path)]


def with_schema_files(spec: Spec, files: Mapping[str, bytes]) -> Spec:
    """The spec with paths at which this machine has exactly these files; they are written unless it has them."""
    if all(_has(Path(path), content) for path, content in files.items()):
        return spec
    folder = Path(tempfile.mkdtemp(prefix="headrace-schemas-"))
    for path, content in files.items():
        copy = folder / path.lstrip("/")  # in the same folders: a .proto file imports others by relative paths
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(content)
    entries = (
        entry.model_copy(update={"decode": _moved(entry.decode, folder)}) if entry.decode else entry
        for entry in spec.topics
    )
    return spec.model_copy(update={"decode": _moved(spec.decode, folder), "topics": tuple(entries)})


def _moved(decode: Decode, folder: Path) -> Decode:
    """The format with its schema files below a folder."""
    options = decode.options
    paths = {key: getattr(options, key, None) for key in _KEYS}
    moved = {key: f"{folder}{path}" for key, path in paths.items() if path is not None}
    return decode.model_copy(update={decode.format: options.model_copy(update=moved)}) if moved else decode


def _has(path: Path, content: bytes) -> bool:
    with suppress(OSError):
        return path.read_bytes() == content
    return False
