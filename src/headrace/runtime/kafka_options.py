"""Options of a JVM for Kafka's client: what its settings may read."""

from __future__ import annotations

from collections.abc import Iterable

ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
NO_URLS = "none"  # not a URL: without the property, all are allowed


def kafka_options(token_urls: Iterable[str] = ()) -> tuple[str, ...]:
    """Options of a JVM in which tokens come from these URLs only."""
    urls = ",".join(sorted(set(token_urls))) or NO_URLS
    return ("-Dorg.apache.kafka.automatic.config.providers=none", f"-D{ALLOWED_URLS}={urls}")
