"""Models of the YAML spec. Input is validated once on load; the rest of the code sees only these models."""

from headrace.spec.contract import Contract, ContractKeys
from headrace.spec.decode import Decode, Format, JsonFormat
from headrace.spec.diagnostics import Diagnostic
from headrace.spec.model import Spec
from headrace.spec.running import BackOff, FlushSpec, LeaseSpec, LimitsSpec, RetrySpec, SparkSpec
from headrace.spec.sasl import SaslSpec
from headrace.spec.secrets import Secret
from headrace.spec.security import TlsSpec
from headrace.spec.source import GenerateSpec, KafkaSpec, SourceSpec
from headrace.spec.start import StartAt
from headrace.spec.steps import StepSpec
from headrace.spec.storage import S3, Azure, Gcs, Storage
from headrace.spec.table import (
    ColumnSpec,
    DeadLettersSpec,
    DeadLetterStep,
    Route,
    RouteBy,
    TableMatch,
    TableOptions,
    TableSpec,
)

__all__ = [
    "S3",
    "Azure",
    "BackOff",
    "ColumnSpec",
    "Contract",
    "ContractKeys",
    "DeadLetterStep",
    "DeadLettersSpec",
    "Decode",
    "Diagnostic",
    "FlushSpec",
    "Format",
    "Gcs",
    "GenerateSpec",
    "JsonFormat",
    "KafkaSpec",
    "LeaseSpec",
    "LimitsSpec",
    "RetrySpec",
    "Route",
    "RouteBy",
    "SaslSpec",
    "Secret",
    "SourceSpec",
    "SparkSpec",
    "Spec",
    "StartAt",
    "StepSpec",
    "Storage",
    "TableMatch",
    "TableOptions",
    "TableSpec",
    "TlsSpec",
]
