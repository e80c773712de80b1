"""Rules for sources: connections, certificates, schema registries, schema files and topics."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.errors import UsageError
from headrace.spec.decode import MsgpackFormat, ProtobufFormat
from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.registry import RegistrySpec
from headrace.spec.yaml_reader import Path
from headrace.validate.certificates import CERTIFICATES, check_tls, is_certificate
from headrace.validate.danube_source import check_danube
from headrace.validate.files_source import check_files_source
from headrace.validate.http_source import check_http
from headrace.validate.otlp_source import check_otlp
from headrace.validate.rivven_source import check_rivven
from headrace.validate.start import check_topics_and_start

_KAFKA: Path = ("source", "kafka")


def check_source(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check the source and the schemas of its records."""
    for rule in SOURCE_RULES:
        yield from rule(spec)


def _kafka_path(spec: Spec) -> Path:
    return tuple(spec.source.kafka_key.split("."))


def _connection(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    kafka, here = spec.source.read_from_kafka, _kafka_path(spec)
    if kafka is None:
        return
    if kafka.tls is None and not kafka.plaintext and not kafka.stays_here:
        message = "an unencrypted connection to a broker on another host"
        security = ((*here, "tls"), (*here, "plaintext"))
        yield UnlocatedDiagnostic((*here, "brokers"), message, "tls, or plaintext: true", depends_on=security)
    if kafka.tls is not None and kafka.plaintext:
        yield UnlocatedDiagnostic((*here, "plaintext"), "conflicts with tls", "only one of them")


def _certificates(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    kafka, here = spec.source.read_from_kafka, _kafka_path(spec)
    if kafka is None:
        return
    if kafka.sasl is not None and kafka.sasl.ca is not None and not is_certificate(kafka.sasl.ca):
        yield UnlocatedDiagnostic((*here, "sasl", "ca"), "no certificate", CERTIFICATES, depends_on=())
    if kafka.tls is not None:
        yield from check_tls(kafka.tls, (*here, "tls"))


def _registry(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    registry = getattr(spec.decode.options, "registry", None)
    if not isinstance(registry, RegistrySpec):
        return
    here: Path = ("decode", spec.format, "registry")
    encrypted = registry.url.startswith("https://")
    if not encrypted and not registry.plaintext and not registry.stays_here:
        message = "an unencrypted connection to a registry on another host"
        yield UnlocatedDiagnostic(
            (*here, "url"), message, "https://, or plaintext: true", depends_on=((*here, "plaintext"),)
        )
    if encrypted and registry.plaintext:
        yield UnlocatedDiagnostic((*here, "plaintext"), "conflicts with https://", "only one of them")
    if (registry.username is None) != (registry.password is None):
        yield UnlocatedDiagnostic(here, "only one of username and password", "both or neither")
    if registry.ca is not None and not is_certificate(registry.ca):
        yield UnlocatedDiagnostic((*here, "ca"), "no certificate", CERTIFICATES, depends_on=())


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
    if spec.source.kafka is not None:
        yield from check_topics_and_start(spec.source.kafka.topics or (), spec.source.kafka.start, _KAFKA)


# Rules for the format of the records, which an entry of `topics` may have of its own.
DECODE_RULES: tuple[Callable[[Spec], Iterator[UnlocatedDiagnostic]], ...] = (_registry, _schema_file, _avro_files)

SOURCE_RULES: tuple[Callable[[Spec], Iterator[UnlocatedDiagnostic]], ...] = (
    _connection,
    _certificates,
    *DECODE_RULES,
    _topics,
    check_rivven,
    check_danube,
    check_http,
    check_otlp,
    check_files_source,
)
