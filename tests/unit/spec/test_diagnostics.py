"""Every finding says where, what was seen, what is allowed, and what was perhaps meant; all of them at once."""

from pathlib import Path

import pytest

from headrace.errors import SpecError
from headrace.spec import types
from headrace.spec.base import model_keys
from headrace.spec.renamed import KEYS, VALUES
from headrace.validate.load import examine_text, loads

GOOD = """\
pipeline: shop
source:
  kafka:
    brokers: "localhost:9092"
    topics: [shop.orders]
table:
  path: ./lake/orders
"""


def findings(more="", **changes):
    """What is found in the good spec with lines added or changed."""
    text = GOOD + more
    for before, after in changes.pop("swap", {}).items():
        assert before in text
        text = text.replace(before, after)
    return examine_text(text, Path("/base"), "shop.yaml")[1]


def only(more="", **changes):
    """The one finding."""
    found = findings(more, **changes)
    assert len(found) == 1, [str(each) for each in found]
    return found[0]


def test_a_good_spec_has_none():
    assert findings() == []


def test_a_diagnostic_in_one_line():
    assert str(only("flush: {evry: 5s}\n")) == (
        "shop.yaml:8:9 flush.evry: unknown key; expected: every, rows, bytes; did you mean 'every'?"
    )


def test_all_diagnostics_come_at_once_in_the_order_of_the_file():
    more = "flush: {every: 5, rows: many}\nroute: {by: topik}\nlimit: {}\n"
    found = findings(more, swap={"localhost:9092": "localhost", "pipeline: shop": "pipeline: Shop!"})
    assert [(each.line, each.column, each.key) for each in found] == [
        (1, 11, "pipeline"),
        (4, 14, "source.kafka.brokers"),
        (8, 16, "flush.every"),
        (8, 25, "flush.rows"),
        (9, 13, "route.by"),
        (10, 1, "limit"),
    ]
    with pytest.raises(SpecError) as refused:
        loads(GOOD + "limit: {}\n")
    assert (refused.value.exit_code, len(refused.value.diagnostics)) == (2, 1)


# What is added to the good spec · the key found · a word of what was seen · a word of what is allowed · what was meant
SINGLE = [
    ("pipelin: x", "pipelin", "unknown key", "pipeline", "pipeline"),
    ("decode: parquet", "decode", "'parquet'", "json", ""),
    ("decode: {json: {tombstone: skp}}", "decode.json.tombstone", "'skp'", "dead_letter, skip, row", "skip"),
    ("route: {by: feld}", "route.by", "'feld'", "or a mapping with one of field, header, sql", "field"),
    ("route: {by: {feld: a}}", "route.by.feld", "unknown key", "field", "field"),
    ("route: {by: {field: a, sql: b}}", "route.by", "field and sql together", "exactly one", ""),
    ("route: {by: 7}", "route.by", "'7'", "fixed, topic", ""),
    ("transform: [{where: a, drop: [b]}]", "transform[0]", "where and drop together", "exactly one", ""),
    ("transform: [{}]", "transform[0]", "none of", "exactly one", ""),
    ("transform: {set: {a: b}}", "transform", "a mapping", "a list", ""),
    ("transform: [{drop: []}]", "transform[0].drop", "a list", "at least 1", ""),
    ("flush: 5s", "flush", "'5s'", "a mapping with every, rows, bytes", ""),
    ("flush:", "flush", "no value", "a mapping", ""),
    ("flush: {every: 50ms}", "flush.every", "'50ms'", "at least 100ms", ""),
    ("flush: {rows: 0}", "flush.rows", "'0'", "at least 1", ""),
    ("flush: {rows: 2000000}", "flush.rows", "more than limits.batch_rows", "at most", ""),
    ("flush: {every: 2d}", "flush.every", "more than one day", "1d", ""),
    ("limits: {record_bytes: 0}", "limits.record_bytes", "'0'", "at least 1", ""),
    ("limits: {depth: 513}", "limits.depth", "'513'", "at most 512", ""),
    ("limits: {record_bytes: 16 MegaByte}", "limits.record_bytes", "MegaByte", "128MB", ""),
    ("freshness: {target: 5s}", "freshness.target", "records wait for up to 5s (flush.every)", "more than 5s", ""),
    ("lease: {ttl: 6s}", "lease.renew", "half of ttl", "at most half of ttl", ""),
    (
        "retry: {unreachable: {initial_interval: 2m}}",
        "retry.unreachable.initial_interval",
        "more than max_interval",
        "up to max_interval",
        "",
    ),
    ("spark: {memory: 1gb}", "spark.memory", "'1gb'", "`2g`", ""),
    ("spark: {memory: 256m}", "spark.memory", "'256m'", "512m", ""),
    ("spark: {cores: two}", "spark.cores", "'two'", "an integer", ""),
    ("state: 12", "state", "'12'", "text", ""),
    ("state: ./s/{route}", "state", "a brace", "a fixed path", ""),
    ("storage: {s3: {regio: x}}", "storage.s3.regio", "unknown key", "region", "region"),
    ("tables: [{match: x}]", "tables", "requires a route", "route.by other than fixed", ""),
    ("route: {include: x}", "route.include", "requires a route", "route.by other than fixed", ""),
    ("route: {by: topic}", "table.path", "the same path for all routes", "{route}", ""),
]


@pytest.mark.parametrize(("more", "key", "seen", "expected", "meant"), SINGLE)
def test_one_thing_wrong(more, key, seen, expected, meant):
    found = [each for each in findings(more + "\n") if each.message != "required key is missing"]
    assert len(found) == 1, [str(each) for each in found]
    assert (found[0].key, found[0].suggestion) == (key, meant)
    assert seen in found[0].message
    assert expected in found[0].expected


HEAD = GOOD.partition("table:")[0]
GENERATED = "pipeline: shop\nsource: {generate: %s}\ntable: {path: /lake/t}\n"
MERGED = "table: {path: /lake/t, mode: upsert, merge: {keys: [id], %s: %s}}\n"
OF_TABLE = "table: {path: /lake/t, expectations: [{name: few, expect: id > 0, otherwise: warn}]}\n"
# A spec with one earlier name · where it stands · its present name
RENAMED = [
    (GOOD + "also: []\n", "also", "branches"),
    (GOOD + "breaker: {max_reject_ratio: 5%}\n", "breaker", "circuit_breaker"),
    (GOOD + "circuit_breaker: {share: 5%}\n", "circuit_breaker.share", "max_reject_ratio"),
    (GOOD + "circuit_breaker: {max_reject_ratio: 5%, at_least: 9}\n", "circuit_breaker.at_least", "min_records"),
    (GOOD + "maintain: {}\n", "maintain", "maintenance"),
    (GOOD + "maintenance: {small_files: 9}\n", "maintenance.small_files", "min_input_files"),
    (GOOD + "maintenance: {cold: 1h}\n", "maintenance.cold", "idle_after"),
    (GOOD + "maintenance: {at_once: 64MB}\n", "maintenance.at_once", "max_bytes_per_run"),
    (GOOD + "maintenance: {vacuum: 1d}\n", "maintenance.vacuum", "vacuum_every"),
    (GOOD + "maintenance: {retain: 7d}\n", "maintenance.retain", "retention"),
    (GOOD + "maintenance: {pause_above: 1m}\n", "maintenance.pause_above", "max_lag"),
    (HEAD + MERGED % ("remember", "1d"), "table.merge.remember", "tombstone_retention"),
    (HEAD + MERGED % ("history", "{}"), "table.merge.history", "scd2"),
    (HEAD + "table: {path: /lake/t, mode: history, merge: {keys: [id]}}\n", "table.mode", "scd2"),
    (HEAD + OF_TABLE, "table.expectations[0].otherwise", "on_violation"),
    (GOOD + "retry: {unreachable: {first: 1s}}\n", "retry.unreachable.first", "initial_interval"),
    (GOOD + "retry: {refused: 5}\n", "retry.refused", "access_denied"),
    (GOOD + "retry: {unreachable: {longest: 1m}}\n", "retry.unreachable.longest", "max_interval"),
    (GENERATED % "{bad: 0.1}", "source.generate.bad", "bad_ratio"),
    (GOOD + "decode: {protobuf: {unknown: true}}\n", "decode.protobuf.unknown", "keep_unknown_fields"),
    (GOOD + "decode: {protobuf: {empty: true}}\n", "decode.protobuf.empty", "allow_empty"),
]


@pytest.mark.parametrize(("text", "key", "present"), RENAMED, ids=[key for _, key, _ in RENAMED])
def test_an_earlier_name_is_answered_with_the_present_one(text, key, present):
    _, found = examine_text(text, Path("/base"), "shop.yaml")
    (told,) = [each for each in found if each.key == key]
    assert (told.severity, told.suggestion) == ("error", present)
    assert f"did you mean '{present}'?" in str(told)


def test_every_earlier_name_is_tried():
    names = {(part, old): new for part, keys in KEYS.items() for old, new in keys.items()}
    assert all(new in model_keys(part) and old not in model_keys(part) for (part, old), new in names.items())
    values = [(old, new) for renamed in VALUES.values() for old, new in renamed.items()]
    tried = [(key.rpartition(".")[2].partition("[")[0], new) for _, key, new in RENAMED]
    assert sorted(tried) == sorted(
        [(old, new) for (_, old), new in names.items()] + [("mode", new) for _, new in values]
    )


def test_earlier_names_are_found_in_matches_in_branches_and_below_each_other():
    merge = "mode: upsert, merge: {keys: [id], remember: 1d}"
    more = f"""\
route: {{by: topic}}
tables:
  - {{match: x, {merge}}}
also:
  - {{name: b, table: {{path: /lake/b, {merge}}}}}
maintain: {{cold: 1h}}
"""
    found = findings(more, swap={"./lake/orders": "'/lake/{route}'"})
    assert [(each.line, each.key, each.suggestion) for each in found] == [
        (10, "tables[0].merge.remember", "tombstone_retention"),
        (11, "also", "branches"),
        (12, "also[0].table.merge.remember", "tombstone_retention"),
        (13, "maintain", "maintenance"),
        (13, "maintain.cold", "idle_after"),
    ]


KAFKA = [
    ("topics: [shop.orders]", "", "source.kafka", "none of topics, pattern", ""),
    ("topics: [shop.orders]", "topics: []", "source.kafka.topics", "a list", ""),
    ("topics: [shop.orders]", "topics: shop.orders", "source.kafka.topics", "'shop.orders'", ""),
    ("topics: [shop.orders]", "topics: [a/b]", "source.kafka.topics[0]", "'a/b'", ""),
    ("topics: [shop.orders]", "topics: [a, a]", "source.kafka.topics[1]", "duplicate topic", ""),
    ("topics: [shop.orders]", 'pattern: "["', "source.kafka.pattern", "'['", ""),
    ("topics:", "start: earlist\n    topics:", "source.kafka.start", "'earlist'", "earliest"),
    ("topics:", "start: {timestamp: yesterday}\n    topics:", "source.kafka.start.timestamp", "'yesterday'", ""),
    ("topics:", "start: {offsets: {a: 1}}\n    topics:", "source.kafka.start.offsets", "a mapping", ""),
    ("topics:", "start: {offsets: {0: -1}}\n    topics:", "source.kafka.start.offsets", "a mapping", ""),
    ("topics:", "start: {offsets: {0: {1: 2}, 3: 4}}\n    topics:", "source.kafka.start.offsets", "a mapping", ""),
    ("topics:", "start: {offsets: {shop.order: {0: 1}}}\n    topics:", "source.kafka.start.offsets.shop.order",
     "not read", "shop.orders"),
    ("topics: [shop.orders]", "start: {offsets: {0: 1}}\n    topics: [a, b]", "source.kafka.start.offsets",
     "without a topic", ""),
    ("topics:", "settings: {fetch.max.byte: 1}\n    topics:", "source.kafka.settings.fetch.max.byte", "fetch.max.byte",
     "fetch.max.bytes"),
    ("localhost:9092", "localhost:99999", "source.kafka.brokers", "'localhost:99999'", ""),
    ("localhost:9092", "kafka.example.com:9092", "source.kafka.brokers", "on another host", ""),
    ("topics:", "plaintext: true\n    tls: true\n    topics:", "source.kafka.plaintext", "conflicts with tls", ""),
    ("topics:", "tls: {key: '${env:HOME}'}\n    topics:", "source.kafka.tls", "only one of certificate and key", ""),
    ("topics:", "tls: {ca: x}\n    topics:", "source.kafka.tls.ca", "no certificate", ""),
    ("topics:", "sasl: {mechanism: plain, username: u, password: '${env:HOME}'}\n    topics:",
     "source.kafka.sasl.mechanism", "'plain'", "PLAIN"),
    ("topics:", "sasl: {mechanism: PLAIN, password: '${env:HOME}'}\n    topics:", "source.kafka.sasl.username",
     "required key is missing", ""),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "key", "seen", "meant"), KAFKA)
def test_one_thing_wrong_with_kafka(before, after, key, seen, meant):
    found = only(swap={before: after})
    assert (found.key, found.suggestion) == (key, meant)
    assert seen in found.message
    assert found.expected


HOSTILE_SETTINGS = {
    "sasl.jaas.config": "com.sun.security.auth.module.JndiLoginModule required;",
    "sasl.login.class": "x.Y",
    "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
    "security.protocol": "PLAINTEXT",
    "security.providers": "x.Y",
    "ssl.engine.factory.class": "x.Y",
    "ssl.endpoint.identification.algorithm": '""',
    "ssl.truststore.location": "/etc/x",
    "interceptor.classes": "x.Y",
    "metric.reporters": "x.Y",
    "config.providers": "file",
    "key.deserializer": "x.Y",
    "group.id": "other",
    "enable.auto.commit": "true",
    "auto.offset.reset": "latest",
    "isolation.level": "read_uncommitted",
    "bootstrap.servers": "evil:9092",
    "plugin.library.paths": "x",
}


@pytest.mark.parametrize("name", HOSTILE_SETTINGS)
def test_a_setting_that_could_do_harm_is_refused_with_the_reason(name):
    found = only(swap={"topics:": f"settings: {{{name}: {HOSTILE_SETTINGS[name]}}}\n    topics:"})
    assert found.message.startswith((f"setting '{name}' is not supported: ", f"unknown setting '{name}'"))
    assert found.expected or "not supported" in found.message


def test_harmless_settings_are_taken():
    text = GOOD.replace("topics:", "settings: {fetch.max.bytes: 1000, check.crcs: true}\n    topics:")
    assert loads(text)[0].kafka.settings == {"fetch.max.bytes": "1000", "check.crcs": "true"}


@pytest.mark.parametrize("broker", ["127.0.0.1:9092", "[::1]:9092", "localhost:1", "kafka.localhost:9092"])
def test_a_broker_on_this_machine_needs_no_encryption(broker):
    assert findings(swap={"localhost:9092": broker}) == []


@pytest.mark.parametrize("more", ["tls: true", "plaintext: true"])
def test_a_broker_elsewhere_is_encrypted_or_meant_to_be_plain(more):
    assert findings(swap={"localhost:9092": "kafka.example.com:9092", "topics:": f"{more}\n    topics:"}) == []


# Options of the table · the key found · a word of what was seen · what was meant
TABLE = [
    ("columns: [{name: id, type: bigit}]", "table.columns[0].type", "invalid type: 'bigit'", "bigint"),
    ("columns: [{name: id}]", "table.columns[0].type", "required key is missing", ""),
    ("columns: [{name: id, type: int, nullabel: true}]", "table.columns[0].nullabel", "unknown key", "nullable"),
    ("columns: [{name: a, type: int}, {name: A, type: int}]", "table.columns[1].name", "duplicate column", ""),
    ("columns: [{name: 'a b', type: int}]", "table.columns[0].name", "' ' in a column name", ""),
    ("columns: [{name: _source, type: int}]", "table.columns[0].name", "reserved by Headrace", ""),
    ("columns: [{name: _Change_Type, type: int}]", "table.columns[0].name", "reserved by", ""),
    ("columns: [{name: s, type: 'struct<a: int, A: int>'}]", "table.columns[0].type", "'a' more than once", ""),
    ("columns: [{name: s, type: 'array<struct<a=b: int>>'}]", "table.columns[0].type", "'='", ""),
    ("columns: [{name: a, type: int, unit: ms}]", "table.columns[0].unit", "unit is not supported for int", ""),
    ("columns: [{name: a, type: timestamp_ntz, unit: ms}]", "table.columns[0].unit", "unit is not supported for", ""),
    ("columns: [{name: a, type: int, json: true}]", "table.columns[0].json", "json is not supported for int", ""),
    ("columns: [{name: a, type: int, path: a..b}]", "table.columns[0].path", "'a..b'", ""),
    ("columns: [{name: a, type: byte, default: 128}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: int, default: '1'}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: 'decimal(3,1)', default: 1.25}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: 'decimal(3,1)', default: x}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: boolean, default: 1}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: date, default: 1.2.2025}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: timestamp, unit: ms, default: x}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: binary, default: '?'}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: string, default: 1}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: 'array<int>', default: [x]}]", "table.columns[0].default", "does not fit", ""),
    ("columns: [{name: a, type: int}, {name: b, type: int, path: A}]", "table.columns", "'A'", ""),
    ("columns: [{name: date, type: date}]\n  partition_by: [dat]", "table.partition_by[0]", "no column 'dat'", "date"),
    ("columns: [{name: a, type: 'map<string,int>'}]\n  partition_by: [a]", "table.partition_by[0]", "nested", ""),
    ("partition_by: [_source]", "table.partition_by[0]", "nested", ""),
    ("partition_by: [a, A]", "table.partition_by[1]", "duplicate column", ""),
    ("columns: [{name: a, type: int}]\n  partition_by: [a]\n  source: false", "table.partition_by", "all columns", ""),
    ("contract: {new_field: rescued}", "table.contract.new_field", "'rescued'", "rescue"),
    ("contract: {wrong_type: widen}", "table.contract.wrong_type", "widen requires the typeWidening feature", ""),
    ("contract: {missing: default}", "table.contract.missing", "requires declared columns", ""),
    ("columns: [{name: a, type: int, nullable: false}]\n  contract: {missing: default}", "table.contract.missing",
     "no default for a", ""),
    ("strict: true\n  contract: {new_field: evolve}", "table.contract.new_field", "conflicts with strict", ""),
    ("mode: replace", "table.mode", "'replace'", ""),
    ("compression: zst", "table.compression", "'zst'", "zstd"),
    ("target_file_size: 1KB", "table.target_file_size", "'1KB'", ""),
    ("properties: {delta.enableDeletionVectors: true}", "table.properties.delta.enableDeletionVectors", "'true'", ""),
    ("properties: {delta.columnMapping.mode: name}", "table.properties.delta.columnMapping.mode", "'name'", ""),
    ("properties: {delta.checkpointInterval: often}", "table.properties.delta.checkpointInterval", "'often'", ""),
    ("properties: {delta.setTransactionRetentionDuration: interval 1 day}",
     "table.properties.delta.setTransactionRetentionDuration", "txn expiry", ""),
]  # fmt: skip


@pytest.mark.parametrize(("more", "key", "seen", "meant"), TABLE)
def test_one_thing_wrong_with_the_table(more, key, seen, meant):
    found = only(f"  {more}\n")
    assert (found.key, found.suggestion) == (key, meant)
    assert seen in found.message
    assert found.expected


GOOD_DEFAULTS = [
    "{type: boolean, default: false}",
    "{type: byte, default: -128}",
    "{type: double, default: 1}",
    "{type: 'decimal(38,0)', default: 12345678901234567890123456789012345678}",
    "{type: 'decimal(3,1)', default: 1.5}",
    "{type: date, default: 2025-01-31}",
    "{type: timestamp, default: '2025-01-31T12:00:00Z'}",
    "{type: timestamp, unit: ms, default: 0}",
    "{type: binary, default: AAE=}",
    "{type: string, json: true, default: {a: [1]}}",
    "{type: 'array<int>', default: []}",
    "{type: 'struct<a: int>', default: {a: 1}}",
]


@pytest.mark.parametrize("column", GOOD_DEFAULTS)
def test_a_default_like_the_records_values_fits(column):
    assert findings(f"  columns: [{column.replace('{type', '{name: a, type', 1)}]\n") == []


def test_an_override_is_checked_with_what_it_inherits():
    more = (
        "  columns: [{name: a, type: int}, {name: b, type: int}]\n"
        "tables:\n  - {match: x, partition_by: [c]}\n  - {match: y, partition_by: [b]}\n"
        "route: {by: topic}\n"
    )
    found = only(more, swap={"./lake/orders": "./lake/{route}"})
    assert (found.key, found.line) == ("tables[0].partition_by[0]", 10)


@pytest.mark.parametrize(
    ("path", "by", "seen"),
    [
        ("./lake/{rout}", "topic", "unknown variable {rout}"),
        ("./lake/{topic}", "{header: type}", "the same path for all routes"),
        ("./lake/{field:a}", "{field: b}", "unknown variable {field:a}"),
        ("./lake/{route", "topic", "an unmatched brace"),
        ("./lake/{route}", "fixed", "{route} requires a route"),
        ("./lake/{route}", "{field: a..b}", "'a..b'"),
    ],
)
def test_route_and_path_agree(path, by, seen):
    found = findings(f"route: {{by: {by}}}\n", swap={"./lake/orders": f'"{path}"'})
    assert seen in [each.message for each in found] or any(seen in each.message for each in found)


def test_expressions_are_checked_where_they_stand():
    more = (
        "  columns: [{name: a, type: int}, {name: b, type: int}]\n"
        "transform:\n"
        "  - set: {c: a + b, d: random()}\n"
        "  - where: c > (SELECT 1)\n"
        "  - rename: {c: e}\n"
        "  - where: c > 1\n"
        "  - drop: [ee]\n"
        "  - set: {'x y': '1'}\n"
    )
    found = findings(more)
    assert [(each.key, each.line) for each in found] == [
        ("transform[0].set.d", 10),
        ("transform[1].where", 11),
        ("transform[3].where", 13),
        ("transform[4].drop[0]", 14),
        ("transform[5].set.x y", 15),
    ]
    assert found[3].suggestion == "e"


def test_a_column_can_come_from_the_transform():
    more = '  columns: [{name: a, type: int}]\n  partition_by: [day]\ntransform: [{set: {day: "a // 86400"}}]\n'
    assert findings(more) == []


def test_pipelines_of_one_file_share_neither_name_nor_state():
    found = examine_text(GOOD + "---\n" + GOOD, Path("/base"), "shop.yaml")[1]
    assert [(each.key, each.line) for each in found] == [("pipeline", 1), ("pipeline", 9)]
    other = GOOD.replace("shop\n", "other\n")
    texts = [text + "state: ./state\n" for text in (GOOD, other)]
    found = examine_text("---\n".join(texts), Path("/base"), "shop.yaml")[1]
    assert [each.key for each in found] == ["state", "state"]


def test_a_document_that_is_no_mapping():
    found = examine_text("- pipeline: x\n", Path("/base"), "shop.yaml")[1]
    assert found[0].message == "a list"
    assert "pipeline, source" in found[0].expected


def test_strange_characters_do_not_reach_the_terminal():
    found = only('"\\e[31mred": 1\n')
    assert "\x1b" not in str(found)
    assert len(str(only(f"flush: {{every: {'x' * 10_000}}}\n"))) < 300


# ---- types of other systems, and texts that YAML splits ----


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("datetime", "timestamp"),
        ("TIMESTAMPTZ", "timestamp"),
        ("timestamp with time zone", "timestamp"),
        ("timestamp without time zone", "timestamp_ntz"),
        ("datetime64[ns]", "timestamp"),
        ("list", "array<T>"),
        ("list<datetime>", "array<timestamp>"),
        ("array", "array<T>"),
        ("dict", "map<string,T>"),
        ("jsonb", "string (with json: true it keeps the JSON text)"),
        ("struct<a: jsonb, number: int4>", "struct<a: string, number: integer>"),
        ("varchar(20)", "varchar"),
        ("char(3)", "string"),
        ("uuid", "string"),
        ("decimal", "decimal(p,s)"),
        ("number(10,2)", "decimal(10,2)"),
        ("decimal(50,2)", "decimal(38,2)"),
        ("array<decimal(50,40)>", "array<decimal(38,38)>"),
        ("double precision", "double"),
        ("strng", "string"),
    ],
)
def test_a_type_of_another_system_points_to_the_right_one(written, meant):
    found = only(f"  columns: [{{name: a, type: '{written}'}}]\n")
    assert (found.key, found.line, found.suggestion) == ("table.columns[0].type", 8, meant)
    assert "timestamp, timestamp_ntz, decimal(p,s), array<T>" in found.expected


def test_every_type_that_is_suggested_is_one():
    for kind, names in types._HOLD.items():
        filled = kind.replace("p,s", "10,2").replace("name: T, …", "a: T").replace("T", "long")
        types.parse_type(filled)
        for name in names.split():
            assert name not in types._SPELLINGS
            assert types.suggested_type(name).startswith(kind)
    assert types.suggested_type("no-type-like-it-at-all") == ""


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("decimal(10,2)", 'type: "decimal(10,2)"'),
        ("decimal(50,2)", 'type: "decimal(38,2)"'),
        ("map<string,long>", 'type: "map<string,long>"'),
        ("map<string,map<string,long>>", 'type: "map<string,map<string,long>>"'),
    ],
)
def test_a_type_that_yaml_splits_at_its_comma_needs_quotes(written, meant):
    found = only(f"  columns: [{{name: a, type: {written}, nullable: false}}]\n")
    assert (found.key, found.line, found.column, found.suggestion) == ("table.columns[0].type", 8, 29, meant)
    assert "must be quoted" in found.message
    assert examine_text(GOOD + f"  columns: [{{name: a, {meant}, nullable: false}}]\n", Path("/base"))[1] == []


@pytest.mark.parametrize("wrong", ["2)", "b>", "typ"])
def test_a_key_that_nothing_was_split_from_is_only_unknown(wrong):
    assert only(f"  columns: [{{name: a, type: string, {wrong}}}]\n").message == "unknown key"


# ---- regular expressions ----


@pytest.mark.parametrize(
    ("written", "seen", "meant"),
    [
        ("(a", "'(a': missing ), unterminated subpattern at character 1", ""),
        ("ab[c-", "'ab[c-': unterminated character set at character 3", ""),
        ("x(?=a)b", "'x(?=a)b': invalid perl operator '(?=' at character 2", ""),
        (r"(a)\1", r"'(a)\1': invalid escape sequence '\1' at character 4", ""),
        ("a{5000}", "'a{5000}': invalid repetition size '{5000}' at character 2", ""),
        ("*-orders", "'*-orders': nothing to repeat at character 1", ".*-orders"),
        ("*.orders", "'*.orders': nothing to repeat at character 1", r".*\.orders"),
        ("[[a]", None, ""),
    ],
)
def test_a_regular_expression_is_refused_with_the_reason_and_the_place(written, seen, meant):
    found = findings(swap={"topics: [shop.orders]": f"pattern: '{written}'"})
    assert [(each.key, each.message, each.suggestion) for each in found] == (
        [("source.kafka.pattern", seen, meant)] if seen else []
    )


@pytest.mark.parametrize("call", ["regexp_matches(a, {})", "regexp_extract(a, {}, 1)", "regexp_replace(a, {}, 'x')"])
def test_a_regular_expression_in_sql_is_refused_as_well(call):
    step = 'transform: [{{where: "{} IS NOT NULL"}}]\n'
    found = only(step.format(call.format("'b(?=c'")))
    assert (found.key, found.line) == ("transform[0].where", 8)
    assert "'b(?=c': " in found.message
    assert findings(step.format(call.format("'b(?:c)'"))) == []


MANY_WRONG = """\
pipeline: shop
source: {kafka: {brokers: "kafka.example.com:9092", topics: [orders]}}
flush: {every: soon}
limits: {batch_rows: many}
table:
  path: ./lake/orders
  compression: zip
  columns: [{name: id, type: bigint}, {name: 'a b', type: string}]
  partition_by: [dya]
transform:
  - where: staus > 1
"""


def test_an_invalid_value_hides_no_other_diagnostic(tmp_path: Path):
    _, found = examine_text(MANY_WRONG, tmp_path)
    assert [each.key for each in found] == [
        "source.kafka.brokers",
        "flush.every",
        "limits.batch_rows",
        "table.compression",
        "table.columns[1].name",
        "table.partition_by[0]",
        "transform[0].where",
    ]


@pytest.mark.parametrize(("more", "key", "seen", "meant"), TABLE)
def test_no_diagnostic_of_the_table_is_hidden_by_an_invalid_value_elsewhere(more, key, seen, meant):
    found = {each.key: each for each in findings(f"  {more}\nlimits: {{batch_rows: many}}\n")}
    assert found.keys() == {key, "limits.batch_rows"}
    assert seen in found[key].message


def _with_column(more, column):
    """Options of a table with one more declared column."""
    if "columns: [" not in more:
        return f"{more}\n  columns: [{column}]"
    before, after = more.split("columns: [", 1)
    end = next(at for at in range(len(after)) if after[: at + 1].count("]") > after[: at + 1].count("["))
    return f"{before}columns: [{after[:end]}, {column}{after[end:]}"


UNKNOWN_KEYS = [("nullabel: true", "nullabel"), ("comment: more", "comment")]


@pytest.mark.parametrize(("written", "unknown"), UNKNOWN_KEYS)
@pytest.mark.parametrize("more", [more for more, *_ in TABLE])
def test_an_unknown_key_in_another_column_hides_no_diagnostic_of_the_table(more, written, unknown):
    more = "  " + _with_column(more, "{name: z, type: long}") + "\n"
    expected = {(each.key, each.message) for each in findings(more)}
    found = findings(more.replace("{name: z, type: long}", f"{{name: z, type: long, {written}}}"))
    (added,) = {(each.key, each.message) for each in found} - expected
    assert added[0].endswith(unknown)
    assert expected <= {(each.key, each.message) for each in found}


LOCAL = [
    ("columns: [{name: a, type: list}]", "table.columns[1].type"),
    ("columns: [{name: a, type: int, unit: ms}]", "table.columns[1].unit"),
    ("columns: [{name: a, type: byte, default: 128}]", "table.columns[1].default"),
    ("columns: [{name: 'a b', type: byte}]", "table.columns[1].name"),
    ("properties: {delta.checkpointInterval: often}", "table.properties.delta.checkpointInterval"),
    ("partition_by: [a, A]", "table.partition_by[1]"),
    ("target_file_size: 1KB", "table.target_file_size"),
    ("expectations: [{name: few, expect: 'foo(1)'}]", "table.expectations[0].expect"),
    ("merge: {keys: [id, ID]}\n  mode: upsert", "table.merge.keys"),
    ("strict: true\ntransform: [{where: 'foo(1)'}]", "transform[0].where"),
    ("strict: true\ntransform: [{where: 'a ='}]", "transform[0].where"),
    ("strict: true\ntransform: [{where: \"regexp_matches(a, 'b(?=c')\"}]", "transform[0].where"),
    ("strict: true\ntransform: [{jmespath: {a: 'b['}}]", "transform[0].jmespath.a"),
    ("strict: true\nroute: {by: {field: a..b}}", "route.by.field"),
    ("strict: true\nexplode: {column: a b}", "explode.column"),
]  # a finding about one value, which no other value can explain
# What cannot be read · its findings
UNREAD = [
    ("{name: z, type: int, nullabel: true}", ["table.columns[0].nullabel"]),
    ("{name: z, type: decimal(10,2)}", ["table.columns[0].type"]),
    ("{name: z, typo: date}", ["table.columns[0].type", "table.columns[0].typo"]),
    ("{name: z, type: timestamp, unit: hours}", ["table.columns[0].unit"]),
]


@pytest.mark.parametrize(("column", "keys"), UNREAD)
@pytest.mark.parametrize(("more", "key"), LOCAL)
def test_a_diagnostic_about_one_value_is_hidden_by_none_that_cannot_be_read(more, key, column, keys):
    more = more.replace("columns: [", f"columns: [{column}, ")
    more = more if "columns" in more else f"columns: [{column}]\n  {more}"
    found = {each.key for each in findings(f"  {more}\n")}
    assert {key, *keys} <= found


def test_a_diagnostic_that_an_unread_value_explains_is_hidden():
    """The unit would make the number a timestamp, and the target size would allow the minimum."""
    assert only("  columns: [{name: a, type: timestamp, unti: ms, default: 5}]\n").key == "table.columns[0].unti"
    assert only("  min_file_size: 1GB\n  target_file_size: 4 GiBi\n").key == "table.target_file_size"
    column = "{name: a, type: int, nullable: false, defualt: 0}"
    assert only(f"  columns: [{column}]\n  contract: {{missing: default}}\n").key == "table.columns[0].defualt"


def test_what_rests_on_an_invalid_value_is_not_told(tmp_path: Path):
    text = MANY_WRONG.replace("{name: id, type: bigint}", "{name: dya, typo: date}").replace("'a b'", "staus")
    _, found = examine_text(text, tmp_path)
    assert [each.key for each in found] == [
        "source.kafka.brokers",
        "flush.every",
        "limits.batch_rows",
        "table.compression",
        "table.columns[0].type",
        "table.columns[0].typo",
    ]


def test_items_after_an_invalid_one_keep_their_places(tmp_path: Path):
    text = MANY_WRONG.replace("flush: {every: soon}\n", "").replace("limits: {batch_rows: many}\n", "")
    text = text.replace("compression: zip", "z_order: [id]").replace("topics: [orders]", "topics: ['!', 'a?', ok]")
    _, found = examine_text(text, tmp_path)
    topics = [each for each in found if each.key.startswith("source.kafka.topics")]
    assert [each.key for each in topics] == [f"source.kafka.topics[{at}]" for at in (0, 1)]
