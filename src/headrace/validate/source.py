"""Rules about where records come from and how they are read: brokers, registries, schemas."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import UsageError
from headrace.spec.decode import MsgpackFormat, ProtobufFormat
from headrace.spec.diagnostics import UnlocatedDiagnostic, closest
from headrace.spec.model import Spec
from headrace.spec.registry import RegistrySpec
from headrace.spec.yaml_reader import Path

_KAFKA: Path = ("source", "kafka")
_CERTIFICATES = "PEM text or ${file:…}, certificates only"


def check_source(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """What is wrong with where records come from, or with how they are to be read."""
    for rule in (_connection, _certificates, _registry, _schema_file, _avro_files, _topics):
        yield from rule(spec)


def _connection(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    kafka = spec.source.kafka
    if kafka is None:
        return
    if kafka.tls is None and not kafka.plaintext and not kafka.stays_here:
        seen = "a broker on another machine and neither encryption nor a word that none is meant"
        yield UnlocatedDiagnostic((*_KAFKA, "brokers"), seen, "tls, or plaintext: true")
    if kafka.tls is not None and kafka.plaintext:
        yield UnlocatedDiagnostic((*_KAFKA, "plaintext"), "true beside tls", "one of them")


def _is_certificate(text: str) -> bool:
    return "-----BEGIN CERTIFICATE-----" in text and "PRIVATE KEY" not in text


def _certificates(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    tls = spec.source.kafka.tls if spec.source.kafka else None
    if tls is None:
        return
    here = (*_KAFKA, "tls")
    for name in ("ca", "certificate"):
        text = getattr(tls, name)
        if text is not None and not _is_certificate(text):
            yield UnlocatedDiagnostic((*here, name), "no certificate", _CERTIFICATES)
    if (tls.certificate is None) != (tls.key is None):
        yield UnlocatedDiagnostic(here, "one of certificate and key without the other", "both or none")
    if tls.key is None and tls.key_password is not None:
        yield UnlocatedDiagnostic((*here, "key_password"), "a password for no key", "key_password beside key")


def _registry(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    registry = getattr(spec.decode.options, "registry", None)
    if not isinstance(registry, RegistrySpec):
        return
    here: Path = ("decode", spec.format, "registry")
    encrypted = registry.url.startswith("https://")
    if not encrypted and not registry.plaintext and not registry.stays_here:
        seen = "a registry on another machine, an unencrypted address, and no word that it is meant"
        yield UnlocatedDiagnostic((*here, "url"), seen, "https://, or plaintext: true")
    if encrypted and registry.plaintext:
        yield UnlocatedDiagnostic((*here, "plaintext"), "true beside https://", "one of them")
    if (registry.username is None) != (registry.password is None):
        yield UnlocatedDiagnostic(here, "one of username and password without the other", "both or none")
    if registry.ca is not None and not _is_certificate(registry.ca):
        yield UnlocatedDiagnostic((*here, "ca"), "no certificate", _CERTIFICATES)


def _schema_file(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """A schema beside the spec is read now: what is wrong with it should not wait for the first record."""
    options = spec.decode.options
    if isinstance(options, ProtobufFormat) and options.descriptor is not None:
        yield from _descriptor(options.descriptor, options.message or "", spec.limits.depth)
    if isinstance(options, MsgpackFormat) and options.schemas is not None:
        from headrace.decode.msgpack.schema import BadSchemas, in_path

        try:
            in_path(options.schemas)
        except BadSchemas as bad:
            yield UnlocatedDiagnostic(
                ("decode", "msgpack", "schemas"), str(bad), "a file of schemas, or a folder of such files"
            )


def _descriptor(path: str, message: str, depth: int) -> Iterator[UnlocatedDiagnostic]:
    from headrace.decode.protobuf.schema import BadProtobufSchema, NoMessage
    from headrace.decode.protobuf.schema_files import in_file

    here: Path = ("decode", "protobuf")
    try:
        in_file(path, depth).message(message)
    except OSError as trouble:
        yield UnlocatedDiagnostic((*here, "descriptor"), f"no file that can be read ({trouble.strerror})")
    except NoMessage as none:
        yield UnlocatedDiagnostic(
            (*here, "message"), str(none), "the full name of a message in the schema, package included"
        )
    except BadProtobufSchema as bad:
        yield UnlocatedDiagnostic((*here, "descriptor"), str(bad), "a .proto file or a descriptor set with its imports")


def _avro_files(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    avro = spec.decode.avro
    if avro is None:
        return
    from headrace.decode.avro.decoder import schema_file, schemas_at

    try:
        if avro.schema_ is not None:
            schema_file(avro.schema_)
        if avro.single_object is not None:
            schemas_at(avro.single_object)
    except UsageError as error:
        key = "schema" if avro.schema_ is not None else "single_object"
        yield UnlocatedDiagnostic(
            ("decode", "avro", key), error.message.removesuffix("."), "a file with an Avro schema"
        )


def _topics(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    kafka = spec.source.kafka
    if kafka is None:
        return
    topics = kafka.topics or ()
    for index, topic in enumerate(topics):
        if topic in topics[:index]:
            yield UnlocatedDiagnostic((*_KAFKA, "topics", index), f"'{topic}' a second time", "each topic once")
    if isinstance(kafka.start, str) or kafka.start.offsets is None:
        return
    here = (*_KAFKA, "start", "offsets")
    if any(isinstance(item, int) for item in kafka.start.offsets.values()):
        if len(topics) != 1:
            yield UnlocatedDiagnostic(
                here, "offsets without a topic", "{orders: {0: 12}} where there is not exactly one topic"
            )
        return
    for topic in kafka.start.offsets:
        if topics and topic not in topics:
            yield UnlocatedDiagnostic(
                (*here, topic), "a topic that is not read", ", ".join(topics), closest(topic, topics)
            )
