"""Send 600 events of several types to the topic shop.events; four of them cannot become rows."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "shop.events"
BAD = (
    '{"id": 9001, "occurred_at": "2026-03-01T12:00:00Z"}',  # no type
    '{"id": 9002, "type": "../users", "occurred_at": "2026-03-01T12:00:00Z"}',  # not the name of a table
    '{"id": 9003, "type": "signup", "occurred_at": "yesterday"}',  # not a timestamp
    '{"id": 9004, "type": "purchase", "occurred_at": "2026-03-01T12:00:00Z", "amount": -5}',  # violates an expectation
)


def events(seed: int = 1) -> Iterator[tuple[str | None, str]]:
    """Key and value of each record; page views have no key."""
    rng = random.Random(seed)
    for number in range(596):
        event = _event(rng, number)
        yield (None if event["type"] == "page_view" else str(event.get("user")), json.dumps(event))
    yield from ((None, value) for value in BAD)


def _event(rng: random.Random, number: int) -> dict[str, Any]:
    kind = rng.choices(("page_view", "purchase", "signup", "test_ping"), (80, 10, 8, 2))[0]
    at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(minutes=number * 5)
    event: dict[str, Any] = {"id": number, "type": kind, "occurred_at": at.isoformat()}
    if kind == "page_view":
        return {**event, "path": rng.choice(("/", "/pricing", "/cart")), "ms": rng.randrange(5, 900)}
    event["user"] = rng.randrange(1, 100)
    if kind == "purchase":
        items = [{"sku": f"a{rng.randrange(9)}", "quantity": rng.randrange(1, 4)} for _ in range(rng.randrange(1, 4))]
        return {**event, "amount": rng.randrange(100, 20000) / 100, "items": items}
    return {**event, "referrer": "newsletter"} if rng.random() < 0.3 else event


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of the broker")
    settings = {"bootstrap.servers": parser.parse_args().bootstrap}
    admin = AdminClient(settings)
    create_topic(admin)
    producer, sent = Producer(settings), 0
    for key, value in events():
        producer.produce(TOPIC, value, key)
        sent += 1
    if left := producer.flush(30):
        raise SystemExit(f"{left} of {sent} records were not acknowledged")
    print(f"sent {sent} records to {TOPIC}")


def create_topic(admin: AdminClient) -> None:
    try:
        admin.create_topics([NewTopic(TOPIC, num_partitions=3)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


if __name__ == "__main__":
    main()
