"""Send the change events of a small table of orders to the topic shop.public.orders, as Debezium does."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "shop.public.orders"
START = 1_772_355_600_000  # 2026-03-01 09:00 UTC, in milliseconds
Row = dict[str, Any]
Record = tuple[str, str | None]


def order(number: int, state: str, total: str, **more: Any) -> Row:
    return {"id": number, "customer": f"c{number % 3}", "state": state, "total": total, **more}


def change(op: str, before: Row | None, after: Row | None, minute: int) -> Record:
    """Key and value of one change event: r(ead), c(reate), u(pdate) or d(elete)."""
    at = START + minute * 60_000
    source = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "orders", "ts_ms": at}
    event = {"before": before, "after": after, "source": source, "op": op, "ts_ms": at + 40}
    return json.dumps({"id": (after or before or {})["id"]}), json.dumps(event)


def changes() -> Iterator[Record]:
    # The snapshot: rows that were there when the connector started.
    placed = "2026-03-01T08:30:00Z"
    first, second, third = (order(number, "new", f"{number}0.00", placed_at=placed) for number in (1, 2, 3))
    yield from (change("r", None, row, 0) for row in (first, second, third))
    # Inserts and updates. `note` is a column that was added to the source table later.
    fourth = order(4, "new", "12345678.90", placed_at="2026-03-01T09:01:00Z", note="gift")
    yield change("c", None, fourth, 1)
    paid = change("u", first, {**first, "state": "paid"}, 2)
    yield paid
    yield change("u", {**first, "state": "paid"}, {**first, "state": "sent"}, 5)
    # A delete, and the tombstone that lets Kafka's compaction drop the key.
    yield change("d", second, None, 6)
    yield json.dumps({"id": 2}), None
    # An update of the primary key: Debezium sends a delete of the old key and an insert of the new one.
    yield change("d", third, None, 7)
    yield json.dumps({"id": 3}), None
    yield change("c", None, {**third, "id": 30}, 7)
    # The connector was restarted and sends an event again: order 1 stays `sent`.
    yield paid
    # A total that is not a number: a dead letter, the other changes are applied.
    yield change("c", None, order(5, "new", "12,50"), 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of the broker")
    settings = {"bootstrap.servers": parser.parse_args().bootstrap}
    admin = AdminClient(settings)
    create_topic(admin)
    producer, sent = Producer(settings), 0
    for key, value in changes():
        producer.produce(TOPIC, value, key)
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
