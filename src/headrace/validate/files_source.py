"""Rules and the online check of the source `files`."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.files_source import FilesSpec, is_hidden
from headrace.spec.model import Spec
from headrace.spec.uris import contains_uri, folder_of, is_local
from headrace.spec.yaml_reader import Path

_FILES: Path = ("source", "files")


def check_files_source(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check paths, format and options of the source."""
    files = spec.source.files
    if files is None:
        return
    yield from _paths(spec, files)
    yield from _target(files)
    yield from _format(spec, files)


def _paths(spec: Spec, files: FilesSpec) -> Iterator[UnlocatedDiagnostic]:
    """The files of tables and of the state are no records."""
    outputs = [("the state", spec.state_uri), ("the dead letters", spec.dead_letters_uri)]
    outputs += [("a table", branch.table.path) for branch in spec.branch_specs().values()]
    for name, uri in outputs:
        uri = folder_of(uri) if "{" in uri else uri
        hidden = contains_uri(files.path, uri) and is_hidden(f"{uri.removeprefix(files.path).strip('/')}/x")
        if (contains_uri(files.path, uri) or contains_uri(uri, files.path)) and not hidden:
            yield UnlocatedDiagnostic((*_FILES, "path"), f"overlaps with {name} ({uri})", "a separate directory")
            return


def _target(files: FilesSpec) -> Iterator[UnlocatedDiagnostic]:
    """Files are moved within a disk or a bucket, to where they are not read again."""
    target, here = files.move_target, (*_FILES, "after", "move")
    if target is None:
        return
    from headrace.storage.store import Store

    if is_local(target) != is_local(files.path) or (
        not is_local(target) and Store(target).bucket != Store(files.path).bucket
    ):
        yield UnlocatedDiagnostic(here, f"{target} is not in the storage of {files.path}", "the same disk or bucket")
    elif contains_uri(files.path, target) and not is_hidden(f"{target.removeprefix(files.path).strip('/')}/x"):
        expected = "a directory outside of the source, or one with a name such as _done"
        yield UnlocatedDiagnostic(here, "is below the path of the source, where moved files are read again", expected)
    elif contains_uri(target, files.path):
        yield UnlocatedDiagnostic(here, "contains the path of the source", "a separate directory")


def _format(spec: Spec, files: FilesSpec) -> Iterator[UnlocatedDiagnostic]:
    typed = files.format in ("parquet", "avro")
    container = spec.decode.avro is not None and spec.decode.avro.container
    if typed and not container:
        message = f"{spec.format}, but each row of {files.format} files is an Avro container file"
        yield UnlocatedDiagnostic(("decode",), message, "{avro: {container: true}}")
    if typed and files.compression != "auto":
        message = f"not supported with {files.format}, whose files name their compression"
        yield UnlocatedDiagnostic((*_FILES, "compression"), message, "no compression")
    if files.format == "csv" and spec.format != "json":
        yield UnlocatedDiagnostic(("decode",), f"{spec.format}, but each row of CSV files is a JSON object", "json")
    if files.format != "csv" and "csv" in files.model_fields_set:
        yield UnlocatedDiagnostic((*_FILES, "csv"), f"not used with format {files.format}", "format: csv")
    columns, literals = files.csv.columns, files.csv.literals
    for name in literals:
        if columns is not None and name not in columns:
            yield UnlocatedDiagnostic((*_FILES, "csv", "literals"), f"unknown column '{name}'", ", ".join(columns))
    if columns is not None and len(set(columns)) < len(columns):
        yield UnlocatedDiagnostic((*_FILES, "csv", "columns"), "a duplicate name", "unique names", depends_on=())


def has_files(spec: Spec) -> bool:
    """Whether the path can be listed and has a file of the source; writes nothing."""
    from headrace.source.files.discovery import FileDiscovery
    from headrace.storage.store import Profile, Store

    files = spec.files
    store = Store(files.path, Profile(**spec.storage_profile()))
    discovery = FileDiscovery(files, store, spec.limits.record_bytes)
    return next(discovery.candidates(), None) is not None
