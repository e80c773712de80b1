"""Send 300 payments to the topic /default/payments of a Danube broker; three of them cannot become rows."""

from __future__ import annotations

import argparse
import asyncio
import json
import random

from danube import DanubeClientBuilder, DispatchStrategy, Producer

TOPIC = "/default/payments"
BAD = {
    100: b'{"payment_id": "pay-0100", "amount": ',
    200: b'{"payment_id": "pay-0200", "amount": "12.50", "currency": "EUR"}',
    250: b'{"amount": 3.0, "currency": "EUR"}',
}


def payments() -> list[bytes]:
    """The same payments at each call."""
    rng = random.Random(1)
    return [BAD.get(number) or json.dumps(_payment(rng, number)).encode() for number in range(300)]


def _payment(rng: random.Random, number: int) -> dict[str, object]:
    amount, currency = rng.randrange(100, 100_000) / 100, rng.choice(("EUR", "USD", "GBP"))
    return {"payment_id": f"pay-{number:04}", "amount": amount, "currency": currency}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://localhost:6650", help="address of the broker")
    parser.add_argument("--create", action="store_true", help="only create the topic")
    options = parser.parse_args()
    client = await DanubeClientBuilder().service_url(options.url).build()
    producer = client.new_producer().with_topic(TOPIC).with_name("payments").with_partitions(2)
    await send(producer.with_dispatch_strategy(DispatchStrategy.RELIABLE).build(), only_create=options.create)


async def send(producer: Producer, *, only_create: bool) -> None:
    await producer.create()
    if only_create:
        print(f"created {TOPIC}")
    else:
        for value in payments():
            await producer.send(value, {"sender": "example"})
        print(f"sent 300 messages to {TOPIC}")
    await producer.close()


if __name__ == "__main__":
    asyncio.run(main())
