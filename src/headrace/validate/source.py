"""Rules for sources: connections, certificates, schema registries, schema files and topics."""

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
    """Check the source and the schemas of its records."""
    for rule in (_connection, _certificates, _registry, _schema_file, _avro_files, _topics):
        yield from rule(spec)


def _connection(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    kafka = spec.source.kafka
    if kafka is None:
        return
    if kafka.tls is None and not kafka.plaintext and not kafka.stays_here:
        message = "an unencrypted connection to a broker on another host"
        yield UnlocatedDiagnostic((*_KAFKA, "brokers"), message, "tls, or plaintext: true")
    if kafka.tls is not None and kafka.plaintext:
        yield UnlocatedDiagnostic((*_KAFKA, "plaintext"), "conflicts with tls", "only one of them")


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
        yield UnlocatedDiagnostic(here, "only one of certificate and key", "both or neither")
    if tls.key is None and tls.key_password is not None:
        yield UnlocatedDiagnostic((*here, "key_password"), "key_password without key", "key_password together with key")


def _registry(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    registry = getattr(spec.decode.options, "registry", None)
    if not isinstance(registry, RegistrySpec):
        return
    here: Path = ("decode", spec.format, "registry")
    encrypted = registry.url.startswith("https://")
    if not encrypted and not registry.plaintext and not registry.stays_here:
        message = "an unencrypted connection to a registry on another host"
        yield UnlocatedDiagnostic((*here, "url"), message, "https://, or plaintext: true")
    if encrypted and registry.plaintext:
        yield UnlocatedDiagnostic((*here, "plaintext"), "conflicts with https://", "only one of them")
    if (registry.username is None) != (registry.password is None):
        yield UnlocatedDiagnostic(here, "only one of username and password", "both or neither")
    if registry.ca is not None and not _is_certificate(registry.ca):
        yield UnlocatedDiagnostic((*here, "ca"), "no certificate", _CERTIFICATES)


def _schema_file(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Schema files are read now, so that errors are reported before the first record."""
    options = spec.decode.options
    if isinstance(options, ProtobufFormat) and options.descriptor is not None:
        yield from _descriptor(options.descriptor, options.message or "", spec.limits.depth)
    if isinstance(options, MsgpackFormat) and options.schemas is not None:
        from headrace.decode.msgpack.schema import BadSchemas, in_path

        try:
            in_path(options.schemas)
        except BadSchemas as error:
            yield UnlocatedDiagnostic(
                ("decode", "msgpack", "schemas"), str(error), "a schema file, or a directory of schema files"
            )


def _descriptor(path: str, message: str, depth: int) -> Iterator[UnlocatedDiagnostic]:
    from headrace.decode.protobuf.schema import BadProtobufSchema, NoMessage
    from headrace.decode.protobuf.schema_files import in_file

    here: Path = ("decode", "protobuf")
    try:
        in_file(path, depth).message(message)
    except OSError as error:
        yield UnlocatedDiagnostic((*here, "descriptor"), f"cannot read file ({error.strerror})")
    except NoMessage as error:
        yield UnlocatedDiagnostic(
            (*here, "message"), str(error), "the full name of a message in the schema, including the package"
        )
    except BadProtobufSchema as error:
        yield UnlocatedDiagnostic(
            (*here, "descriptor"), str(error), "a .proto file, or a descriptor set that includes its imports"
        )


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
        yield UnlocatedDiagnostic(("decode", "avro", key), error.message.removesuffix("."), "an Avro schema file")


def _topics(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    kafka = spec.source.kafka
    if kafka is None:
        return
    topics = kafka.topics or ()
    for index, topic in enumerate(topics):
        if topic in topics[:index]:
            yield UnlocatedDiagnostic((*_KAFKA, "topics", index), f"duplicate topic '{topic}'", "unique topics")
    if isinstance(kafka.start, str) or kafka.start.offsets is None:
        return
    here = (*_KAFKA, "start", "offsets")
    if any(isinstance(item, int) for item in kafka.start.offsets.values()):
        if len(topics) != 1:
            yield UnlocatedDiagnostic(
                here, "offsets without a topic", "{orders: {0: 12}}, unless there is exactly one topic"
            )
        return
    for topic in kafka.start.offsets:
        if topics and topic not in topics:
            yield UnlocatedDiagnostic(
                (*here, topic), "topic is not read by the pipeline", ", ".join(topics), closest(topic, topics)
            )
