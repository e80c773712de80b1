"""References and secrets: followed late, once, within bounds, and never printed."""

import json
import os
import pickle
import re
import traceback
from typing import get_args

import pytest

from headrace.errors import SpecError
from headrace.spec import Secret
from headrace.spec.base import model_keys, parts_in
from headrace.spec.diagnostics import part_at
from headrace.spec.model import SECRETS, Spec, is_secret
from headrace.spec.secrets import BadReference, resolve_reference
from headrace.validate.load import examine_text, loads

CANARY = "canary-5f2b"

SECURED = """\
pipeline: web
source:
  kafka:
    brokers: "${env:HOST}:9092"
    topics: [web_requests]
    tls: {ca: "${file:ca.pem}", certificate: "${file:ca.pem}", key: "${file:key.pem}", key_password: "${env:CANARY}"}
    sasl: {mechanism: PLAIN, username: user, password: "${env:CANARY}"}
table: {path: "s3://lake/web"}
storage: {s3: {access_key_id: id, secret_access_key: "${env:CANARY}", session_token: "${env:CANARY}"}}
"""
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY", CANARY)
    monkeypatch.setenv("HOST", "kafka.example.com")
    (tmp_path / "ca.pem").write_text(CERTIFICATE)
    (tmp_path / "key.pem").write_text(f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----\n")
    (tmp_path / "key.pem").chmod(0o600)
    return tmp_path


def test_a_secret_is_revealed_only_on_demand(folder):
    spec = loads(SECURED, folder)[0]
    everything = [repr(spec), str(spec), spec.text, spec.model_dump_json(), repr(spec.model_dump()), pickle.dumps(spec)]
    assert not any(CANARY in str(shown) for shown in everything)
    assert spec.kafka.sasl.password.reveal() == CANARY
    assert spec.storage_profile()["s3"]["secret_access_key"] == CANARY


def test_the_text_keeps_references_and_reads_back(folder):
    spec = loads(SECURED, folder)[0]
    assert "${env:HOST}:9092" in spec.text
    again = loads(spec.text, folder)[0]
    assert (again, again.digest) == (spec, spec.digest)


def test_a_rotated_secret_is_seen(folder, monkeypatch):
    spec = loads(SECURED, folder)[0]
    monkeypatch.setenv("CANARY", "another")
    assert spec.kafka.sasl.password.reveal() == "another"


def test_each_client_gets_its_own_spelling(folder):
    kafka = loads(SECURED, folder)[0].kafka
    java, native = kafka.java_security(), kafka.librdkafka_security()
    assert java["security.protocol"] == native["security.protocol"] == "SASL_SSL"
    assert java["ssl.endpoint.identification.algorithm"] == native["ssl.endpoint.identification.algorithm"] == "https"
    assert java["ssl.truststore.certificates"] == native["ssl.ca.pem"] == CERTIFICATE.strip()
    assert java["ssl.keystore.key"] == native["ssl.key.pem"]
    assert java["sasl.jaas.config"].endswith(f'required username="user" password="{CANARY}";')
    assert native["sasl.password"] == CANARY


def test_a_password_cannot_leave_its_quotes(folder, monkeypatch):
    monkeypatch.setenv("CANARY", 'x"; evil.Module required a="\\')
    line = loads(SECURED, folder)[0].kafka.java_security()["sasl.jaas.config"]
    assert line.endswith(r'password="x\"; evil.Module required a=\"\\";')


LITERALS = {
    "a password": ('password: "${env:CANARY}"', f"password: {CANARY}"),
    "a password in a mapping": ('password: "${env:CANARY}"', f"password: {{x: {CANARY}}}"),
    "a password around a reference": ('password: "${env:CANARY}"', 'password: "canary-5f2b${env:HOST}"'),
    "a key": ('key: "${file:key.pem}"', f'key: "-----BEGIN PRIVATE KEY-----{CANARY}"'),
    "a key as certificate": ('ca: "${file:ca.pem}"', f'ca: "-----BEGIN PRIVATE KEY-----{CANARY}"'),
    "a store's key": ('secret_access_key: "${env:CANARY}"', f"secret_access_key: {CANARY}"),
    "a misspelt key": ("username: user", f"username: user, passwort: {CANARY}"),
    "a JAAS line": ("topics:", f'settings: {{sasl.jaas.config: "x password={CANARY};"}}\n    topics:'),
    "an option": ("access_key_id: id", f"access_key_id: id, options: {{aws_secret_access_key: {CANARY}}}"),
    "a URL's user": ("access_key_id: id", f'access_key_id: id, endpoint: "https://u:{CANARY}@s3.example.com"'),
    "a path's user": ("s3://lake/web", f"s3://u:{CANARY}@lake/web"),
    "a broker's user": ("${env:HOST}:9092", f"u:{CANARY}@kafka:9092"),
}


@pytest.mark.parametrize("name", LITERALS)
def test_a_secret_written_out_is_refused_and_not_repeated(folder, name):
    before, after = LITERALS[name]
    text = SECURED.replace(before, after)
    assert text != SECURED
    _, findings = examine_text(text, folder, "web.yaml")
    assert any(each.severity == "error" for each in findings)
    with pytest.raises(SpecError) as refused:
        loads(text, folder)
    shown = "".join(map(str, findings)) + "".join(traceback.format_exception(refused.value))
    assert CANARY not in shown


def test_a_secret_that_leads_nowhere_is_doubtful_until_it_is_used(folder, monkeypatch):
    monkeypatch.delenv("CANARY")
    specs, findings = examine_text(SECURED, folder, "web.yaml")
    assert {each.severity for each in findings} == {"warning"}
    assert {each.message for each in findings} == {"Environment variable CANARY is not set"}
    with pytest.raises(BadReference, match="CANARY"):
        specs[0].storage_profile()


def test_a_key_that_everybody_may_read_is_doubtful(folder):
    (folder / "key.pem").chmod(0o644)
    _, findings = examine_text(SECURED, folder, "web.yaml")
    assert [(each.key, each.severity, each.expected) for each in findings] == [
        ("source.kafka.tls.key", "warning", "mode 0600")
    ]


def test_an_ordinary_reference_that_leads_nowhere_is_wrong(folder, monkeypatch):
    monkeypatch.delenv("HOST")
    _, findings = examine_text(SECURED, folder, "web.yaml")
    errors = [each for each in findings if each.severity == "error"]
    assert [(each.key, each.line, each.message) for each in errors] == [
        ("source.kafka.brokers", 4, "Environment variable HOST is not set")
    ]


def test_what_a_reference_brings_is_not_followed_again(folder, monkeypatch):
    monkeypatch.setenv("HOST", "${env:CANARY}")
    assert resolve_reference("${env:HOST} $${env:CANARY}", folder) == "${env:CANARY} ${env:CANARY}"


@pytest.mark.parametrize(
    "text", ["${CANARY}", "${env:}", "${env:A B}", "${cmd:id}", "${file:}", "${}", "${env:CANARY-x}"]
)
def test_other_references_are_refused(folder, text):
    with pytest.raises(BadReference, match="Invalid reference"):
        resolve_reference(text, folder)
    with pytest.raises(ValueError, match="a reference: "):
        Secret(text, folder)


def test_files_are_bounded_and_plain(folder):
    (folder / "large").write_bytes(b"x" * (64 * 1024 + 1))
    (folder / "binary").write_bytes(b"\xff")
    os.mkfifo(folder / "pipe")
    for name, word in {
        "large": "64 KiB",
        "binary": "UTF-8",
        "pipe": "regular file",
        ".": "regular",
        "none": "No such",
    }.items():
        with pytest.raises(BadReference, match=word):
            resolve_reference(f"${{file:{name}}}", folder)


def test_the_list_of_secrets_is_that_of_the_models():
    def found(part, path):
        for key, field in model_keys(part).items():
            many = ("*",) if re.match(r"tuple|.*Mapping\[str", str(field.annotation)) else ()
            if Secret in (field.annotation, *get_args(field.annotation)):
                yield (*path, key, *many)
            for inner in parts_in(field.annotation):
                yield from found(inner, (*path, key, *many))

    assert set(found(Spec, ())) == SECRETS
    places = [tuple(0 if step == "*" else step for step in path) for path in SECRETS]
    parts = [path[:-1] if isinstance(path[-1], str) else path[:-2] for path in places]  # or a list of secrets
    assert all(part_at(path) is not None for path in parts)
    assert all(map(is_secret, places))


def test_the_json_schema_takes_only_references_for_secrets():
    schema = Spec.model_json_schema()
    assert json.dumps(schema["$defs"]["SaslSpec"]["properties"]["password"]).count("env:") == 1
