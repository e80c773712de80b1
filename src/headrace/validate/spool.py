"""Rules for the spool of a source that receives."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.source.spool.layout import SPOOL
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.spool import SpoolSpec
from headrace.spec.uris import contains_uri, is_local
from headrace.spec.yaml_reader import Path


def check_spool(spec: Spec, here: Path, spool: SpoolSpec, max_body: int = 0) -> Iterator[UnlocatedDiagnostic]:
    """The spool must hold a request, and be where this machine and all executors can read it."""
    at: Path = (*here, "spool", "path")
    if max_body >= spool.max_bytes:
        limits: tuple[Path, ...] = ((*here, "spool", "max_bytes"), (*here, "max_body"))
        message = f"a request of {max_body:,} bytes (max_body) never fits into {spool.max_bytes:,} bytes"
        yield UnlocatedDiagnostic(limits[0], message, "max_bytes above max_body", depends_on=limits[1:])
    if spool.path is None and not is_local(spec.state_uri):
        message = f"no directory for the spool: the state is in an object store ({spec.state_uri})"
        expected = "a local directory, or one in an object store, which is slower"
        yield UnlocatedDiagnostic(at, message, expected, depends_on=(("state",),))
        return
    own = f"{spec.state_uri}/{SPOOL}"
    path = spool.path or own
    if path != own and (contains_uri(spec.state_uri, path) or contains_uri(path, spec.state_uri)):
        message = f"overlaps with the state ({spec.state_uri})"
        yield UnlocatedDiagnostic(at, message, f"a separate directory, or {own}", depends_on=(("state",),))
        return
    if not is_local(path):
        yield from _check_object_spool(spec, at, path)
    elif spec.spark.is_cluster and not any(contains_uri(mount, path) for mount in spec.spark.shared_mounts):
        message = f"executors of {spec.spark.master} cannot read the spool on the disk of this machine ({path})"
        mounts: tuple[Path, ...] = (("spark", "shared_mounts"), ("spark", "master"))
        yield UnlocatedDiagnostic(
            at, message, "a local master, or a directory in spark.shared_mounts or an object store", depends_on=mounts
        )


def _check_object_spool(spec: Spec, at: Path, path: str) -> Iterator[UnlocatedDiagnostic]:
    """A spool inside a table would be deleted by vacuum."""
    tables = [each.table.path for each in spec.branch_specs().values()]
    for table in [*tables, spec.dead_letters_uri]:
        if contains_uri(table, path) or contains_uri(path, table):
            yield UnlocatedDiagnostic(at, f"overlaps with a table ({table})", "a separate directory", depends_on=())
