"""OpenLineage events: a run of a pipeline reads topics or files and writes tables."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from headrace.spec import Spec
from headrace.spec.uris import split_object_uri
from headrace.version import VERSION

_PRODUCER = f"urn:headrace:{VERSION}"
_SPEC = "https://openlineage.io/spec"
_RUN_EVENT = f"{_SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
_JOB_TYPE = f"{_SPEC}/facets/2-0-4/JobTypeJobFacet.json#/$defs/JobTypeJobFacet"
_ERROR = f"{_SPEC}/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet"
_STATISTICS = f"{_SPEC}/facets/1-0-2/OutputStatisticsOutputDatasetFacet.json#/$defs/OutputStatisticsOutputDatasetFacet"
_INTERVAL = 60.0  # seconds between two RUNNING events of a run
_END = {"stopped": "COMPLETE", "failed": "FAIL", "restarting": "FAIL"}  # by state


@dataclass
class _Run:
    """A run that is not over."""

    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    topics: set[str] = field(default_factory=set)
    written: dict[str, dict[str, int]] = field(default_factory=dict)  # since the last event, by table
    sent_at: float | None = None  # when tables were sent last


class Lineage:
    """Turns the events of pipelines into OpenLineage run events; thread-safe."""

    def __init__(self, namespace: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`namespace`: of the jobs."""
        self._namespace, self._clock = namespace, clock
        self._specs: dict[str, Spec] = {}
        self._runs: dict[str, _Run] = {}
        self._turn = threading.Lock()

    def add(self, spec: Spec) -> None:
        """Know a pipeline, or its changed spec."""
        self._specs[spec.pipeline] = spec

    def run_event(self, event: Mapping[str, Any]) -> bytes | None:
        """The run event that an event of a pipeline causes, as JSON; None without one."""
        handler = {"state": self._on_state, "batch": self._on_batch, "partitions": self._on_partitions}.get(
            event["event"]
        )
        if handler is None or (spec := self._specs.get(event["pipeline"])) is None:
            return None
        with self._turn:
            content = handler(spec, event)
        return None if content is None else json.dumps(content).encode()

    def _on_state(self, spec: Spec, event: Mapping[str, Any]) -> dict[str, Any] | None:
        state = event["state"]
        if state == "starting":
            if spec.pipeline in self._runs:  # a restart by request, which ends no run
                return None
            run = self._runs[spec.pipeline] = _Run()
            return self._content("START", spec, run)
        if state not in _END or spec.pipeline not in self._runs:
            return None
        run = self._runs.pop(spec.pipeline)
        content = self._content(_END[state], spec, run)
        if _END[state] == "FAIL":
            error = {"message": event["reason"] or state, "programmingLanguage": "PYTHON"}
            content["run"]["facets"] = {"errorMessage": _facet(_ERROR, error)}
        return content

    def _on_partitions(self, spec: Spec, event: Mapping[str, Any]) -> None:
        """Note the topics, of which a pattern in the spec does not have the names."""
        if (run := self._runs.get(spec.pipeline)) is not None:
            run.topics |= {each["topic"] for each in event["partitions"]}

    def _on_batch(self, spec: Spec, event: Mapping[str, Any]) -> dict[str, Any] | None:
        if (run := self._runs.get(spec.pipeline)) is None:
            return None
        for path, table in event["tables"].items():
            written = run.written.setdefault(path, {"rowCount": 0, "size": 0, "fileCount": 0})
            for name, key in (("rowCount", "rows"), ("size", "bytes"), ("fileCount", "files")):
                written[name] += table.get(key) or 0
        is_due = run.sent_at is None or self._clock() - run.sent_at >= _INTERVAL
        return self._content("RUNNING", spec, run) if is_due and run.written else None

    def _content(self, kind: str, spec: Spec, run: _Run) -> dict[str, Any]:
        outputs = [
            {**_dataset(path), "outputFacets": {"outputStatistics": _facet(_STATISTICS, written)}}
            for path, written in sorted(run.written.items())
        ]
        if outputs:
            run.sent_at = self._clock()
        run.written = {}
        job_type = _facet(_JOB_TYPE, {"processingType": "STREAMING", "integration": "HEADRACE", "jobType": "PIPELINE"})
        return {
            "eventType": kind,
            "eventTime": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "producer": _PRODUCER,
            "schemaURL": _RUN_EVENT,
            "run": {"runId": run.id},
            "job": {"namespace": self._namespace, "name": spec.pipeline, "facets": {"jobType": job_type}},
            "inputs": _inputs(spec, run.topics),
            "outputs": outputs,
        }


def _inputs(spec: Spec, topics: set[str]) -> list[dict[str, Any]]:
    """Topics of Kafka, or the path of files. Other sources have no name in OpenLineage."""
    if (kafka := spec.source.read_from_kafka) is not None:
        namespace = f"kafka://{kafka.brokers[0]}"
        return [{"namespace": namespace, "name": topic} for topic in sorted({*(kafka.topics or ()), *topics})]
    return [] if spec.source.files is None else [_dataset(spec.source.files.path)]


def _dataset(path: str) -> dict[str, Any]:
    """A table or a directory under the names that OpenLineage defines for storage."""
    if "://" not in path:
        return {"namespace": "file", "name": path}
    namespace, key = split_object_uri(path)
    return {"namespace": namespace, "name": key}


def _facet(schema: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"_producer": _PRODUCER, "_schemaURL": schema, **content}
