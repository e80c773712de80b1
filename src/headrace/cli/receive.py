"""`headrace receive`: receive records into the spools of pipelines, without Spark."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.listen import (
    AllowedHosts,
    Listen,
    ListenCertificate,
    ListenKey,
    ListenOpen,
    ListenPlaintext,
    endpoint,
    listen_options,
)
from headrace.cli.options import AsJson, LogFormatOption, SpecFiles


def receive(
    spec_files: SpecFiles,
    every: Annotated[float, typer.Option(help="Seconds between two reports of the counts.", min=0.1)] = 10.0,
    as_json: AsJson = False,
    listen: Listen = None,
    listen_certificate: ListenCertificate = None,
    listen_key: ListenKey = None,
    listen_plaintext: ListenPlaintext = False,
    listen_dangerously_open: ListenOpen = False,
    allowed_host: AllowedHosts = None,
    log_format: LogFormatOption = None,
) -> None:
    """Receive records into the spool or Kafka, without Spark.

    Runs until stopped (Ctrl-C or SIGTERM). `headrace run`, at the same time or later, writes the records into tables.
    """
    import threading

    from headrace.cli.signals import stops_on_signals

    stop = threading.Event()
    with stops_on_signals(stop):  # before the slow imports
        from headrace.cli.output import event_output
        from headrace.pipeline.events import to_all
        from headrace.serve.monitor import Monitor
        from headrace.serve.receiving import receive_all
        from headrace.serve.redaction import Redaction
        from headrace.validate.load import load

        specs = [spec for file in spec_files for spec in load(file)]
        options = listen_options(
            listen, listen_certificate, listen_key, listen_plaintext, listen_dangerously_open, allowed_host
        )
        redaction = Redaction()
        monitor = Monitor(specs, on_add=redaction.add)
        with event_output(as_json, log_format) as output, endpoint(options, monitor) as url:
            if url is not None:
                output.endpoint(url)
            report = redaction.of(to_all(monitor, output))
            for event in receive_all(specs, stop, report, every):
                output.end(event, _summary(event))


def _summary(event: dict[str, object]) -> str:
    from headrace.cli.output import received_text

    return f"{received_text(event)}; stopped"
