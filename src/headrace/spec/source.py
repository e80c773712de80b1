"""Sources: topics of brokers, records that clients send by HTTP or OTLP, files, or generated sample events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from headrace.spec.base import SpecModel, exactly_one
from headrace.spec.danube_source import DanubeSpec
from headrace.spec.files_source import FilesSpec
from headrace.spec.http_source import HttpSpec
from headrace.spec.kafka_connection import KafkaConnection
from headrace.spec.kafka_settings import setting_name
from headrace.spec.otlp_source import OtlpSpec
from headrace.spec.rivven_source import RivvenSpec
from headrace.spec.start import Start
from headrace.spec.units import Integer, PlainText, Rate, Ratio, Regex


def _topic(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
        raise ValueError("a topic name: letters, digits, '.', '_' and '-', at most 249 characters")
    return name


class KafkaSpec(KafkaConnection):
    """Kafka source."""

    topics: tuple[Annotated[str, AfterValidator(_topic)], ...] | None = Field(
        default=None, min_length=1, description="Topics to read; alternative to `pattern`."
    )
    pattern: Regex | None = Field(
        default=None, description="Regular expression, matched anywhere in topic names; alternative to `topics`."
    )
    start: Start = Field(
        default="earliest",
        description="Start position of a new pipeline (no ledger and no txn in the tables): `earliest`, "
        "`latest`, `{timestamp: …}` or `{offsets: …}`.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        default="read_committed",
        description="Isolation level; `read_committed` skips records of aborted transactions and waits for open ones.",
    )
    group: str | None = Field(
        default=None,
        pattern=r"^[!-~]{1,255}$",
        description="Consumer group whose offsets are committed after each batch, for tools that show its lag. They "
        "are never read: the position is in the ledger. No consumer may use the group. Default: none.",
    )
    settings: Mapping[Annotated[str, AfterValidator(setting_name)], PlainText] = Field(
        default_factory=dict, description="Additional consumer settings, from a list of allowed ones."
    )
    rate: Rate | None = Field(default=None, description="Maximum rate of records. Default: unlimited.")

    @model_validator(mode="after")
    def _check_keys(self) -> KafkaSpec:
        exactly_one(self, "topics", "pattern")
        return self


class GenerateSpec(SpecModel):
    """Generated sample events of three types, reproducible, for tests and demos."""

    records: Integer = Field(default=10_000, ge=0, description="Total number of records.")
    partitions: Integer = Field(default=4, ge=1, le=1024, description="Number of partitions.")
    bad_ratio: Ratio = Field(default=0.02, description="Ratio of invalid records.")
    seed: Integer = Field(default=1, ge=0, description="Random seed; the same seed generates the same records.")
    start: Literal["earliest"] = Field(default="earliest", description="Start position; only `earliest` is supported.")
    rate: Rate | None = Field(default=None, description="Maximum rate of records.")


class SourceSpec(SpecModel):
    """Source of the records; exactly one key."""

    kafka: KafkaSpec | None = Field(default=None, description="Kafka topics.")
    rivven: RivvenSpec | None = Field(default=None, description="Topics of a Rivven server.")
    danube: DanubeSpec | None = Field(default=None, description="Topics of a Danube broker.")
    http: HttpSpec | None = Field(default=None, description="Records that clients send by HTTP.")
    otlp: OtlpSpec | None = Field(default=None, description="Traces, metrics and logs of OpenTelemetry, by OTLP.")
    files: FilesSpec | None = Field(default=None, description="New files below a directory or prefix.")
    generate: GenerateSpec | None = Field(default=None, description="Generated sample events.")

    @model_validator(mode="after")
    def _check_keys(self) -> SourceSpec:
        exactly_one(self, *type(self).model_fields)
        return self

    @property
    def kind(self) -> str:
        """The key of the source: `kafka`, `generate`, …"""
        return next(name for name in type(self).model_fields if getattr(self, name) is not None)

    @property
    def read_from_kafka(self) -> KafkaSpec | None:
        """The Kafka topics that are read: of `source.kafka`, or those that `source.http.kafka` writes."""
        if self.http is None or self.http.kafka is None:
            return self.kafka
        connection = {name: getattr(self.http.kafka, name) for name in KafkaConnection.model_fields}
        return KafkaSpec.model_construct(**connection, topics=self.http.all_topics)

    @property
    def kafka_key(self) -> str:
        """The key with the connection to Kafka."""
        return "source.kafka" if self.http is None else "source.http.kafka"

    @property
    def spool_path(self) -> str | None:
        """The directory of the spool, if the source has one and the spec names it."""
        if self.http is not None and self.http.kafka is not None:
            return None
        path: str | None = getattr(getattr(getattr(self, self.kind), "spool", None), "path", None)
        return path

    @property
    def rate(self) -> float | None:
        """Maximum records per second."""
        rate: float | None = getattr(getattr(self, self.kind), "rate", None)
        return rate
