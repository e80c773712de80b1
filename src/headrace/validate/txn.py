"""Rules for `table.txn`: txns of kafka-delta-ingest have one topic, and need direct commits."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.table import TableMatch
from headrace.spec.txn import KAFKA_DELTA_INGEST
from headrace.spec.yaml_reader import Path
from headrace.validate.branches import written_options


def check_txn(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Check the txns of the tables of a branch."""
    for here, own in written_options(spec):
        table = own.over(spec.table) if isinstance(own, TableMatch) else own
        path: Path = (*here, "txn")
        if table.txn.app_id is None or not {"txn", "mode", "features", "cluster_by"} & own.model_fields_set:
            continue
        kafka = spec.source.kafka
        if kafka is None or kafka.topics is None or len(kafka.topics) != 1:
            message = f"{KAFKA_DELTA_INGEST} requires one topic: its txns have no topics"
            yield UnlocatedDiagnostic(path, message, "source.kafka.topics with one topic")
        elif table.mode != "append":
            yield UnlocatedDiagnostic(
                path, f"{KAFKA_DELTA_INGEST} is not supported with mode: {table.mode}", "mode: append"
            )
        elif table.by_spark:
            key = "features" if table.features else "cluster_by"
            message = f"{KAFKA_DELTA_INGEST} requires direct commits, but Spark writes tables with {key}"
            yield UnlocatedDiagnostic(path, message, f"no {key}")
