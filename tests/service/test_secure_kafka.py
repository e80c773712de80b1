"""Encrypted and authenticated listeners of a real broker, end to end; and every way to be refused, by its name."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from headrace.dev.kafka import Broker
from headrace.errors import AuthenticationFailed
from headrace.source.base import open_source
from headrace.spec import Spec
from services.certs import Certificates
from services.kafka import make_topic, produce
from services.threads import drain, drain_all, ids, numbered, one_table

SECRET = "ann-secret"


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A server that is not on this host, and the authority that vouches for it."""

    authority: Path
    server: Path


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Elsewhere:
    folder, ca = tmp_path_factory.mktemp("elsewhere"), trustme.CA()
    leaf = ca.issue_cert("kafka.elsewhere.test", key_type=trustme.KeyType.ECDSA)
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    made = Elsewhere(folder / "ca.pem", folder / "server.pem")
    ca.cert_pem.write_to_path(made.authority)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made.server.write_bytes(pem + b"".join(part.bytes() for part in leaf.cert_chain_pems))
    return made


@pytest.fixture(scope="module")
def strict_kafka(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates, elsewhere: Elsewhere
) -> Iterator[Broker]:
    """`tls` asks clients for a certificate; `sasl_tls` shows the certificate of another host."""
    settings = {
        "listener.name.tls.ssl.client.auth": "required",
        "listener.name.sasl_tls.ssl.keystore.location": str(elsewhere.server),
        "listener.name.sasl_tls.ssl.keystore.type": "PEM",
    }
    folder = tmp_path_factory.mktemp("strict-kafka")
    with Broker.start(
        folder, listeners=("tls", "sasl_tls"), tls=certificates.tls, users={"ann": SECRET}, settings=settings
    ) as broker:
        yield broker


@pytest.fixture(autouse=True)
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANN", SECRET)
    monkeypatch.setenv("WRONG", "not-ann-secret")


def connection(broker: Broker, listener: str, **keys: Any) -> dict[str, Any]:
    return {"brokers": broker.address(listener), **keys}


def sasl(mechanism: str, variable: str = "ANN") -> dict[str, str]:
    return {"mechanism": mechanism, "username": "ann", "password": f"${{env:{variable}}}"}


def client(certificates: Certificates) -> dict[str, str]:
    return {
        "ca": f"${{file:{certificates.authority}}}",
        "certificate": f"${{file:{certificates.client_chain}}}",
        "key": f"${{file:{certificates.client_key}}}",
    }


def spec_of(kafka: dict[str, Any], topic: str, table: Path, name: str) -> Spec:
    source = {"kafka": {**kafka, "topics": [topic]}}
    retry = {"unreachable": {"initial_interval": "50ms", "max_interval": "500ms"}, "access_denied": 3}
    return one_table("unused:1", topic, table, pipeline=name, source=source, retry=retry)


@pytest.mark.usefixtures("spark")
def test_records_come_through_every_kind_of_listener(
    secure_kafka: Broker, strict_kafka: Broker, certificates: Certificates, lake: Path
) -> None:
    topic = f"t-{uuid.uuid4().hex[:8]}"
    for broker in (secure_kafka, strict_kafka):
        make_topic(broker.bootstrap, topic, 2)
        produce(broker.bootstrap, topic, numbered(0, 50))
    text, by_file = certificates.authority.read_text(), f"${{file:{certificates.authority}}}"
    ways = {
        "tls": connection(secure_kafka, "tls", tls={"ca": by_file}),
        "tls-text": connection(secure_kafka, "tls", tls={"ca": text}),
        "mtls": connection(strict_kafka, "tls", tls=client(certificates)),
        "plain": connection(secure_kafka, "sasl", sasl=sasl("PLAIN")),
        "scram256": connection(secure_kafka, "sasl", sasl=sasl("SCRAM-SHA-256")),
        "scram512-tls": connection(secure_kafka, "sasl_tls", sasl=sasl("SCRAM-SHA-512"), tls={"ca": by_file}),
    }
    specs = [spec_of(kafka, topic, lake / name, name) for name, kafka in ways.items()]
    assert drain_all(specs) == dict.fromkeys(ways)
    for name in ways:
        assert ids(lake / name) == list(range(50))


REFUSALS = ["wrong CA", "no CA", "wrong host", "no client certificate", "wrong PLAIN", "wrong SCRAM", "unknown user"]


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refused_identity_is_named_and_not_a_time_out(
    secure_kafka: Broker,
    strict_kafka: Broker,
    certificates: Certificates,
    elsewhere: Elsewhere,
    lake: Path,
    case: str,
) -> None:
    authorities = (certificates.authority, certificates.stranger, elsewhere.authority)
    ours, stranger, theirs = (f"${{file:{path}}}" for path in authorities)
    kafka = {
        "wrong CA": connection(secure_kafka, "tls", tls={"ca": stranger}),
        "no CA": connection(secure_kafka, "tls", tls=True),
        "wrong host": connection(strict_kafka, "sasl_tls", tls={"ca": theirs}, sasl=sasl("PLAIN")),
        "no client certificate": connection(strict_kafka, "tls", tls={"ca": ours}),
        "wrong PLAIN": connection(secure_kafka, "sasl", sasl=sasl("PLAIN", "WRONG")),
        "wrong SCRAM": connection(secure_kafka, "sasl", sasl=sasl("SCRAM-SHA-256", "WRONG")),
        "unknown user": connection(secure_kafka, "sasl", sasl={**sasl("SCRAM-SHA-512"), "username": "bob"}),
    }[case]
    spec = spec_of(kafka, "t", lake / "t", "refused")
    with pytest.raises(AuthenticationFailed) as refused:
        drain(spec)
    assert kafka["brokers"] in refused.value.message
    assert "source.kafka" in refused.value.hint
    assert SECRET not in f"{refused.value!r} {refused.value}"


def test_a_source_that_was_refused_says_so_when_previewed_too(secure_kafka: Broker, lake: Path) -> None:
    kafka = connection(secure_kafka, "sasl", sasl=sasl("PLAIN", "WRONG"))
    source = open_source(spec_of(kafka, "t", lake / "t", "refused"))
    try:
        with pytest.raises(AuthenticationFailed):
            source.tail(10, "end")
    finally:
        source.close()
