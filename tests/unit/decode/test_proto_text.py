"""Parsing of `.proto` texts, compared with protoc; errors name the file and the line."""

from __future__ import annotations

import base64
import importlib
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import google.api
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.decode.protobuf.proto_text import parsed
from headrace.decode.protobuf.schema import WELL_KNOWN, BadProtobufSchema, NoMessage, ParsedFile, described_type, linked
from headrace.decode.protobuf.schema_files import in_file, in_texts
from services import proto_texts

ROOT = Path(google.api.__path__[0]).parent.parent
FILES = sorted(
    str(file.relative_to(ROOT))
    for file in ROOT.glob("google/*/**/*.proto")
    if file.name != "operations_proto.proto"  # its module is another file's
)


HEAD = 'syntax = "proto3";\n'


def compiled(name: str) -> Any:
    """What protoc made of a file."""
    module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


def needed(name: str, made: Any) -> list[Any]:
    files = []
    for each in made.dependency:
        if each not in WELL_KNOWN:
            inner = compiled(each)
            files += [*needed(each, inner), inner]
    return files


def bare(file: Any) -> Any:
    """Without what has no meaning for the wire."""
    file = descriptor_pb2.FileDescriptorProto.FromString(file.SerializeToString())
    for name in ("options", "service", "extension", "source_code_info"):
        file.ClearField(name)
    for message in file.message_type:
        _bare_message(message)
    for enum in file.enum_type:
        _bare_enum(enum)
    return file


def _bare_message(message: Any) -> None:
    for name in ("extension_range", "reserved_range", "reserved_name", "extension"):
        message.ClearField(name)
    if not message.options.map_entry:
        message.ClearField("options")
    for field in message.field:
        packed = field.options.packed if field.options.HasField("packed") else None
        for name in ("json_name", "default_value", "options"):
            field.ClearField(name)
        if packed is not None:
            field.options.packed = packed
    for inner in message.nested_type:
        _bare_message(inner)
    for enum in message.enum_type:
        _bare_enum(enum)


def _bare_enum(enum: Any) -> None:
    for name in ("reserved_range", "reserved_name", "options"):
        enum.ClearField(name)
    for value in enum.value:
        value.ClearField("options")


@pytest.mark.parametrize("name", FILES)
def test_as_protoc_reads_it(name):
    file = parsed((ROOT / name).read_text(), name)
    schema = linked([*map(ParsedFile, needed(name, file.descriptor)), file])
    linked_file = descriptor_pb2.FileDescriptorProto()
    schema.pool.FindFileByName(name).CopyToProto(linked_file)
    assert bare(linked_file) == bare(compiled(name))


def test_there_is_enough_to_hold_it_to():
    assert len(FILES) > 40


def meanings(schema: Any) -> dict[str, Any]:
    """Every message type of a file by its name, or why it cannot be a row."""
    types: dict[str, Any] = {}

    def add(found: Any) -> None:
        try:
            types[found.full_name] = schema.message(found.full_name)
        except BadProtobufSchema as bad:
            types[found.full_name] = str(bad)
        for inner in found.nested_types:
            add(inner)

    for found in schema.file.message_types_by_name.values():
        add(found)
    return types


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_random_texts_mean_what_protoc_makes_of_them(seed):
    text = proto_texts.text(random.Random(seed))
    compiled = proto_texts.compiled(text)
    assert compiled is not None
    assert meanings(in_texts(text, {}, 64)) == meanings(described_type(compiled, 64))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_damaged_texts_that_protoc_accepts_are_read_the_same(seed):
    text = proto_texts.damaged(random.Random(seed))
    compiled = proto_texts.compiled(text)
    if compiled is not None:  # about one in five
        assert meanings(in_texts(text, {}, 64)) == meanings(described_type(compiled, 64))


@pytest.mark.parametrize("label", ["optional", "repeated"])
def test_a_label_before_a_full_type_name(label):
    schema = in_texts(f"{HEAD}package a.b; message B {{}} message A {{ {label} .a.b.B b = 1; }}", {}, 64)
    [field] = schema.message("a.b.A").fields
    assert (field.message.name, field.repeated) == ("a.b.B", label == "repeated")


ODD = """
// keywords are good names, and so on
edition = "2023";
package a . b;
import option "nowhere.proto";
option features.field_presence = IMPLICIT;
option (custom).thing = { a: [1, 2] b { c: "}" } };
message message {
  option (x) = -inf;
  extensions 100 to max [declaration = { number: 100 full_name: ".x" }];
  reserved 7, 9 to 11; reserved "gone", 'too';
  int32 reserved_ = 1; string optional = 2 [features.field_presence = EXPLICIT, default = "a" 'b', json_name = "z"];
  repeated int32 message = 0x10 [features = { repeated_field_encoding: EXPANDED }];
  .a.b.message.kind enum = 021;
  enum kind { option allow_alias = true; Z = 0; O = 1 [deprecated = true]; ONE = 1; N = -0x1; reserved 5; };
  inner group_like = 12 [features.message_encoding = DELIMITED];
  message inner { oneof oneof { option (q) = 1; int64 option = 1; bytes map = 2; } }
  map < string , inner > map_of_things = 13;;
  extend message { int32 ext = 100; }
}
service S { rpc M (message) returns (stream message) { option (h) = { get: "/x" }; } }
"""


def test_odd_but_good():
    schema = linked([parsed(ODD, "odd.proto")])
    message = schema.message("a.b.message")
    fields = {field.name: field for field in message.fields}
    assert list(fields) == ["reserved_", "optional", "message", "enum", "group_like", "map_of_things"]
    assert [fields[name].number for name in ("message", "enum")] == [16, 17]
    assert not fields["reserved_"].presence
    assert fields["optional"].presence
    assert fields["group_like"].kind == "group"
    assert dict(fields["enum"].names) == {0: "Z", 1: "O", -1: "N"}
    assert [inner.choice for inner in fields["group_like"].message.fields] == ["oneof"] * 2
    assert fields["map_of_things"].map


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (HEAD + "message A { int32 x = 1 }", ":2: expected ';', saw }"),
        (HEAD + "message A { int32 x = 1;", "saw the end"),
        (HEAD + "message A { int32 x; }", "expected '=', saw ;"),
        (HEAD + "message A { int32 x = 0; }", "a field number"),
        (HEAD + "message A { int32 x = 536870912; }", "a field number"),
        (HEAD + "message A { int32 x = 1.5; }", "an integer"),
        (HEAD + "message A { int32 x = 1; int32 y = 1; }", "the schema"),
        (HEAD + "message A { int32 x = 1; int32 x = 2; }", "the schema"),
        (HEAD + "message A {\n B b = 1; }", "the schema:3: couldn't resolve name 'B'"),
        (HEAD + "message A {}\nmessage C { repeated .x.A a = 1; }", "the schema:3: couldn't resolve name '.x.A'"),
        (HEAD + "message A { map<float, int32> m = 1; }", "the schema"),
        (HEAD + 'import "gone.proto"; message A {}', "the schema:2: import gone.proto not found; register it"),
        (HEAD + "enum E { A = 1; }", "the schema"),
        (HEAD + "message A { § }", "is not valid syntax"),
        (HEAD + "surprise A {}", "expected import, package"),
        ('syntax = "proto9";', "'proto9' is not supported"),
        ("message A { int32 x = 1; }", "required, optional or repeated"),
        ("message A { option message_set_wire_format = true; }", "message_set_wire_format"),
        (HEAD + "message A {" * 40, "at most 32 levels"),
        (HEAD + 'option x = "' + "\n" + '";', "is not valid syntax"),
        ("", "no message at index 0"),
    ],
)
def test_what_is_no_schema(text, why):
    with pytest.raises(BadProtobufSchema) as refused:
        in_texts(text, {}, 64).at([0])
    assert why in str(refused.value)


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet='messag A{}=;"1<>[]()/*.,\n-', max_size=60))
def test_any_text_is_a_schema_or_refused(text):
    with suppress(BadProtobufSchema):
        in_texts(HEAD + text, {}, 64)


def test_messages_that_hold_themselves():
    schema = in_texts(HEAD + "message A { B b = 1; } message B { repeated A a = 1; } message C {}", {}, 64)
    with pytest.raises(BadProtobufSchema, match="is recursive"):
        schema.at([0])
    assert schema.at([2]).name == "C"
    with pytest.raises(NoMessage):
        schema.at([3])
    with pytest.raises(NoMessage):
        schema.at([2, 0])


def test_a_small_text_that_would_be_a_million_columns():
    levels = "".join(
        f"message M{nth} {{ {' '.join(f'M{nth + 1} f{at} = {at};' for at in range(1, 11))} }}\n" for nth in range(6)
    )
    with pytest.raises(BadProtobufSchema, match="more than 10000 fields"):
        in_texts(HEAD + levels + "message M6 { int32 x = 1; }", {}, 64).at([0])


def test_too_deep_a_message():
    levels = "".join(f"message M{nth} {{ M{nth + 1} f = 1; }}\n" for nth in range(70))
    schema = in_texts(HEAD + levels + "message M70 { int32 x = 1; }", {}, 64)
    with pytest.raises(BadProtobufSchema, match="deeper than 64"):
        schema.at([0])
    assert schema.at([60]).name == "M60"


def test_a_file_and_its_imports(tmp_path):
    (tmp_path / "geo").mkdir()
    (tmp_path / "shop").mkdir()
    (tmp_path / "geo" / "point.proto").write_text(HEAD + "package geo; message Point { double x = 1; }")
    place = HEAD + 'package shop; import public "geo/point.proto"; message Place { geo.Point at = 1; }'
    (tmp_path / "shop" / "place.proto").write_text(place)
    main = tmp_path / "shop" / "main.proto"
    main.write_text(HEAD + 'package shop; import "shop/place.proto"; message Order { Place p = 1; geo.Point q = 2; }')
    order = in_file(str(main), 64).message("shop.Order")
    assert [field.message.name for field in order.fields] == ["shop.Place", "geo.Point"]
    main.write_text(HEAD + 'package shop; import "shop/main2.proto"; message Order {}')
    with pytest.raises(
        BadProtobufSchema, match=r"main\.proto:2: import shop/main2\.proto not found; put it in the directory"
    ):
        in_file(str(main), 64)
    main.write_text(HEAD + 'package shop; import "../geo/point.proto"; message Order {}')
    with pytest.raises(BadProtobufSchema, match="not the relative path"):
        in_file(str(main), 64)
    (tmp_path / "passwords").write_text("secret")
    main.write_text(HEAD + 'package shop; import "passwords"; message Order {}')
    with pytest.raises(BadProtobufSchema, match="not the relative path"):
        in_file(str(main), 64)
    main.write_text(HEAD + 'package shop; import "main.proto"; message Order {}')
    with pytest.raises(BadProtobufSchema, match="imports itself"):
        in_file(str(main), 64)


def test_a_descriptor_set(tmp_path):
    files = descriptor_pb2.FileDescriptorSet()
    files.file.append(parsed(HEAD + 'package b; import "a.proto"; message B { a.A a = 1; }', "b.proto").descriptor)
    files.file.append(parsed(HEAD + "package a; message A { int32 x = 1; }", "a.proto").descriptor)
    (tmp_path / "all.desc").write_bytes(files.SerializeToString())
    assert in_file(str(tmp_path / "all.desc"), 64).message("b.B").fields[0].message.name == "a.A"
    with pytest.raises(BadProtobufSchema, match="not a descriptor set"):
        described_type(b"\xff")
    with pytest.raises(BadProtobufSchema, match="no file"):
        described_type(b"")


def test_messages_by_their_place_in_the_text():
    inner = "map<string, int32> m = 1; message N { message O {} } map<string, int32> k = 2; message P {}"
    schema = in_texts(f"{HEAD}message A {{ {inner} }} message B {{}}", {}, 64)
    assert [schema.at(path).name for path in ([0], [1], [0, 0], [0, 1], [0, 0, 0])] == ["A", "B", "A.N", "A.P", "A.N.O"]
    assert schema.at([0, 3]).name == "A.P"  # as those count who count entries of maps
    with pytest.raises(NoMessage):
        schema.at([0, 2])
    with pytest.raises(NoMessage):
        schema.at([0, -1])


def test_what_registries_let_import_without_a_reference():
    text = 'import "confluent/meta.proto"; import "confluent/type/decimal.proto"; import "google/protobuf/any.proto";'
    schema = in_texts(
        f"{HEAD}{text} message A {{ confluent.type.Decimal d = 1 [(confluent.field_meta).doc = 'x']; }}", {}, 64
    )
    assert schema.at([0]).fields[0].message.name == "confluent.type.Decimal"
    text = 'import "confluent/types/decimal.proto"; import "confluent/type/variant.proto";'
    fields = "confluent.type.Decimal d = 1; confluent.type.Variant v = 2;"
    types = [field.message.name for field in in_texts(f"{HEAD}{text} message A {{ {fields} }}", {}, 64).at([0]).fields]
    assert types == ["confluent.type.Decimal", "confluent.type.Variant"]


def test_types_that_registries_know_without_a_reference(tmp_path):
    text = 'import "google/type/datetime.proto"; import "google/type/money.proto";'
    text = f"{HEAD}{text} message A {{ google.type.DateTime at = 1; google.type.Money price = 2; }}"
    (tmp_path / "a.proto").write_text(text)
    for schema in (in_texts(text, {}, 64), in_file(str(tmp_path / "a.proto"), 64)):
        moment, price = schema.message("A").fields
        assert [field.name for field in price.message.fields] == ["currency_code", "units", "nanos"]
        assert moment.message.fields[-1].message.name == "google.type.TimeZone"


def test_a_reference_or_a_file_comes_before_the_bundled_type(tmp_path):
    text = f'{HEAD}import "google/type/date.proto"; message A {{ google.type.Date on = 1; }}'
    own = f"{HEAD}package google.type; message Date {{ string text = 1; }}"
    (tmp_path / "google" / "type").mkdir(parents=True)
    (tmp_path / "google" / "type" / "date.proto").write_text(own)
    (tmp_path / "a.proto").write_text(text)
    for schema in (in_texts(text, {"google/type/date.proto": own}, 64), in_file(str(tmp_path / "a.proto"), 64)):
        assert [field.name for field in schema.message("A").fields[0].message.fields] == ["text"]


def test_only_the_bundled_files_themselves_are_read():
    for name in ("google/type/../../secret.proto", "google/type/gone.proto", "google/type/", "google/type/date_pb2.py"):
        with pytest.raises(BadProtobufSchema, match="not found; register it as a reference"):
            in_texts(f'{HEAD}import "{name}"; message A {{}}', {}, 64)


def test_a_registered_descriptor_instead_of_text():
    """Python's Confluent client registers descriptors in Base64; not every registry makes text of them."""
    geo = base64.b64encode(
        parsed(HEAD + "package geo; message Point { double x = 1; }", "any.proto").descriptor.SerializeToString()
    )
    text = HEAD + 'package shop; import "geo/point.proto"; message Place { geo.Point at = 1; }'
    shop = base64.b64encode(parsed(text, "place.proto").descriptor.SerializeToString())
    for main in (text, shop.decode()):
        schema = in_texts(main, {"geo/point.proto": geo.decode()}, 64)
        assert schema.at([0]).fields[0].message.name == "geo.Point"
    with pytest.raises(BadProtobufSchema, match="the schema"):
        in_texts(base64.b64encode(b"nonsense").decode(), {}, 64)


@pytest.mark.parametrize(
    "option",
    [
        "(buf.validate.field) = { string: [ { min_len: 1 }, { max_len: 3 } ] }",  # two rules, normalized by a registry
        '(kind) = { type: "FIELD_TYPE_UNSPECIFIED" }',  # an enum, stored with quotes
        "(buf.validate.field).string.(shop.datetime) = true",
        '(a) = { [shop.datetime]: true, [type.example/x.Y] { b: 1 } c: < d: "]" > }',
    ],
)
def test_option_values_do_not_matter(option):
    text = f"{HEAD}message A {{ string note = 2 [{option}, deprecated = true]; int32 x = 3; }}"
    assert proto_texts.compiled(text) is None
    assert [(field.name, field.number) for field in in_texts(text, {}, 64).at([0]).fields] == [("note", 2), ("x", 3)]
