"""`headrace init`: generate a spec from a topic's records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer


def init(
    topics: Annotated[list[str], typer.Argument(metavar="TOPICS", help="Topics to read.", show_default=False)],
    brokers: Annotated[str, typer.Option(help="Bootstrap servers as host:port, comma-separated.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file. Default: stdout.", dir_okay=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    pipeline: Annotated[str, typer.Option(help="Pipeline name. Default: derived from the topic name.")] = "",
    table: Annotated[str, typer.Option(help="Table path. Default: ./lake/TOPIC.")] = "",
    records: Annotated[
        int, typer.Option(help="Number of latest records to sample per topic.", min=1, max=10_000)
    ] = 200,
    registry: Annotated[str, typer.Option(help="URL of a schema registry.")] = "",
    tls: Annotated[bool, typer.Option("--tls", help="Use TLS with the system trust store.")] = False,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="Allow unencrypted connections to other hosts.")
    ] = False,
    username: Annotated[str, typer.Option(help="SASL username.")] = "",
    password: Annotated[
        str, typer.Option(help="Reference to the SASL password: '${env:NAME}' or '${file:PATH}'.")
    ] = "",
    mechanism: Annotated[
        str, typer.Option(help="SASL mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = "SCRAM-SHA-512",
) -> None:
    """Generate a spec from the records of topics.

    Detects the format of sample records and infers the columns.
    """
    from headrace.cli.console import say
    from headrace.cli.spec_draft import DraftInputs, draft
    from headrace.errors import SpecError, UsageError

    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} already exists.", hint="Choose another --output, or use --force to overwrite it.")
    security: dict[str, Any] = {"tls": True} if tls else {}
    security |= {"plaintext": True} if plaintext else {}
    if username:
        security |= {"sasl": {"mechanism": mechanism, "username": username, "password": password}}
    unencrypted = {"plaintext": True} if plaintext and registry.startswith("http://") else {}
    registry_spec = {"url": registry, **unencrypted} if registry else None
    connection = DraftInputs(brokers, topics, security, registry_spec, pipeline, table)
    try:
        text = draft(connection, records, (output or Path("spec.yaml")).absolute().parent)
    except SpecError as error:
        hint = "Options set these keys: --brokers, --tls, --plaintext, --username, --registry, --pipeline, --table."
        errors = [str(replace(each, file="", line=0)).strip() for each in error.diagnostics]
        raise UsageError("; ".join(errors) + ".", hint=hint) from None
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise UsageError(f"Cannot write {output}: {error.strerror}.") from None
    say(f"Created {output}. Next: headrace check {output} --online", stderr=True)
