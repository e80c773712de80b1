"""The source `http`: the spool, or topics of Kafka, with an HTTP server as the receiver."""

from __future__ import annotations

from headrace.source.base import Source
from headrace.source.spool.receiver import Receiver
from headrace.source.spool.source import SpoolSource
from headrace.spec import Spec


def http_source(spec: Spec) -> Source:
    """The source of a spec with `source.http`; the server is started when it receives."""
    http = spec.source.http
    if http is None:
        raise LookupError(f"{spec.pipeline} does not have an http source")

    def receiver() -> Receiver:
        from headrace.source.http.server import HttpReceiver  # status and check need no server

        return HttpReceiver(http, spec.limits.record_bytes)

    if http.kafka is not None:
        from headrace.source.http.kafka_source import HttpKafkaSource  # a spool needs no client of Kafka

        return HttpKafkaSource(spec, http.kafka, receiver)
    return SpoolSource(spec, http.spool, http.all_topics, receiver)
