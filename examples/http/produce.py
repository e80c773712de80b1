"""Send 1,000 orders in requests of 50; a request is sent again, with the same key, until it is acknowledged."""

from __future__ import annotations

import argparse
import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

TOPIC, ORDERS, PER_REQUEST, PATIENCE = "orders", 1000, 50, 60.0


def orders(seed: int = 1) -> Iterator[str]:
    """Orders as JSON; one in a hundred has no id."""
    rng = random.Random(seed)
    for number in range(ORDERS):
        at = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        order = {"id": number, "customer": f"c{rng.randrange(50)}", "amount": rng.randrange(10_000) / 100}
        if number % 100 == 7:
            del order["id"]
        yield json.dumps({**order, "at": at.isoformat()})


def send(url: str, body: bytes, key: str) -> int:
    """The number of records that were stored, by this request or an earlier one with its key."""
    headers = {"Content-Type": "application/x-ndjson", "Idempotency-Key": key}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as response:  # noqa: S310
                return int(json.load(response)["stored"])
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429, 503):
                raise SystemExit(f"{error.code}: {error.read().decode()}") from None
            wait = float(error.headers.get("Retry-After", 1))
        except OSError:  # not started yet, or restarted: nobody knows whether the records are stored
            wait = 0.2
        if time.monotonic() > deadline:
            raise SystemExit(f"{url} did not accept the records within {PATIENCE:.0f} s")
        time.sleep(wait)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="address of the server")
    url = f"{parser.parse_args().url}/v1/{TOPIC}"
    lines, stored = list(orders()), 0
    for start in range(0, ORDERS, PER_REQUEST):
        body = "\n".join(lines[start : start + PER_REQUEST]).encode()
        stored += send(url, body, f"orders-{start}")
    print(f"{stored} records are stored in {TOPIC}")


if __name__ == "__main__":
    main()
