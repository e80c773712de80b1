"""`headrace console`: the web console, from the state of pipelines that run elsewhere or not at all."""

from __future__ import annotations

import threading

import typer

from headrace.cli.console import emit
from headrace.cli.listen import (
    ANY_PORT,
    AllowedHosts,
    Listen,
    ListenCertificate,
    ListenKey,
    ListenOpen,
    ListenPlaintext,
    endpoint,
    listen_options,
    new_console,
)
from headrace.cli.options import AsJson, SpecPaths, all_spec_files


def console(
    spec_files: SpecPaths,
    listen: Listen = None,
    listen_certificate: ListenCertificate = None,
    listen_key: ListenKey = None,
    listen_plaintext: ListenPlaintext = False,
    listen_dangerously_open: ListenOpen = False,
    allowed_host: AllowedHosts = None,
    as_json: AsJson = False,
) -> None:
    """Serve the web console of pipelines from their state.

    Runs until stopped (Ctrl-C or SIGTERM), without Spark, and changes nothing. The default of --listen is any free port
    of 127.0.0.1.
    """
    from headrace.cli.signals import stops_on_signals

    stop = threading.Event()
    with stops_on_signals(stop):  # before the slow imports
        from headrace.serve.console.state_watch import StateWatch
        from headrace.serve.redaction import Redaction
        from headrace.validate.load import load

        specs = [spec for file in all_spec_files(spec_files) for spec in load(file)]
        options = listen_options(
            listen or ANY_PORT, listen_certificate, listen_key, listen_plaintext, listen_dangerously_open, allowed_host
        )
        redaction = Redaction(specs)
        watch = StateWatch(specs, redaction)
        pages = new_console(True, options, watch, redaction)
        with endpoint(options, watch, console=pages) as url:
            emit({"event": "endpoint", "address": url}) if as_json else typer.echo(f"Console: {url}")
            watch.start()
            stop.wait()
            watch.stop()
