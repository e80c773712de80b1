"""What a spec answers once it is read."""

import pickle
from datetime import UTC, datetime, timedelta

import pytest
from pydantic import ValidationError

from headrace.errors import SpecError
from headrace.spec import Spec, StartAt
from headrace.spec.route_id import RouteId
from headrace.transform.from_spec import transform_steps
from headrace.validate.load import loads

TEXT = """\
pipeline: shop
source: {kafka: {brokers: [localhost:9092, "127.0.0.1:9093"], topics: [orders, refunds], rate: 300/m}}
decode: {json: {tombstone: skip}}
route: {by: topic, include: "^o"}
table:
  path: ./lake/{route}
  partition_by: [day]
  contract: {wrong_type: stop}
tables:
  - {match: "^orders$", columns: [{name: id, type: bigint}], compression: zstd, partition_by: []}
  - {match: orders, compression: gzip}
  - {match: refunds, strict: true}
"""


@pytest.fixture
def spec(tmp_path):
    return loads(TEXT, tmp_path)[0]


def test_the_smallest_spec_has_the_defaults(tmp_path):
    text = "pipeline: w\nsource: {generate: {}}\ntable: {path: ./lake/w}\n"
    spec = loads(text, tmp_path)[0]
    assert (spec.source_kind, spec.generate.records, spec.generate.partitions) == ("generate", 10_000, 4)
    assert (spec.format, spec.tombstone, spec.route.kind) == ("json", "dead_letter", "fixed")
    assert (spec.flush.every, spec.flush.rows, spec.flush.bytes) == (timedelta(seconds=5), 100_000, 128_000_000)
    assert (spec.limits.batch_rows, spec.limits.tables, spec.limits.open_writers) == (1_000_000, 1_000, 256)
    assert (spec.retry.access_denied, spec.retry.conflict, spec.lease.ttl) == (3, 5, timedelta(seconds=20))
    assert (spec.table.source, spec.table.compression, spec.table.mode) == (True, "snappy", "append")
    with pytest.raises(LookupError):
        _ = spec.kafka


def test_brokers_are_a_list_or_a_text(spec):
    assert spec.kafka.bootstrap == "localhost:9092,127.0.0.1:9093"
    text = TEXT.replace('[localhost:9092, "127.0.0.1:9093"]', '"localhost:9092, 127.0.0.1:9093"')
    assert loads(text)[0].kafka.brokers == spec.kafka.brokers


def test_the_first_match_stands_over_the_table(spec):
    orders, other, refunds = (spec.table_for(RouteId("", name)) for name in ("orders", "orders_v2", "refunds"))
    assert (orders.compression, orders.partition_by, [column.name for column in orders.columns]) == ("zstd", (), ["id"])
    assert (other.compression, other.partition_by) == ("gzip", ("day",))
    assert spec.table_for(RouteId("", "x")) == spec.table
    assert refunds.contract.wrong_type == "reject"
    assert spec.uri_of(RouteId("", "orders")).endswith("/lake/orders")


def test_the_contract_depends_on_what_is_declared(spec):
    assert spec.table.contract.new_field == "evolve"
    assert spec.table_for(RouteId("", "orders")).contract.new_field == "ignore"
    assert spec.table_for(RouteId("", "refunds")).contract.new_field == "reject"
    assert spec.table_for(RouteId("", "orders")).contract.wrong_type == "stop"


def test_equal_content_has_an_equal_digest(spec, tmp_path):
    moved = (
        "# a remark\n"
        + TEXT.replace("decode: {json: {tombstone: skip}}\n", "")
        + "decode:\n  json:\n    tombstone: skip\n"
    )
    assert loads(moved, tmp_path)[0].digest == spec.digest
    assert loads(TEXT.replace("300/m", "301/m"), tmp_path)[0].digest != spec.digest


def test_a_spec_survives_text_and_pickle(spec, tmp_path):
    assert loads(spec.text, tmp_path)[0] == spec
    again = pickle.loads(pickle.dumps(spec))  # noqa: S301
    assert (again, again.text, again.base) == (spec, spec.text, spec.base)


def test_a_spec_made_in_python_has_a_text_that_reads_back(tmp_path):
    made = Spec.model_validate(
        {
            "pipeline": "w",
            "source": {
                "kafka": {"brokers": ["localhost:1"], "topics": ["a"], "start": {"timestamp": "2025-01-31T12:00:00Z"}}
            },
            "table": {"path": str(tmp_path / "w"), "columns": [{"name": "a", "type": "string", "json": True}]},
            "flush": {"every": "250ms", "bytes": "64KiB"},
        }
    )
    assert loads(made.text)[0].model_dump() == made.model_dump()
    assert made.kafka.start == StartAt(timestamp=datetime(2025, 1, 31, 12, tzinfo=UTC))


def test_a_spec_cannot_be_changed(spec):
    with pytest.raises(ValidationError):
        spec.pipeline = "other"


def test_the_first_offsets_by_topic():
    flat, nested = StartAt(offsets={"0": 12, "3": 4}), StartAt(offsets={"a": {"0": 1}, "b": {"2": 3}})
    assert flat.offsets_by_topic(["a"]) == {"a": {0: 12, 3: 4}}
    assert nested.offsets_by_topic(["a", "b"]) == {"a": {0: 1}, "b": {2: 3}}


def test_the_route_says_where_it_is_taken_from():
    for by, kind, value in [
        ("{field: /a/b}", "field", "/a/b"),
        ("{header: h}", "header", "h"),
        ("{sql: a}", "sql", "a"),
    ]:
        route = loads(TEXT.replace("by: topic", f"by: {by}"))[0].route
        assert (route.kind, route.value) == (kind, value)


def test_steps_and_routing_are_those_that_run(spec):
    steps = "transform: [{set: {a: b + 1}}, {where: a > 1}, {drop: [b]}, {rename: {a: c}}]\n"
    compiled = transform_steps(loads(TEXT + steps)[0])
    assert [type(step).__name__ for step in compiled] == ["SetStep", "WhereStep", "DropStep", "RenameStep"]
    assert (spec.routing().by, spec.routing().include) == ("topic", "^o")


def test_allow_missing_of_a_step_accepts_only_true_and_false():
    spec = "pipeline: a\nsource: {{generate: {{}}}}\ntransform: [{{jmespath: {{set: {{b: c}}, allow_missing: {}}}}}]\n"
    spec += "table: {{path: ./a}}\n"
    [loaded] = loads(spec.format("true"))
    assert loaded.transform[0].jmespath.allow_missing is True
    with pytest.raises(SpecError, match="expected: true or false"):
        loads(spec.format("1"))
