"""Calls to Danube brokers, with the stubs of the `danube-client` package.

Its own consumer is not used: it ends without an error when a subscription is refused or its consumer is unknown to a
restarted broker, opens a stream that ended again at once and forever, cannot change the maximum size of a message, and
sends a token only over TLS of its own choosing.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as stubs
from danube.proto import SchemaRegistry_pb2 as registry
from danube.proto import SchemaRegistry_pb2_grpc as registry_stubs

from headrace.errors import AuthenticationFailed, BrokerUnreachable, HeadraceError, PermissionDenied, SourceTopicGone
from headrace.spec.danube_source import DanubeSpec, is_partition_of

_TIMEOUT = 15.0  # seconds
_TOKEN_SECONDS = 5.0
_MAX_MESSAGE = 64 * 1024 * 1024
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    # The broker is asked for its health every few seconds, and reconnects follow the policy of the pipeline.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)
_CERTIFICATE = ("CERTIFICATE_VERIFY_FAILED", "certificate verify failed", "alert", "Hostname Verification Check failed")
_IN_USE = "can't be shared"

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TopicAddress:
    """Where a topic is served: a URL, and the broker behind it if the URL is that of a proxy."""

    url: str
    broker: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSchema:
    """A version of a schema in the broker's registry."""

    subject: str
    kind: str
    version: int
    definition: bytes


class DanubeClient:
    """Connections to the brokers of a cluster; thread-safe."""

    def __init__(self, danube: DanubeSpec) -> None:
        self._danube = danube
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = threading.Lock()
        self._read_token = (-math.inf, "")
        self._numbers = itertools.count(1)

    # ---- discovery ----

    def partitions(self, topic: str) -> list[str]:
        """Physical topics of a topic: its partitions, or itself; SourceTopicGone if it does not exist."""
        with self.errors(topic):
            stub = stubs.DiscoveryStub(self.channel(self._danube.url))
            request = api.TopicLookupRequest(request_id=next(self._numbers), topic=topic)
            response = stub.TopicPartitions(request, timeout=_TIMEOUT, metadata=self.metadata())
        names = [name for name in response.partitions if name == topic or is_partition_of(name, topic)]
        if not names:
            raise self._gone(topic)
        return sorted(names, key=lambda name: (len(name), name))

    def address(self, physical: str) -> TopicAddress:
        """The broker that serves a topic."""
        with self.errors(physical):
            stub = stubs.DiscoveryStub(self.channel(self._danube.url))
            request = api.TopicLookupRequest(request_id=next(self._numbers), topic=physical)
            response = stub.TopicLookup(request, timeout=_TIMEOUT, metadata=self.metadata())
        if response.response_type == api.TopicLookupResponse.Failed:
            raise BrokerUnreachable(f"No broker at {self._danube.url} serves {physical} now.")
        return TopicAddress(response.connect_url or self._danube.url, response.broker_url if response.proxy else "")

    def schema(self, schema_id: int, version: int | None) -> BrokerSchema | None:
        """A schema of the broker's registry; None if it is unknown."""
        request = registry.GetSchemaRequest(schema_id=schema_id, version=version)
        with self.errors("the schema registry"):
            stub = registry_stubs.SchemaRegistryStub(self.channel(self._danube.url))
            try:
                response = stub.GetSchema(request, timeout=_TIMEOUT, metadata=self.metadata())
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.NOT_FOUND:
                    return None
                raise
        return BrokerSchema(response.subject, response.schema_type, response.version, response.schema_definition)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    # ---- connections ----

    def metadata(self, address: TopicAddress | None = None) -> Metadata:
        """Metadata of a call: the token, and the broker behind a proxy."""
        entries = [("authorization", f"Bearer {self._token()}")] if self._danube.token is not None else []
        if address is not None and address.broker:
            entries.append(("x-danube-broker-url", address.broker))
        return tuple(entries)

    def _token(self) -> str:
        """The token, read again every few seconds, so that a renewed one is used."""
        read, token = self._read_token
        if self._danube.token is not None and time.monotonic() - read > _TOKEN_SECONDS:
            token = self._danube.token.reveal().strip()
            self._read_token = (time.monotonic(), token)
        return token

    def channel(self, url: str) -> grpc.Channel:
        """The connection to an address."""
        with self._lock:
            if url not in self._channels:
                self._channels[url] = self._connect(url)
            return self._channels[url]

    def _connect(self, url: str) -> grpc.Channel:
        target = url.partition("://")[2] or url  # brokers also report addresses without a scheme
        if not self._danube.encrypted:
            return grpc.insecure_channel(target, _OPTIONS)
        tls = self._danube.tls
        pems = (tls.ca, tls.key.reveal() if tls.key else None, tls.certificate) if tls else (None, None, None)
        credentials = grpc.ssl_channel_credentials(*(pem.encode() if pem else None for pem in pems))
        return grpc.secure_channel(target, credentials, _OPTIONS)

    # ---- errors ----

    @contextmanager
    def errors(self, topic: str) -> Iterator[None]:
        """Raise errors of calls as those of Headrace."""
        try:
            yield
        except grpc.RpcError as error:
            raise self.error(error, topic) from None

    def error(self, error: grpc.RpcError, topic: str) -> HeadraceError:
        """An error of a call as one of Headrace."""
        code, details = error.code(), (error.details() or "").rstrip(".")
        where = self._danube.url
        if code is grpc.StatusCode.UNAUTHENTICATED or (
            code is grpc.StatusCode.FAILED_PRECONDITION and "JWT" in details
        ):
            return AuthenticationFailed(
                f"The broker at {where} rejects the credentials: {details}.", hint="Check source.danube.token."
            )
        if code is grpc.StatusCode.UNAVAILABLE and any(text in details for text in _CERTIFICATE):
            return AuthenticationFailed(
                f"The TLS handshake with {where} failed: {details}.", hint="Check source.danube.tls and the URL."
            )
        if code is grpc.StatusCode.PERMISSION_DENIED and _IN_USE in details:
            return BrokerUnreachable(
                f"The subscription to {topic} is in use by another consumer: {details}.",
                hint="Stop that consumer, or set another source.danube.subscription.",
            )
        if code is grpc.StatusCode.PERMISSION_DENIED:
            return PermissionDenied(
                f"The broker at {where} denies access to {topic}: {details}.",
                hint="Grant the permissions Lookup and Consume on the topic.",
            )
        if code is grpc.StatusCode.NOT_FOUND and "topic" in details.lower():
            return self._gone(topic)
        return BrokerUnreachable(f"The broker at {where} does not respond: {details or code.name}.")

    def _gone(self, topic: str) -> SourceTopicGone:
        return SourceTopicGone(
            f"The topic '{topic}' does not exist at {self._danube.url}.",
            hint="Start its producer, which creates it, or remove it from the spec.",
            topic=topic,
        )


class TopicConsumer:
    """The consumer of a subscription to one topic or partition."""

    def __init__(self, client: DanubeClient, physical: str, subscription: str, name: str) -> None:
        self._client, self._physical, self._subscription, self._name = client, physical, subscription, name
        self._address = client.address(physical)
        channel = client.channel(self._address.url)
        self._consumers, self._health = stubs.ConsumerServiceStub(channel), stubs.HealthCheckStub(channel)
        self._id = 0

    def subscribe(self, kind: str, key_filters: Sequence[str]) -> Any:
        """Subscribe, or take over from a consumer of the same name; the stream of messages, which `cancel` ends."""
        request = api.ConsumerRequest(
            topic_name=self._physical,
            consumer_name=self._name,
            subscription=self._subscription,
            subscription_type=api.ConsumerRequest.SubscriptionType.Value(kind),
            key_filters=key_filters,
        )
        with self._client.errors(self._physical):
            self._id = self._consumers.Subscribe(request, timeout=_TIMEOUT, metadata=self._metadata()).consumer_id
            return self._consumers.ReceiveMessages(api.ReceiveRequest(consumer_id=self._id), metadata=self._metadata())

    def acknowledge(self, message: Any) -> grpc.Future:
        """Acknowledge a message. The future must be kept until it is done: dropping it resets the request."""
        request = api.AckRequest(
            request_id=message.request_id, msg_id=message.msg_id, subscription_name=self._subscription
        )
        return self._consumers.Ack.future(request, timeout=_TIMEOUT, metadata=self._metadata())

    def is_closed(self) -> bool:
        """Whether the broker has closed the consumer, for instance because the topic moved to another one."""
        request = api.HealthCheckRequest(client=api.HealthCheckRequest.Consumer, id=self._id)
        with self._client.errors(self._physical):
            response = self._health.HealthCheck(request, timeout=_TIMEOUT, metadata=self._metadata())
        return bool(response.status == api.HealthCheckResponse.CLOSE)

    def _metadata(self) -> Metadata:
        return self._client.metadata(self._address)
