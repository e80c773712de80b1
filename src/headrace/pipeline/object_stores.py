"""The buckets of a pipeline, which may have different locations for tables, dead letters and state."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec import Spec
from headrace.storage.bucket import Bucket
from headrace.storage.store import Profile, Store


def object_stores(spec: Spec) -> Iterator[tuple[Spec, str, Store]]:
    """One directory of each bucket that is written, with the branch and the key that name it; that of the state first.

    The directory is the one that the pipeline writes, because its identity may have no rights beside it.
    """
    places = [(spec, "storage", spec.state_uri), (spec, "dead_letters.path", spec.dead_letters_uri)]
    places += [
        (branch, "table.path", branch.base_uri if "{" in branch.table.path else branch.table.path)
        for branch in spec.branch_specs().values()
    ]
    if spec.source.spool_path is not None:
        places.append((spec, f"source.{spec.source.kind}.spool.path", spec.source.spool_path))
    profile, named = Profile(**spec.storage_profile()), set[Bucket]()
    for branch, key, uri in places:
        store = Store(uri, profile)
        if store.bucket is not None and store.bucket not in named:
            named.add(store.bucket)
            yield branch, key, store
