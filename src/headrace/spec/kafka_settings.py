"""Which settings of Kafka's consumer a spec may pass on: those that change pace and patience, nothing else."""

from __future__ import annotations

import re

from headrace.spec.base import InvalidValue

HARMLESS: dict[str, str] = {
    "check.crcs": "whether checksums are verified",
    "client.dns.lookup": "how a broker's addresses are tried",
    "client.id": "the name in the broker's log",
    "client.rack": "where this consumer is, to read from the nearest replica",
    "connections.max.idle.ms": "when an idle connection is closed",
    "default.api.timeout.ms": "how long a call may take in all",
    "fetch.max.bytes": "bytes of one fetch",
    "fetch.max.wait.ms": "how long a broker waits to fill a fetch",
    "fetch.min.bytes": "bytes a broker waits for",
    "max.partition.fetch.bytes": "bytes of one fetch and partition",
    "max.poll.records": "records handed over at once",
    "metadata.max.age.ms": "how often metadata is asked for anew",
    "receive.buffer.bytes": "the socket's buffer",
    "reconnect.backoff.max.ms": "the longest wait between connections",
    "reconnect.backoff.ms": "the first wait between connections",
    "request.timeout.ms": "how long one request may take",
    "retry.backoff.max.ms": "the longest wait between requests",
    "retry.backoff.ms": "the first wait between requests",
    "send.buffer.bytes": "the socket's buffer",
    "socket.connection.setup.timeout.max.ms": "the longest wait for a connection",
    "socket.connection.setup.timeout.ms": "the first wait for a connection",
}

_REFUSED = (
    (r".*(class|classes|deserializer|reporters?|providers?)(\..*)?", "settings that name code to run are refused"),
    (r"(sasl|security)\..*", "authentication is said with `sasl` and `tls`, never with raw settings"),
    (r"ssl\..*", "encryption is said with `tls`; host names are always verified"),
    (r"bootstrap\.servers|metadata\.broker\.list", "brokers are said with `brokers`"),
    (r"isolation\.level", "isolation is said with `isolation`"),
    (r"auto\.offset\.reset", "the first position is said with `start`; later ones are in the ledger"),
    (r"(enable\.)?auto\..*", "positions are kept in the ledger, not by the consumer"),
    (r"(group|session|heartbeat|partition\.assignment|max\.poll\.interval)\..*", "the consumer joins no group"),
)


def setting_name(name: str) -> str:
    """A setting of the list; Wrong, with the reason, for any other."""
    if name in HARMLESS:
        return name
    for pattern, reason in _REFUSED:
        if re.fullmatch(pattern, name):
            raise InvalidValue(reason, message=f"the setting '{name[:80]}'")
    allowed = f"one of {', '.join(HARMLESS)}"
    raise InvalidValue(allowed, message=f"the setting '{name[:80]}'", options=tuple(HARMLESS))
