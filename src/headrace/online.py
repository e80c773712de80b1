"""What `check --online` asks: does the broker have the topics, does the store answer, do the tables fit?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from headrace.errors import HeadraceError
from headrace.plan import Plan
from headrace.read import open_source
from headrace.shape import shape_of
from headrace.spec import Finding, Spec
from headrace.storage import Profile, Store
from headrace.tables.adopt import may_adopt
from headrace.tables.log import load


def online(spec: Spec) -> list[Finding]:
    """Findings about the world the spec names; the file itself was found right before."""
    return [*_asked(spec, "source", _source), *_asked(spec, "storage", _storage), *_asked(spec, "table", _table)]


def _asked(spec: Spec, key: str, ask: Callable[[Spec], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(ask(spec))
    except HeadraceError as error:
        return [_finding(spec, key, f"{error.name}: {error.seen}", error.next or "an answer")]


def _finding(spec: Spec, key: str, seen: str, allowed: str, severity: Literal["error", "warning"] = "error") -> Finding:
    return Finding(spec.pipeline, 1, 1, key, seen, allowed, severity=severity)


def _source(spec: Spec) -> Iterator[Finding]:
    source = open_source(spec)
    try:
        if not source.topics():
            yield _finding(spec, "source", "no topic matches", "at least one topic")
        source.bounds()
    finally:
        source.close()


def _storage(spec: Spec) -> Iterator[Finding]:
    """The state folder must take a put, give it back, and refuse the second put-if-absent."""
    store = Store(spec.state_uri, Profile(**spec.storage_profile()))
    probe = ".check"
    store.put(probe, b"headrace check")
    try:
        if store.get(probe) != b"headrace check":
            yield _finding(spec, "state", "the store gave back other bytes than it was given", "the same bytes")
        try:
            store.put_new(probe, b"again")
            yield _finding(spec, "state", "the store overwrites in a put-if-absent", "a store with conditional puts")
        except HeadraceError as refused:
            if refused.name != "AlreadyThere":
                raise
    finally:
        store.delete([probe])


def _table(spec: Spec) -> Iterator[Finding]:
    if spec.route.kind != "fixed":
        return
    store = Store(spec.uri_of(""), Profile(**spec.storage_profile()))
    state = load(store)
    if state is None:
        if spec.table.create == "never":
            yield _finding(spec, "table.path", f"no table at {store.uri}", "an existing table, or create: auto")
        return
    shape_of(store.uri, spec.table_for(""), Plan(spec, {}).transform, existing=state.schema)
    if why := may_adopt(state):
        text = f"{store.uri} is appended by Spark, more slowly, because {why}"
        yield _finding(spec, "table.path", text, "a table on plain protocol features", "warning")
    elif not store.local:
        text = f"{store.uri} is on S3: a Spark writer beside Headrace would overwrite commits without an error"
        yield _finding(spec, "table.path", text, "no foreign Spark writers", "warning")
