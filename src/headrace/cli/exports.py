"""Options of what a run posts to other systems, and the posts while a command runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.pipeline.events import Report
    from headrace.serve.event_poster import EventPoster
    from headrace.serve.lineage import Lineage
    from headrace.spec import Spec

Webhook = Annotated[
    str | None,
    typer.Option(
        "--webhook",
        metavar="URL",
        envvar="HEADRACE_WEBHOOK",
        help="POST each change of the state of a pipeline to this URL, as JSON.",
    ),
]
Traces = Annotated[
    str | None,
    typer.Option(
        "--traces",
        metavar="URL",
        envvar="HEADRACE_TRACES",
        help="Send an OpenTelemetry trace of each batch to this OTLP/HTTP URL, such as "
        "http://localhost:4318/v1/traces.",
    ),
]
LineageUrl = Annotated[
    str | None,
    typer.Option(
        "--lineage",
        metavar="URL",
        envvar="HEADRACE_LINEAGE",
        help="Send OpenLineage run events to this URL, such as http://localhost:5000/api/v1/lineage.",
    ),
]
LineageNamespace = Annotated[
    str,
    typer.Option(envvar="HEADRACE_LINEAGE_NAMESPACE", help="Namespace of the pipelines in OpenLineage."),
]
ExportPlaintext = Annotated[
    bool,
    typer.Option(
        "--export-plaintext",
        envvar="HEADRACE_EXPORT_PLAINTEXT",
        help="Allow --webhook, --traces and --lineage over unencrypted connections to other hosts.",
    ),
]


@dataclass
class Exports:
    """What posts events to other systems."""

    posters: list[EventPoster]
    lineage: Lineage | None = None

    def add(self, spec: Spec) -> None:
        """Know a pipeline before its first event."""
        if self.lineage is not None:
            self.lineage.add(spec)


def new_exports(
    webhook: str | None, traces: str | None, lineage: str | None, namespace: str, plaintext: bool
) -> Exports:
    """Those that have a URL; not started yet. Tokens are in the environment."""
    exports = Exports([])
    if not (webhook or traces or lineage):
        return exports
    from headrace.serve.event_poster import Encode, EventPoster

    def add(option: str, url: str, variable: str, encode: Encode, media_type: str) -> None:
        token = os.environ.get(variable)
        exports.posters.append(EventPoster(option, url, encode, media_type, token=token, plaintext=plaintext))

    if webhook:
        from headrace.serve.webhook import state_json

        add("--webhook", webhook, "HEADRACE_WEBHOOK_TOKEN", state_json, "application/json")
    if traces:
        from headrace.serve.otlp_traces import batch_trace

        add("--traces", traces, "HEADRACE_TRACES_TOKEN", batch_trace, "application/x-protobuf")
    if lineage:
        from headrace.serve.lineage import Lineage

        exports.lineage = Lineage(namespace)
        add("--lineage", lineage, "HEADRACE_LINEAGE_TOKEN", exports.lineage.run_event, "application/json")
    return exports


@contextmanager
def posting(exports: Exports, report: Report) -> Iterator[None]:
    """Post meanwhile; `report` gets warnings."""
    with ExitStack() as started:
        for poster in exports.posters:
            poster.report = report
            poster.start()
            started.callback(poster.stop)
        yield
