"""AWS MSK IAM without AWS: our tokens are those of its published library, which Kafka's Java client can load."""

from __future__ import annotations

import os
import subprocess
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from headrace.dev.kafka import Broker
from headrace.runtime import jars, session, spark_errors
from headrace.runtime.java import find_java
from headrace.source.msk_token import signed_token
from headrace.spec import Spec
from headrace.storage.aws_roles import AwsCredentials
from services.threads import one_table

REGION = "eu-central-1"
CREDENTIALS = AwsCredentials("AKIDEXAMPLE", "canary/secret+key=", "session/token+with=signs")


@pytest.fixture(scope="module")
def jvm() -> Iterator[Any]:
    """A JVM with the class path of a session for MSK, whose environment has AWS credentials."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    parts = os.pathsep.join(map(str, [*session.class_path(), *jars.ensure("msk")]))
    command = [*find_java().command, "-XX:TieredStopAtLevel=1", "-cp", parts, "py4j.GatewayServer"]
    environment = {
        "AWS_ACCESS_KEY_ID": CREDENTIALS.access_key_id,
        "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret_access_key,
        "AWS_SESSION_TOKEN": CREDENTIALS.session_token,
        "AWS_REGION": REGION,
    }
    with subprocess.Popen(
        [*command, "--die-on-broken-pipe", "0"],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        assert child.stdout is not None
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=int(child.stdout.readline())))
        try:
            yield gateway
        finally:
            with suppress(Exception):
                gateway.close()
            child.kill()


def fields(token: str) -> tuple[str, dict[str, str]]:
    """Address and parameters of a token."""
    url = urlsplit(urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    return f"{url.scheme}://{url.netloc}{url.path.rstrip('/')}", dict(parse_qsl(url.query, strict_parsing=True))


def token_of_library(gateway: Any) -> str:
    java = gateway.jvm
    handler = java.software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler()
    flag = java.javax.security.auth.login.AppConfigurationEntry.LoginModuleControlFlag.REQUIRED
    entry = java.javax.security.auth.login.AppConfigurationEntry("x", flag, java.java.util.HashMap())
    entries = java.java.util.ArrayList()
    entries.append(entry)
    handler.configure(java.java.util.HashMap(), "OAUTHBEARER", entries)
    callback = java.org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback()
    callbacks = gateway.new_array(java.javax.security.auth.callback.Callback, 1)
    callbacks[0] = callback
    handler.handle(callbacks)
    return str(callback.token().value())


def test_tokens_are_those_of_the_library(jvm: Any) -> None:
    # The library reads the clock twice: its token expires in 899 seconds if a second ends between.
    tokens = (fields(token_of_library(jvm)) for _ in range(20))
    address, expected = next(token for token in tokens if token[1]["X-Amz-Expires"] == "900")
    signed_at = datetime.strptime(expected["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = fields(signed_token(REGION, CREDENTIALS, signed_at))
    expected.pop("User-Agent")
    assert ours[1].pop("User-Agent").startswith("headrace/")
    assert ours == (address, expected)
    assert len(expected["X-Amz-Signature"]) == 64
    other = AwsCredentials("AKIDEXAMPLE", "another", CREDENTIALS.session_token)
    assert fields(signed_token(REGION, other, signed_at))[1]["X-Amz-Signature"] != expected["X-Amz-Signature"]


def spec_of(broker: Broker, lake: Path) -> Spec:
    sasl = {"mechanism": "AWS_MSK_IAM", "region": REGION}
    source = {"kafka": {"brokers": broker.address("sasl"), "topics": ["t"], "sasl": sasl}}
    return one_table("unused:1", "t", lake / "t", source=source)


def test_kafkas_java_client_loads_the_library(jvm: Any, secure_kafka: Broker, lake: Path) -> None:
    """A broker that is not one of AWS does not offer the mechanism: the client fails only there."""
    from py4j.protocol import Py4JJavaError

    java, settings = jvm.jvm, spec_of(secure_kafka, lake).kafka.java_security()
    properties = java.java.util.HashMap()
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    brokers = {"bootstrap.servers": secure_kafka.address("sasl")}
    settings |= brokers | dict.fromkeys(("key.deserializer", "value.deserializer"), deserializer)
    for name, value in settings.items():
        properties.put(name, value)
    consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
    try:
        with pytest.raises(Py4JJavaError) as caught:
            consumer.listTopics(java.java.time.Duration.ofSeconds(20))
    finally:
        consumer.close()
    chain = spark_errors.causes(caught.value)
    assert any(family.matches(cause) for cause in chain for family in spark_errors.AUTHENTICATION)
    assert "AWS_MSK_IAM" in chain[0].message
