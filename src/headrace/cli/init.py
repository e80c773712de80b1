"""`headrace init`: a commented spec, made from a topic's records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def init(
    topics: Annotated[list[str], typer.Argument(metavar="TOPICS...", help="Topics to read.", show_default=False)],
    brokers: Annotated[str, typer.Option(help="host:port of some brokers, with commas between them.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; stdout without it.", dir_okay=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    pipeline: Annotated[str, typer.Option(help="The pipeline's name; made of the topic's without it.")] = "",
    table: Annotated[str, typer.Option(help="The table's path; ./lake/TOPIC without it.")] = "",
    records: Annotated[
        int, typer.Option(help="How many of the newest records of each topic.", min=1, max=10_000)
    ] = 200,
    registry: Annotated[str, typer.Option(help="The address of a schema registry.")] = "",
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, by the system's certificates.")] = False,
    plaintext: Annotated[
        bool, typer.Option("--plaintext", help="An unencrypted connection to another machine is intended.")
    ] = False,
    username: Annotated[str, typer.Option(help="The user's name for SASL.")] = "",
    password: Annotated[str, typer.Option(help="A reference to the password: '${env:NAME}' or '${file:PATH}'.")] = "",
    mechanism: Annotated[str, typer.Option(help="PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.")] = "SCRAM-SHA-512",
) -> None:
    """Write a commented spec from a topic's records: format detected, columns found."""
    from headrace.cli.console import say
    from headrace.cli.spec_draft import Connection, draft
    from headrace.errors import SpecError, UsageError

    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} exists.", hint="Give another --output, or --force to overwrite it.")
    security: dict[str, Any] = {"tls": True} if tls else {}
    security |= {"plaintext": True} if plaintext else {}
    if username:
        security |= {"sasl": {"mechanism": mechanism, "username": username, "password": password}}
    unencrypted = {"plaintext": True} if plaintext and registry.startswith("http://") else {}
    given = {"url": registry, **unencrypted} if registry else None
    connection = Connection(brokers, topics, security, given, pipeline, table)
    try:
        text = draft(connection, records, (output or Path("spec.yaml")).absolute().parent)
    except SpecError as error:
        hint = "The options --tls, --plaintext, --username, --pipeline and --table say these keys."
        raise UsageError(str(error), hint=hint) from None
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}.") from None
    say(f"{output} written. Next: headrace check {output} --online", stderr=True)
