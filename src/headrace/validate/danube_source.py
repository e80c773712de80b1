"""Rules for the source `danube`."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.danube_source import DanubeSpec, is_partition_of
from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import Spec
from headrace.spec.yaml_reader import Path
from headrace.validate.spool import check_spool

_HERE: Path = ("source", "danube")


def check_danube(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check the source, if it is this one."""
    danube = spec.source.danube
    if danube is None:
        return
    for rule in (_connection, _tls, _topics, _subscription):
        yield from rule(danube)
    yield from check_spool(spec, _HERE, danube.spool_settings)
    yield from _order(spec)


def _connection(danube: DanubeSpec) -> Iterator[UnlocatedDiagnostic]:
    if not danube.encrypted and not danube.plaintext and not danube.stays_here:
        message = "an unencrypted connection to a broker on another host"
        plaintext = ((*_HERE, "plaintext"),)
        yield UnlocatedDiagnostic((*_HERE, "url"), message, "https://, or plaintext: true", depends_on=plaintext)
    if danube.encrypted and danube.plaintext:
        yield UnlocatedDiagnostic((*_HERE, "plaintext"), "conflicts with https://", "only one of them")


def _tls(danube: DanubeSpec) -> Iterator[UnlocatedDiagnostic]:
    tls, here = danube.tls, (*_HERE, "tls")
    if tls is None:
        return
    if not danube.encrypted:
        yield UnlocatedDiagnostic(here, "tls with an http:// URL", "an https:// URL", depends_on=((*_HERE, "url"),))
    for name in ("ca", "certificate"):
        text = getattr(tls, name)
        if text is not None and ("-----BEGIN CERTIFICATE-----" not in text or "PRIVATE KEY" in text):
            expected = "PEM text or ${file:…}, certificates only"
            yield UnlocatedDiagnostic((*here, name), "no certificate", expected, depends_on=())
    if (tls.certificate is None) != (tls.key is None):
        yield UnlocatedDiagnostic(here, "only one of certificate and key", "both or neither")


def _topics(danube: DanubeSpec) -> Iterator[UnlocatedDiagnostic]:
    for index, topic in enumerate(danube.topics):
        here = (*_HERE, "topics", index)
        if topic in danube.topics[:index]:
            yield UnlocatedDiagnostic(here, f"duplicate topic '{topic}'", "unique topics", depends_on=())
        for whole in danube.topics:
            if is_partition_of(topic, whole):
                message = f"'{topic}' is a partition of '{whole}', which is read as well"
                yield UnlocatedDiagnostic(here, message, "one of them", depends_on=())


def _subscription(danube: DanubeSpec) -> Iterator[UnlocatedDiagnostic]:
    for topic in danube.subscriptions.keys() - set(danube.topics):
        here = (*_HERE, "subscriptions", topic)
        message = f"'{topic}' is not one of the topics"
        topics = ", ".join(danube.topics)
        yield UnlocatedDiagnostic(here, message, topics, closest(topic, danube.topics), on_key=True)
    if danube.key_filters and danube.subscription_type != "KeyShared":
        message = f"key_filters with subscription_type {danube.subscription_type}"
        yield UnlocatedDiagnostic((*_HERE, "key_filters"), message, "subscription_type: KeyShared")


def _order(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Merges should not order changes by offsets, which are positions in the spool."""
    merges = [rules.merges for branch in spec.branch_specs().values() for rules in branch.all_rules()]
    if any(merge is not None and merge.sequence_by is None for merge in merges):
        message = "changes are ordered as they were received, and the broker may deliver an earlier one again later"
        expected = "merge.sequence_by with a column that increases with each change of a key"
        yield UnlocatedDiagnostic(_HERE, message, expected, severity="warning", depends_on=())
