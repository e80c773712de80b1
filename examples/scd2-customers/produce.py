"""Send changes of three customers to the topic customers: one arrives late, one twice, one has no key."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "customers"


def customer(number: int | None, day: str, city: str, plan: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "city": city, "plan": plan, **more, "changed_at": f"2026-{day}T00:00:00Z"}


def changes() -> Iterator[dict[str, Any]]:
    yield customer(1, "01-01", "Faro", "free", email="ann@example.org")
    yield customer(2, "01-05", "Oslo", "team", email="ben@example.org")
    yield customer(3, "01-07", "Kyoto", "free")
    yield customer(1, "03-01", "Lisbon", "team", email="ann@example.org")
    yield customer(1, "02-01", "Lisbon", "free", email="ann@example.org")  # late: between the other two
    yield customer(2, "02-10", "Oslo", "team", email="ben@example.com")  # no tracked column changes
    yield customer(3, "02-20", "Kyoto", "free", status="closed")  # ends the customer's last row
    yield customer(2, "01-05", "Oslo", "team", email="ben@example.org")  # sent again by its producer
    yield customer(None, "02-21", "Rome", "free")  # a dead letter: there is no row without a key


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of the broker")
    settings = {"bootstrap.servers": parser.parse_args().bootstrap}
    admin = AdminClient(settings)
    create_topic(admin)
    producer, sent = Producer(settings), 0
    for change in changes():
        producer.produce(TOPIC, json.dumps(change), str(change["id"]))
        sent += 1
    if left := producer.flush(30):
        raise SystemExit(f"{left} of {sent} records were not acknowledged")
    print(f"sent {sent} records to {TOPIC}")


def create_topic(admin: AdminClient) -> None:
    try:
        admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


if __name__ == "__main__":
    main()
