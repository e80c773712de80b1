"""Command-line interface: one module per command, each a thin wrapper around the API."""

from __future__ import annotations

import gc
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import connect, dead_letters, table
from headrace.cli.check import command
from headrace.cli.console import say
from headrace.cli.control import pause, restart
from headrace.cli.demo import demo
from headrace.cli.examples import add_examples
from headrace.cli.import_config import import_config
from headrace.cli.init import init
from headrace.cli.kafka import kafka
from headrace.cli.preview import preview
from headrace.cli.receive import receive
from headrace.cli.reset import reset
from headrace.cli.resume import resume
from headrace.cli.run import run
from headrace.cli.schema import schema
from headrace.cli.setup import setup
from headrace.cli.status import status
from headrace.cli.submit import submit
from headrace.cli.takeover import takeover
from headrace.cli.top import top
from headrace.cli.web_console import console
from headrace.errors import HeadraceError
from headrace.runtime.hidden_pandas import hidden_pandas
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.spec import Diagnostic, Spec

app = typer.Typer(
    name="headrace",
    help="Stream events from Kafka and other sources into Delta Lake tables, exactly once, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExamples:\n  headrace check web.yaml\n  headrace run web.yaml\n  headrace COMMAND -h",
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Stream events from Kafka and other sources into Delta Lake tables, exactly once, on Spark."""


def _online(spec: Spec) -> list[Diagnostic]:
    from headrace.validate.online import online  # no other command needs its imports

    return online(spec)


check = command(_online)
app.add_typer(connect.app)
app.add_typer(dead_letters.app)
app.add_typer(table.app)
_RUN = (init, run, receive, submit, check, preview, schema, status, top, console)
_CONTROL = (pause, resume, restart, reset, takeover)
app.command("import")(import_config)
for _command in (*_RUN, *_CONTROL, demo, kafka, setup):
    app.command()(_command)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)


add_examples(app)


def main() -> None:
    """Entry point of `headrace`. Exit codes: 0 success, 1 error, 2 invalid usage or spec, 3 running elsewhere."""
    gc.set_threshold(50_000)  # imports create many objects and no garbage
    try:
        with hidden_pandas():
            app()
    except KeyboardInterrupt:  # before the command has started, or in one that has nothing to end
        sys.exit(128 + signal.SIGINT)
    except HeadraceError as error:
        say(str(error), "bold red", head=f"headrace: {error.name}: ", stderr=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.filename is None:
            raise  # not about a file of the user
        next_step = "Check the path and its permissions."
        say(f"{error.filename}: {error.strerror}. {next_step}", "bold red", head="headrace: ", stderr=True)
        sys.exit(1)
