"""Send 240 records to four topics with different formats; two of them cannot become rows."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPICS = ("office.rooms", "office.badges", "office.climate", "office.notes")
START = 1_772_323_200_000  # 2026-03-01, in milliseconds
ROOMS = ("atrium", "library", "workshop")


def records(seed: int = 1) -> Iterator[tuple[str, bytes]]:
    """Topic and value of each record."""
    rng = random.Random(seed)
    for number, room in enumerate(ROOMS):
        yield "office.rooms", _json(room=room, seats=10 * (number + 1))
    for number in range(120):
        at = START + number * 600_000
        yield "office.badges", _json(badge=rng.randrange(1, 40), door=rng.choice(ROOMS), opened_at=at)
    yield "office.badges", _json(badge=None, door="atrium", opened_at=START)  # a badge is required
    for number in range(100):
        sensors = [{"sensor": n, "celsius": round(rng.uniform(18, 24), 1)} for n in range(3)]
        yield "office.climate", _json(room=ROOMS[number % 3], sensors=sensors)
    for number in range(15):
        yield "office.notes", f"note {number}".encode()
    yield "office.notes", b"caf\xe9"  # not UTF-8


def _json(**values: object) -> bytes:
    return json.dumps(values).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of the broker")
    settings = {"bootstrap.servers": parser.parse_args().bootstrap}
    admin = AdminClient(settings)
    create_topics(admin)
    producer, sent = Producer(settings), 0
    for topic, value in records():
        producer.produce(topic, value)
        sent += 1
    if left := producer.flush(30):
        raise SystemExit(f"{left} of {sent} records were not acknowledged")
    print(f"sent {sent} records to {len(TOPICS)} topics")


def create_topics(admin: AdminClient) -> None:
    for done in admin.create_topics([NewTopic(topic, num_partitions=1) for topic in TOPICS]).values():
        try:
            done.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


if __name__ == "__main__":
    main()
