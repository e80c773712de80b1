"""A route's identity is the same after it was written as text, as a URI, or into a task's manifest."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipeline.manifest import Manifest
from headrace.plan.routing import routes
from headrace.plan.unknown_names import UnknownName
from headrace.reasons import Reason
from headrace.spec.route_id import RouteId
from headrace.spec.routing import NAME
from services.plans import envelopes, spec_of

BRANCHES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,20}", fullmatch=True)
NAMES = st.from_regex(NAME, fullmatch=True)
ROUTES = NAMES | st.tuples(NAMES, NAMES).map(":".join)
# What users have in a field or a header: other scripts, separators, escapes, blanks.
VALUES = st.text(st.sampled_from("aZ9._-:/\\%*~ \n\x00äß漢🚕") | st.characters(exclude_categories=["Cs"]), max_size=8)


@settings(deadline=None, max_examples=200)
@given(BRANCHES | st.just(""), ROUTES | st.sampled_from(["", "*"]))
def test_text_and_back(branch: str, route: str) -> None:
    route_id = RouteId(branch, route)
    assert RouteId.parse(str(route_id)) == route_id


@settings(deadline=None, max_examples=100)
@given(st.dictionaries(st.builds(RouteId, BRANCHES | st.just(""), ROUTES), st.just({"type": "struct"}), max_size=4))
def test_a_manifest_keeps_its_routes(discovered: dict[RouteId, dict[str, str]]) -> None:
    names = {route_id: frozenset({UnknownName("transform[0].where", "nmae", "name")}) for route_id in discovered}
    manifest = Manifest(discovered=discovered, assumed=tuple(discovered), unknown=names)
    assert Manifest.from_json(manifest.to_json()) == manifest


@settings(deadline=None, max_examples=100)
@given(st.lists(VALUES, min_size=1, max_size=20))
def test_values_of_records_become_a_route_that_leads_back_or_a_dead_letter(values: list[str]) -> None:
    branch = {"name": "eu", "route": {"by": {"field": "kind"}}, "table": {"path": "/eu/{route}/rows"}}
    spec = spec_of(route={"by": {"field": "kind"}}, branches=[branch])
    routed = routes(spec.routing(), envelopes([{}] * len(values)), pa.array(values, pa.string()))
    for at, (value, route) in enumerate(zip(values, routed.values.to_pylist(), strict=True)):
        if route is None:
            assert routed.rejects.reason[routed.rejects.index.index(at)] is Reason.BAD_ROUTE
            continue
        assert route == value
        for name in ("", "eu"):
            route_id = RouteId(name, route)
            assert RouteId.parse(str(route_id)) == spec.route_of(spec.uri_of(route_id)) == route_id


@pytest.mark.parametrize(("branch", "route"), [("", "a/b"), ("a", "b/c"), ("a/b", "c")])
def test_a_slash_in_a_name_is_refused_since_its_text_would_be_another_route(branch: str, route: str) -> None:
    with pytest.raises(ValueError, match="slash"):
        RouteId(branch, route)
