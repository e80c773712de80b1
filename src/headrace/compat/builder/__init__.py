"""Builder API: `DeltaConfig`, `DeltaLakeConnector`, operations with `with_…` methods, and their results.

A thin layer over `headrace.Table` for programs written in this style. All calls are synchronous.
"""

from headrace.compat.builder.config import DeltaConfig, DeltaField, DeltaFieldType, DeltaSchema
from headrace.compat.builder.operations import (
    BulkInsertOperation,
    BulkInsertResult,
    DeleteOperation,
    DeleteResult,
    OperationMetrics,
    OptimizeResult,
    QueryResult,
    RestoreResult,
    TableHistory,
    TableMetadata,
    TableStatistics,
    TableVersion,
    TimeTravelQueryOperation,
    UpsertOperation,
    UpsertResult,
    VacuumResult,
)
from headrace.compat.builder.table import DeltaLakeConnector, DeltaTable, QueryBuilder
from headrace.errors import (
    ConcurrentModification,
    FeatureRequired,
    HeadraceError,
    OperationDisabled,
    PartitionNotFound,
    SchemaMismatch,
    TableNotFound,
)
from headrace.table import EnabledFeature

DeltaLakeError = HeadraceError  # base class of all errors

__all__ = [
    "BulkInsertOperation",
    "BulkInsertResult",
    "ConcurrentModification",
    "DeleteOperation",
    "DeleteResult",
    "DeltaConfig",
    "DeltaField",
    "DeltaFieldType",
    "DeltaLakeConnector",
    "DeltaLakeError",
    "DeltaSchema",
    "DeltaTable",
    "EnabledFeature",
    "FeatureRequired",
    "OperationDisabled",
    "OperationMetrics",
    "OptimizeResult",
    "PartitionNotFound",
    "QueryBuilder",
    "QueryResult",
    "RestoreResult",
    "SchemaMismatch",
    "TableHistory",
    "TableMetadata",
    "TableNotFound",
    "TableStatistics",
    "TableVersion",
    "TimeTravelQueryOperation",
    "UpsertOperation",
    "UpsertResult",
    "VacuumResult",
]
