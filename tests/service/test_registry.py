"""The client against a real schema registry."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode

import pytest
from google.protobuf import descriptor_pb2
from google.type import money_pb2

from headrace.decode.protobuf.schema_files import in_texts
from headrace.decode.registry.client import Registered, Registry, UnknownSchema
from headrace.errors import RegistryUnreachable
from headrace.spec.registry import RegistrySpec
from services.registry import RegistryServer

POINT = {"type": "record", "name": "Point", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}


@pytest.fixture
def client(registry: RegistryServer, tmp_path) -> Registry:
    return Registry(RegistrySpec(url=registry.url), tmp_path)


@pytest.fixture
def subject() -> str:
    return f"s {uuid.uuid4().hex[:8]}/value"


def test_a_schema_of_each_kind(registry, client, subject):
    proto = 'syntax = "proto3";\nmessage M {\n  int32 n = 1;\n}\n'
    avro = registry.register(f"{subject}-a", POINT)
    assert json.loads(client.schema(avro).text) == POINT
    assert client.schema(avro).kind == "AVRO"
    found = client.schema(registry.register(f"{subject}-p", proto, "PROTOBUF"))
    assert (found.kind, "message M" in found.text) == ("PROTOBUF", True)
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "T", "type": "object"}
    found = client.schema(registry.register(f"{subject}-j", schema, "JSON"))
    assert (found.kind, json.loads(found.text)) == ("JSON", schema)


def test_a_protobuf_descriptor_in_base64(registry, client, subject):
    """As Python's Confluent client registers it; this registry returns it as it is."""
    file = descriptor_pb2.FileDescriptorProto.FromString(money_pb2.DESCRIPTOR.serialized_pb)
    registered = client.schema(registry.register(subject, b64encode(file.SerializeToString()).decode(), "PROTOBUF"))
    assert "message" not in registered.text
    message = in_texts(registered.text, registered.references, 64).at([0])
    assert [field.name for field in message.fields] == ["currency_code", "units", "nanos"]


def test_references(registry, client, subject):
    registry.register(f"{subject}-point", POINT)
    line = {"type": "record", "name": "Line", "fields": [{"name": "from", "type": "geo.Point"}]}
    refers = [{"name": "geo.Point", "subject": f"{subject}-point", "version": 1}]
    id = registry.register(f"{subject}-line", line, references=refers)
    found = client.schema(id)
    assert {name: json.loads(text) for name, text in found.references.items()} == {"geo.Point": POINT}
    assert client.newest(f"{subject}-line") == found


def test_the_newest(registry, client, subject):
    assert client.newest(subject) is None
    registry.register(subject, POINT)
    more = {**POINT, "fields": [*POINT["fields"], {"name": "y", "type": "int", "default": 0}]}
    id = registry.register(subject, more)
    found = client.newest(subject)
    assert isinstance(found, Registered)
    assert (found.id, json.loads(found.text)) == (id, more)


def test_an_id_that_nobody_has(client):
    with pytest.raises(UnknownSchema, match="no schema 123456"):
        client.schema(123456)


def test_a_wrong_path_is_no_unknown_schema(registry, tmp_path):
    elsewhere = Registry(RegistrySpec(url=f"{registry.url}/nowhere"), tmp_path)
    with pytest.raises(RegistryUnreachable):
        elsewhere.schema(1)
