"""The source `danube`: the spool with the consumers of a subscription as its receiver."""

from __future__ import annotations

from headrace.source.base import Source
from headrace.source.spool.receiver import Receiver
from headrace.source.spool.source import SpoolSource
from headrace.spec import Spec
from headrace.spec.danube_source import source_topic


def danube_source(spec: Spec) -> Source:
    """The source of a spec with `source.danube`; the consumers are started when it receives."""
    danube = spec.source.danube
    if danube is None:
        raise LookupError(f"{spec.pipeline} does not have a danube source")

    def receiver() -> Receiver:
        from headrace.source.danube.receiver import DanubeReceiver  # status and check need no gRPC

        return DanubeReceiver(spec, danube)

    return SpoolSource(spec, danube.spool_settings, [source_topic(topic) for topic in danube.topics], receiver)
