"""Tables that exist at the paths of a spec, whoever has written them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.spec import Spec
from headrace.spec.model import template
from headrace.spec.uris import folder_of
from headrace.storage.store import Profile, Store


def table_uris(spec: Spec, profile: Profile) -> list[str]:
    """The paths of all branches: fixed ones, and the existing folders that match a template."""
    return sorted({uri for branch in spec.branch_specs().values() for uri in _of_branch(branch, profile)})


def _of_branch(spec: Spec, profile: Profile) -> Iterator[str]:
    """Existing folders that match the table path of a spec, such as `lake/{route}/rows`."""
    base = folder_of(spec.table.path)
    parts = spec.table.path[len(base) + 1 :].split("/")
    pattern = template(spec.table.path)
    yield from (uri for uri in _below(base, parts, profile) if pattern.fullmatch(uri))


def _below(base: str, parts: Sequence[str], profile: Profile) -> Iterator[str]:
    """Expand a path pattern part by part, by listing the folders."""
    if not any("{" in part for part in parts):
        yield "/".join((base, *parts))
        return
    first, *rest = parts
    if "{" not in first:
        yield from _below(f"{base}/{first}", rest, profile)
        return
    for folder in Store(base, profile).folders():
        yield from _below(f"{base}/{folder}", rest, profile)
