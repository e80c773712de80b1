"""A Danube broker of the published protocol for tests; it redelivers, drops streams, reorders and restarts on request.

It does what the real broker was seen to do: a subscription starts at the end of its topic, dispatches a window of
messages without acknowledgement, redelivers them after a timeout, a nack or a lost stream, and refuses unknown topics.
Topics whose producers ask for no reliable dispatch have no offsets and no redelivery; slow consumers lose messages.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
from danube.proto import DanubeApi_pb2 as api
from danube.proto import DanubeApi_pb2_grpc as api_grpc
from danube.proto import SchemaRegistry_pb2 as schemas
from danube.proto import SchemaRegistry_pb2_grpc as schemas_grpc

_THREADS = 64
_CHANNEL = 4  # messages that wait for a consumer without reliable dispatch
_MAX_REDELIVERIES = 5
_SINGLE = (api.ConsumerRequest.Exclusive, api.ConsumerRequest.Failover)


@dataclass
class _Delivery:
    message: Any
    consumer: int
    attempts: int = 1
    deadline: float = 0.0
    retry_at: float | None = None  # None: waits for an acknowledgement


@dataclass
class _Consumer:
    id: int
    name: str
    subscription: _Subscription
    filters: tuple[str, ...]
    stream: int = 0  # number of the stream that is served; an older one has been taken over
    connected: bool = False
    channel: list[Any] = field(default_factory=list)


@dataclass
class _Subscription:
    topic: _Topic
    name: str
    kind: int
    next: int  # offset of the next message to dispatch
    consumers: list[_Consumer] = field(default_factory=list)
    in_flight: dict[int, _Delivery] = field(default_factory=dict)
    turn: int = 0

    @property
    def active(self) -> list[_Consumer]:
        return [each for each in self.consumers if each.connected]

    @property
    def blocked(self) -> bool:
        """Whether a message was delivered in vain too often."""
        return any(each.attempts > _MAX_REDELIVERIES + 1 for each in self.in_flight.values())


@dataclass
class _Topic:
    name: str
    reliable: bool
    messages: list[Any] = field(default_factory=list)
    subscriptions: dict[str, _Subscription] = field(default_factory=dict)
    producers: set[int] = field(default_factory=set)
    subject: str = ""


class StandIn:
    """A broker in this process, on a free loopback port; its attributes change how it behaves."""

    def __init__(self, *, token: str = "", tls: tuple[bytes, bytes] | None = None) -> None:
        self.token, self._tls = token, tls  # tls: private key and certificate chain
        self.window = 10  # messages without acknowledgement, per subscription
        self.ack_timeout = 30.0
        self.redelivery_delay = 0.05
        self.reorders = False
        self.holds = False  # dispatches no new message
        self.ignores_acks = False
        self.unavailable: frozenset[str] = frozenset()  # methods that fail
        self.denied = ""  # why no subscription is allowed
        self.closes_consumers = False  # answers that consumers are closed
        self.redirect: tuple[str, bool] | None = None  # address of the broker that serves the topics, through a proxy
        self.acked: list[tuple[str, str, int]] = []  # topic, subscription, offset
        self.nacked: list[tuple[str, str, int]] = []
        self.calls: list[tuple[str, dict[str, str]]] = []  # methods with their metadata
        self.topics: dict[str, _Topic] = {}
        self._schemas: dict[int, list[Any]] = {}
        self._consumers: dict[int, _Consumer] = {}
        self._random = random.Random(7)
        self._changed = threading.Condition()
        self._epoch = 0  # streams of an earlier one are dropped
        self.port = 0
        self._server: grpc.Server | None = None

    # ---- the server ----

    def __enter__(self) -> StandIn:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Accept connections, on the same port as before."""
        server = grpc.server(ThreadPoolExecutor(_THREADS), options=[("grpc.so_reuseport", 0)])
        services = _Services(self)
        api_grpc.add_ProducerServiceServicer_to_server(services, server)
        api_grpc.add_ConsumerServiceServicer_to_server(services, server)
        api_grpc.add_DiscoveryServicer_to_server(services, server)
        api_grpc.add_HealthCheckServicer_to_server(services, server)
        schemas_grpc.add_SchemaRegistryServicer_to_server(services, server)
        address = f"127.0.0.1:{self.port}"
        if self._tls is None:
            self.port = server.add_insecure_port(address)
        else:
            self.port = server.add_secure_port(address, grpc.ssl_server_credentials([self._tls]))
        server.start()
        self._server = server

    def stop(self) -> None:
        """End all streams and refuse connections."""
        self.drop_streams()
        if self._server is not None:
            self._server.stop(None).wait(10)
            self._server = None

    def restart(self, *, forget_acks: int = 0) -> None:
        """Stop and start; consumers are unknown, and of each subscription the last acknowledgements are lost."""
        self.stop()
        with self._changed:
            self._consumers.clear()
            for topic in self.topics.values():
                for each in topic.subscriptions.values():
                    unacked = min(each.in_flight, default=each.next)
                    each.next = max(0, unacked - forget_acks)
                    each.in_flight.clear()
                    each.consumers.clear()
        self.start()

    def drop_streams(self) -> None:
        """End all streams with an error; the connections stay."""
        with self._changed:
            self._epoch += 1
            for consumer in self._consumers.values():
                consumer.connected = False
            for topic in self.topics.values():
                for each in topic.subscriptions.values():
                    for delivery in each.in_flight.values():
                        delivery.retry_at = 0.0
            self._changed.notify_all()

    def redeliver(self, topic: str, subscription: str, offsets: list[int]) -> None:
        """Deliver messages once more, although they were acknowledged."""
        with self._changed:
            found = self.topics[topic].subscriptions[subscription]
            for offset in offsets:
                found.in_flight.setdefault(offset, _Delivery(found.topic.messages[offset], 0, 0, 0.0, 0.0))
            self._changed.notify_all()

    def unacked(self, topic: str, subscription: str) -> int:
        """Messages of a subscription that were not acknowledged, dispatched or not."""
        with self._changed:
            found = self.topics[topic].subscriptions[subscription]
            return len(found.in_flight) + len(found.topic.messages) - found.next

    # ---- topics and producers ----

    def topic(self, name: str, *, reliable: bool = True) -> _Topic:
        """A topic, created if it does not exist."""
        with self._changed:
            return self.topics.setdefault(name, _Topic(name, reliable))

    def partitions(self, name: str) -> list[str]:
        """The physical topics of a name."""
        with self._changed:
            found = [each for each in self.topics if each == name or each.rpartition("-part-")[0] == name]
        return sorted(found)

    def create_producer(self, request: Any) -> int:
        """Register a producer, which creates the topic."""
        topic = self.topic(request.topic_name, reliable=request.dispatch_strategy == api.Reliable)
        with self._changed:
            number = self._random.getrandbits(63)
            topic.producers.add(number)
            topic.subject = request.schema_ref.subject or topic.subject
        return number

    def publish(self, message: Any) -> bool:
        """Append a message; False if its producer is unknown."""
        with self._changed:
            topic = self.topics.get(message.msg_id.topic_name)
            if topic is None or message.msg_id.producer_id not in topic.producers:
                return False
            if topic.reliable:
                message.msg_id.topic_offset = len(topic.messages)
            topic.messages.append(message)
            if not topic.reliable:
                self._offer(topic, message)
            self._changed.notify_all()
        return True

    def _offer(self, topic: _Topic, message: Any) -> None:
        for subscription in topic.subscriptions.values():
            subscription.next = len(topic.messages)
            active = subscription.active
            if active:
                subscription.turn += 1
                channel = active[subscription.turn % len(active)].channel
                if len(channel) < _CHANNEL:
                    channel.append(message)

    # ---- consumers ----

    def subscribe(self, request: Any) -> _Consumer | str:
        """Add a consumer, or take over the one of the same name; the reason if that is refused."""
        with self._changed:
            topic = self.topics[request.topic_name]
            subscription = topic.subscriptions.setdefault(
                request.subscription,
                _Subscription(topic, request.subscription, request.subscription_type, len(topic.messages)),
            )
            for each in subscription.consumers:
                if each.name == request.consumer_name:
                    each.stream += 1
                    self._release(each)
                    return each
            if subscription.kind == api.ConsumerRequest.Exclusive and subscription.consumers:
                return "the Exclusive subscription can't be shared with other consumers"
            consumer = _Consumer(
                self._random.getrandbits(63), request.consumer_name, subscription, tuple(request.key_filters)
            )
            subscription.consumers.append(consumer)
            self._consumers[consumer.id] = consumer
            return consumer

    def consumer(self, number: int) -> _Consumer | None:
        """The consumer with an id."""
        with self._changed:
            return self._consumers.get(number)

    def _release(self, consumer: _Consumer) -> None:
        """Deliver what a consumer has not acknowledged again."""
        for delivery in consumer.subscription.in_flight.values():
            if delivery.consumer == consumer.id:
                delivery.retry_at = 0.0
        self._changed.notify_all()

    def stream(self, consumer: _Consumer, context: grpc.ServicerContext) -> Iterator[Any]:
        """Messages for a consumer, until its stream ends."""
        with self._changed:
            consumer.stream += 1
            consumer.connected = True
            number, epoch = consumer.stream, self._epoch
        context.add_callback(lambda: self._disconnect(consumer, number))
        while True:
            with self._changed:
                message = None
                while context.is_active() and (number, epoch) == (consumer.stream, self._epoch):
                    if (message := self._next(consumer)) is not None:
                        break
                    self._changed.wait(0.02)
            if message is None:
                if epoch != self._epoch and context.is_active():
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was dropped")
                return
            yield message

    def _disconnect(self, consumer: _Consumer, number: int) -> None:
        with self._changed:
            if consumer.stream == number:
                consumer.connected = False
                self._release(consumer)

    def _next(self, consumer: _Consumer) -> Any | None:
        subscription = consumer.subscription
        if not subscription.topic.reliable:
            return consumer.channel.pop(0) if consumer.channel else None
        if subscription.kind in _SINGLE and subscription.active[0] is not consumer:
            return None
        now = time.monotonic()
        for delivery in subscription.in_flight.values():
            if delivery.retry_at is None and now >= delivery.deadline:
                delivery.retry_at = now + self.redelivery_delay
        if subscription.blocked:
            return None
        due = [each for each in subscription.in_flight.values() if each.retry_at is not None and each.retry_at <= now]
        due = [each for each in due if self._takes(consumer, each.message)]
        if due:
            delivery = self._random.choice(due) if self.reorders else due[0]
            delivery.attempts += 1
            delivery.consumer, delivery.deadline, delivery.retry_at = consumer.id, now + self.ack_timeout, None
            return delivery.message
        return self._new(consumer, now)

    def _new(self, consumer: _Consumer, now: float) -> Any | None:
        subscription = consumer.subscription
        messages = subscription.topic.messages
        room = self.window - len(subscription.in_flight)
        if self.holds or room <= 0 or subscription.next >= len(messages):
            return None
        if self.reorders:  # reserve all that fits, then deliver in any order
            for message in messages[subscription.next : subscription.next + room]:
                subscription.in_flight[message.msg_id.topic_offset] = _Delivery(message, 0, 0, 0.0, 0.0)
                subscription.next += 1
            return self._next(consumer)
        message = messages[subscription.next]
        if not self._takes(consumer, message):
            return None
        subscription.next += 1
        subscription.in_flight[message.msg_id.topic_offset] = _Delivery(message, consumer.id, 1, now + self.ack_timeout)
        return message

    def _takes(self, consumer: _Consumer, message: Any) -> bool:
        """Whether a message of a key is this consumer's; keys with a message in flight wait."""
        subscription = consumer.subscription
        if subscription.kind != api.ConsumerRequest.KeyShared:
            return True
        active, key = subscription.active, message.routing_key
        busy = [each for each in subscription.in_flight.values() if each.retry_at is None]
        if key and any(each.message.routing_key == key for each in busy):
            return False
        return active[sum(key.encode()) % len(active)] is consumer

    def ack(self, request: Any) -> None:
        """Free the place of a message in the window."""
        with self._changed:
            topic, offset = request.msg_id.topic_name, request.msg_id.topic_offset
            if self.ignores_acks:
                return
            self.acked.append((topic, request.subscription_name, offset))
            subscription = self.topics[topic].subscriptions[request.subscription_name]
            delivery = subscription.in_flight.get(offset)
            if delivery is not None and delivery.retry_at is None:  # late acknowledgements are ignored
                del subscription.in_flight[offset]
            self._changed.notify_all()

    def nack(self, request: Any) -> None:
        """Deliver a message again later."""
        with self._changed:
            topic, offset = request.msg_id.topic_name, request.msg_id.topic_offset
            self.nacked.append((topic, request.subscription_name, offset))
            delivery = self.topics[topic].subscriptions[request.subscription_name].in_flight.get(offset)
            if delivery is not None:
                delay = max(self.redelivery_delay, request.delay_ms / 1000)
                delivery.retry_at = time.monotonic() + delay
            self._changed.notify_all()

    # ---- schemas ----

    def register_schema(self, subject: str, kind: str, definition: bytes) -> Any:
        """Add a version to a subject."""
        with self._changed:
            for versions in self._schemas.values():
                if versions[0].subject == subject:
                    number, version = versions[0].schema_id, len(versions) + 1
                    break
            else:
                number, version = len(self._schemas) + 1, 1
            schema = schemas.GetSchemaResponse(
                schema_id=number, version=version, subject=subject, schema_type=kind, schema_definition=definition
            )
            self._schemas.setdefault(number, []).append(schema)
            return schema

    def schema(self, number: int, version: int | None) -> Any | None:
        """A version of a schema, by default the latest."""
        versions = self._schemas.get(number, [])
        found = [each for each in versions if version is None or each.version == version]
        return found[-1] if found else None

    def latest_schema(self, subject: str) -> Any | None:
        """The latest schema of a subject."""
        return next((each[-1] for each in self._schemas.values() if each[0].subject == subject), None)


def _valid(topic: str) -> bool:
    parts = topic.split("/")
    return len(parts) == 3 and all(letter.isalnum() or letter in "_-" for part in parts for letter in part)


class _Services:
    """The methods of all services."""

    def __init__(self, broker: StandIn) -> None:
        self._broker = broker

    def _admit(self, context: grpc.ServicerContext, method: str) -> None:
        metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
        self._broker.calls.append((method, metadata))
        given = metadata.get("authorization")
        if self._broker.token and given is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Authentication credentials are missing")
        if self._broker.token and given != f"Bearer {self._broker.token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "Invalid token")
        if method in self._broker.unavailable:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"{method} is not available")

    def _known(self, context: grpc.ServicerContext, topic: str) -> None:
        if not _valid(topic):
            message = f"The topic: {topic} has an invalid format, should be: /namespace_name/topic_name"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        if topic not in self._broker.topics:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Unable to find the topic: {topic}")

    # ---- Discovery ----

    def TopicLookup(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "TopicLookup")
        self._known(context, request.topic)
        kinds, broker = api.TopicLookupResponse, self._broker.url
        if self._broker.redirect is None:
            return kinds(
                request_id=request.request_id, response_type=kinds.Connect, connect_url=broker, broker_url=broker
            )
        url, proxy = self._broker.redirect
        return kinds(
            request_id=request.request_id,
            response_type=kinds.Redirect,
            connect_url=url,
            broker_url="http://broker-2:6650" if proxy else url,
            proxy=proxy,
        )

    def TopicPartitions(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "TopicPartitions")
        return api.TopicPartitionsResponse(
            request_id=request.request_id, partitions=self._broker.partitions(request.topic)
        )

    # ---- HealthCheck ----

    def HealthCheck(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "HealthCheck")
        kinds = api.HealthCheckResponse
        return kinds(status=kinds.CLOSE if self._broker.closes_consumers else kinds.OK)

    # ---- ProducerService ----

    def CreateProducer(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "CreateProducer")
        if not _valid(request.topic_name):
            self._known(context, request.topic_name)
        number = self._broker.create_producer(request)
        return api.ProducerResponse(
            request_id=request.request_id, producer_id=number, producer_name=request.producer_name
        )

    def SendMessage(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "SendMessage")
        if not self._broker.publish(request):
            context.abort(grpc.StatusCode.NOT_FOUND, f"The producer {request.msg_id.producer_id} does not exist")
        return api.MessageResponse(request_id=request.request_id)

    # ---- ConsumerService ----

    def Subscribe(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "Subscribe")
        self._known(context, request.topic_name)
        consumer = self._broker.denied or self._broker.subscribe(request)
        if isinstance(consumer, str):
            message = f"Not able to subscribe to the topic {request.topic_name} due to {consumer}"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, message)
        return api.ConsumerResponse(
            request_id=request.request_id, consumer_id=consumer.id, consumer_name=request.consumer_name
        )

    def ReceiveMessages(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        self._admit(context, "ReceiveMessages")
        consumer = self._broker.consumer(request.consumer_id)
        if consumer is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"The consumer with the id {request.consumer_id} does not exist")
        yield from self._broker.stream(consumer, context)

    def Ack(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "Ack")
        self._broker.ack(request)
        return api.AckResponse(request_id=request.request_id)

    def Nack(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "Nack")
        self._broker.nack(request)
        return api.NackResponse(request_id=request.request_id)

    # ---- SchemaRegistry ----

    def RegisterSchema(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "RegisterSchema")
        schema = self._broker.register_schema(request.subject, request.schema_type, request.schema_definition)
        return schemas.RegisterSchemaResponse(schema_id=schema.schema_id, version=schema.version, is_new_version=True)

    def GetSchema(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "GetSchema")
        schema = self._broker.schema(request.schema_id, request.version if request.HasField("version") else None)
        if schema is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Schema not found: {request.schema_id}")
        return schema

    def GetLatestSchema(self, request: Any, context: grpc.ServicerContext) -> Any:
        self._admit(context, "GetLatestSchema")
        schema = self._broker.latest_schema(request.subject)
        if schema is None:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Subject not found: {request.subject}")
        return schema

    def ListVersions(self, request: Any, context: grpc.ServicerContext) -> Any:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "not used by Headrace")

    CheckCompatibility = DeleteSchemaVersion = SetCompatibilityMode = ConfigureTopicSchema = ListVersions
    UpdateTopicValidationPolicy = GetTopicSchemaConfig = ListVersions
