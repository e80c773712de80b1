"""Send 1,000 web requests of three days to the topic web_requests; three of them cannot become rows."""

from __future__ import annotations

import argparse
import json
import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

TOPIC = "web_requests"
PATHS = ("/", "/pricing", "/docs", "/login", "/cart")
BAD = {
    400: b"GET /favicon.ico HTTP/1.1 404",  # a line of an access log
    500: b'{"uuid": "b500", "method": "GET", "status": "OK", "url": "http://shop.example/", '
    b'"meta": {"producer": {"timestamp": "2021-03-25T03:46:40+00:00"}}}',
    600: b'{"uuid": "b600", "method": "GET", "status": 200, "url": "http://shop.example/", "meta": {"producer": {}}}',
}


def requests(seed: int = 1) -> Iterator[tuple[str | None, bytes]]:
    """Key and value of each record; requests without a session have no key."""
    rng = random.Random(seed)
    for number in range(1000):
        session = f"s{rng.randrange(50)}" if rng.random() < 0.8 else None
        request = _request(rng, number, session)
        yield session, BAD.get(number) or json.dumps(request).encode()


def _request(rng: random.Random, number: int, session: str | None) -> dict[str, Any]:
    at = datetime(2021, 3, 24, tzinfo=UTC) + timedelta(seconds=number * 200)
    request: dict[str, Any] = {
        "uuid": str(uuid.UUID(int=rng.getrandbits(128), version=4)),
        "method": rng.choice(("GET", "GET", "GET", "POST", "DELETE")),
        "status": rng.choice((200, 200, 200, 204, 404, 500)),
        "url": f"http://shop.example{rng.choice(PATHS)}",
        "meta": {"producer": {"timestamp": at.isoformat()}},
    }
    if session:
        request["session_id"] = session
    if rng.random() < 0.1:
        request["referrer"] = "http://search.example/"
    return request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", default="localhost:9092", help="address of the broker")
    settings = {"bootstrap.servers": parser.parse_args().bootstrap}
    admin = AdminClient(settings)
    create_topic(admin)
    producer, sent = Producer(settings), 0
    for key, value in requests():
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
