"""Send the change events of 200 customers to the topic shop.customers of a Rivven server; one of them is invalid."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from typing import Any

from headrace.source.rivven.client import RivvenClient, RivvenConnection

TOPIC, PARTITIONS = "shop.customers", 2
NAMES, CITIES = ("Ann", "Bo", "Cleo", "Dan", "Eve"), ("Berlin", "Lisbon", "Osaka", "Recife")


def changes(seed: int = 1) -> Iterator[tuple[int, bytes]]:
    """Id of the customer and value of each record: 200 inserts, 100 updates, 20 deletes, one unknown operation."""
    rng = random.Random(seed)
    rows = {number: {"id": number, "name": rng.choice(NAMES), "city": rng.choice(CITIES)} for number in range(200)}
    for number, row in rows.items():
        yield number, change("Insert", number, None, row)
    for number in rng.sample(range(200), 100):
        before, rows[number] = rows[number], rows[number] | {"city": "Porto"}
        yield number, change("Update", 200 + number, before, rows[number])
    for number in rng.sample(range(200), 20):
        yield number, change("Delete", 400 + number, rows[number], None)
    yield 7, change("Merge", 600, None, rows[7])


def change(operation: str, seconds: int, before: Any, after: Any) -> bytes:
    """A change event of Rivven's connectors."""
    event = {"source_type": "postgres", "database": "shop", "schema": "public", "table": "customers", "op": operation}
    return json.dumps(event | {"before": before, "after": after, "timestamp": 1_767_225_600 + seconds}).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broker", default="localhost:9092", help="address of the server")
    records: list[list[tuple[bytes | None, bytes]]] = [[] for _ in range(PARTITIONS)]
    for customer, value in changes():
        records[customer % PARTITIONS].append((str(customer).encode(), value))
    with RivvenClient(RivvenConnection(parser.parse_args().broker)) as client:
        if TOPIC not in client.topics():
            client.create_topic(TOPIC, PARTITIONS)
        for partition, part in enumerate(records):
            client.publish(TOPIC, part, partition)
    print(f"sent {sum(map(len, records))} records to {TOPIC}")


if __name__ == "__main__":
    main()
