"""What the user writes: one YAML file, checked at the door; inside there are only these models."""

from headrace.spec.contract import Contract, ContractKeys
from headrace.spec.decode import Decode, Format, Json
from headrace.spec.diagnostics import Finding
from headrace.spec.model import Spec
from headrace.spec.running import BackOff, Flush, Lease, Limits, Retry, Spark
from headrace.spec.secrets import Secret
from headrace.spec.security import Sasl, Tls
from headrace.spec.source import Generate, Kafka, Source, StartAt
from headrace.spec.steps import Step
from headrace.spec.table import (
    S3,
    Column,
    DeadLetters,
    LetterStep,
    Route,
    RouteBy,
    Storage,
    StorageProfile,
    TableMatch,
    TableOptions,
    TableSpec,
)

__all__ = [
    "S3",
    "BackOff",
    "Column",
    "Contract",
    "ContractKeys",
    "DeadLetters",
    "Decode",
    "Finding",
    "Flush",
    "Format",
    "Generate",
    "Json",
    "Kafka",
    "Lease",
    "LetterStep",
    "Limits",
    "Retry",
    "Route",
    "RouteBy",
    "Sasl",
    "Secret",
    "Source",
    "Spark",
    "Spec",
    "StartAt",
    "Step",
    "Storage",
    "StorageProfile",
    "TableMatch",
    "TableOptions",
    "TableSpec",
    "Tls",
]
