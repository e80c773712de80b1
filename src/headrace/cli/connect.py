"""`headrace connect`: configuration of programs that send records to a pipeline."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import SpecFile

app = typer.Typer(name="connect", help="Print the configuration of programs that send records.", no_args_is_help=True)


@app.callback()
def _connect() -> None:
    """Print the configuration of programs that send records."""


@app.command("otel-collector")
def otel_collector(
    spec_file: SpecFile,
    protocol: Annotated[
        str | None, typer.Option(help="grpc or http. Default: grpc, if the pipeline receives it.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Host name of this machine as the collector sees it. Default: as in the spec.")
    ] = None,
) -> None:
    """Print the exporter for an OpenTelemetry collector.

    It has the address, TLS, a token, retries and a queue. The token is a reference to the environment variable
    OTLP_TOKEN of the collector.
    """
    from headrace.serve.collector_config import collector_config
    from headrace.validate.load import load

    for spec in load(spec_file):
        typer.echo(collector_config(spec, protocol, host), nl=False)
