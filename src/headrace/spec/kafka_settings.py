"""Kafka consumer settings that a spec may set: performance and timeouts only."""

from __future__ import annotations

import re

from headrace.spec.base import InvalidValue

CONSUMER_SETTINGS: dict[str, str] = {
    "check.crcs": "Verify record checksums.",
    "client.dns.lookup": "How a broker's DNS names are resolved.",
    "client.id": "Client name in broker logs and metrics.",
    "client.rack": "Rack of the consumer, to fetch from the closest replica.",
    "connections.max.idle.ms": "Close idle connections after this time.",
    "default.api.timeout.ms": "Timeout of a client call, including retries.",
    "fetch.max.bytes": "Maximum bytes per fetch.",
    "fetch.max.wait.ms": "Maximum time a broker waits to fill a fetch.",
    "fetch.min.bytes": "Minimum bytes per fetch.",
    "max.partition.fetch.bytes": "Maximum bytes per fetch and partition.",
    "max.poll.records": "Maximum records per poll.",
    "metadata.max.age.ms": "Interval between metadata refreshes.",
    "receive.buffer.bytes": "Size of the TCP receive buffer.",
    "reconnect.backoff.max.ms": "Maximum delay between reconnects.",
    "reconnect.backoff.ms": "Initial delay between reconnects.",
    "request.timeout.ms": "Timeout of a single request.",
    "retry.backoff.max.ms": "Maximum delay between retries.",
    "retry.backoff.ms": "Initial delay between retries.",
    "send.buffer.bytes": "Size of the TCP send buffer.",
    "socket.connection.setup.timeout.max.ms": "Maximum time to establish a connection.",
    "socket.connection.setup.timeout.ms": "Initial time to establish a connection.",
}

_UNSUPPORTED = (
    (
        r".*(class|classes|deserializer|reporters?|providers?)(\..*)?",
        "classes cannot be loaded from a spec",
    ),
    (r"(sasl|security)\..*", "use `sasl` and `tls` to configure authentication"),
    (r"ssl\..*", "use `tls` to configure encryption; host names are always verified"),
    (r"bootstrap\.servers|metadata\.broker\.list", "use `brokers`"),
    (r"isolation\.level", "use `isolation`"),
    (r"auto\.offset\.reset", "use `start` for the initial position; later positions are in the ledger"),
    (r"(enable\.)?auto\..*", "offsets are stored in the ledger, not committed by the consumer"),
    (r"group\.id", "use `group` for offsets that tools show; the consumer does not join a group"),
    (r"(group|session|heartbeat|partition\.assignment|max\.poll\.interval)\..*", "the consumer does not join a group"),
)


def setting_name(name: str) -> str:
    """Return a supported setting; raise InvalidValue with the reason for any other."""
    if name in CONSUMER_SETTINGS:
        return name
    for pattern, reason in _UNSUPPORTED:
        if re.fullmatch(pattern, name):
            raise InvalidValue("", message=f"setting '{name[:80]}' is not supported: {reason}")
    expected = f"one of {', '.join(CONSUMER_SETTINGS)}"
    raise InvalidValue(expected, message=f"unknown setting '{name[:80]}'", options=tuple(CONSUMER_SETTINGS))
