"""The source `otlp`: the spool with the OTLP receiver; the signals are its topics."""

from __future__ import annotations

from headrace.source.base import Source
from headrace.source.spool.receiver import Receiver
from headrace.source.spool.source import SpoolSource
from headrace.spec import Spec
from headrace.spec.decode import SIGNALS


def otlp_source(spec: Spec) -> Source:
    """The source of a spec with `source.otlp`; the servers are started when it receives."""
    otlp = spec.source.otlp
    if otlp is None:
        raise LookupError(f"{spec.pipeline} does not have an otlp source")

    def receiver() -> Receiver:
        from headrace.source.otlp.receiver import OtlpReceiver  # status and check need no server

        return OtlpReceiver(otlp, spec.limits.record_bytes)

    return SpoolSource(spec, otlp.spool, SIGNALS, receiver)
