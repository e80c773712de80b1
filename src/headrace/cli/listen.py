"""Options of the HTTP endpoint, and the endpoint while a command runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headrace.serve.access import ListenOptions
    from headrace.serve.console.app import Console
    from headrace.serve.monitor import Monitor
    from headrace.serve.redaction import Redaction

ANY_PORT = "127.0.0.1:0"  # where the console listens by default

Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        envvar="HEADRACE_LISTEN",
        help="Serve metrics and health over HTTP at this address, such as 127.0.0.1:9187.",
    ),
]
ListenCertificate = Annotated[
    Path | None,
    typer.Option(
        envvar="HEADRACE_LISTEN_CERTIFICATE", help="TLS of the HTTP endpoint: file with the certificate chain (PEM)."
    ),
]
ListenKey = Annotated[
    Path | None,
    typer.Option(envvar="HEADRACE_LISTEN_KEY", help="TLS of the HTTP endpoint: file with the private key (PEM)."),
]
ListenPlaintext = Annotated[
    bool,
    typer.Option(
        "--listen-plaintext",
        envvar="HEADRACE_LISTEN_PLAINTEXT",
        help="Allow unencrypted connections to an HTTP endpoint that is not on a loopback address.",
    ),
]
ListenOpen = Annotated[
    bool,
    typer.Option(
        "--listen-dangerously-open",
        envvar="HEADRACE_LISTEN_DANGEROUSLY_OPEN",
        help="Allow anyone to read metrics and health on an address that is not a loopback one, without a token.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        envvar="HEADRACE_ALLOWED_HOSTS",
        help="Host name under which clients reach the HTTP endpoint; repeatable. IP addresses are always allowed.",
    ),
]

WithConsole = Annotated[
    bool,
    typer.Option(
        "--console",
        envvar="HEADRACE_CONSOLE",
        help="Serve the web console at the address of --listen. Default of the address: any free port of 127.0.0.1.",
    ),
]
MetricsProfiles = Annotated[
    list[str] | None,
    typer.Option(
        "--metrics-profile",
        metavar="danube|rivven|kafka-delta-ingest|deltalake",
        envvar="HEADRACE_METRICS_PROFILES",
        help="Also serve metrics under the names of another system: `danube`, `rivven`, `kafka-delta-ingest` or "
        "`deltalake`; repeatable.",
    ),
]
MetricsPrefix = Annotated[
    str | None,
    typer.Option(
        envvar="HEADRACE_METRICS_PREFIX",
        help="Prefix of the names of --metrics-profile rivven and kafka-delta-ingest, and of --statsd. "
        "Default: that of the system.",
    ),
]
StatsdAddress = Annotated[
    str | None,
    typer.Option(
        "--statsd",
        metavar="HOST:PORT",
        envvar="HEADRACE_STATSD",
        help="Send metrics over statsd (UDP) every ten seconds, under the names of kafka-delta-ingest.",
    ),
]


def listen_options(
    address: str | None,
    certificate: Path | None,
    key: Path | None,
    plaintext: bool,
    dangerously_open: bool,
    hosts: list[str] | None,
) -> ListenOptions | None:
    """How the endpoint listens; None if it is off."""
    if not address:
        return None
    from headrace.serve.access import ListenOptions

    return ListenOptions(address, certificate, key, plaintext, dangerously_open, tuple(hosts or ()))


def check_profiles(options: ListenOptions | None, profiles: Sequence[str], prefix: str | None) -> None:
    """UsageError for unknown profiles, for profiles without an endpoint, and for an invalid prefix."""
    if not profiles and prefix is None:
        return
    from headrace.errors import UsageError, did_you_mean
    from headrace.serve.metric_profiles import MetricsProfile
    from headrace.spec.diagnostics import closest

    for profile in profiles:
        if profile not in list(MetricsProfile):
            suggestion = did_you_mean(closest(profile, list(MetricsProfile)))
            raise UsageError(
                f"Unknown --metrics-profile: '{profile}'{suggestion}.", hint=f"Use {', '.join(MetricsProfile)}."
            )
    if profiles and options is None:
        raise UsageError("--metrics-profile has no effect without --listen.", hint="Add --listen 127.0.0.1:9187.")
    if prefix is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", prefix):
        raise UsageError(f"Invalid --metrics-prefix: '{prefix}'.", hint="Use letters, digits and underscores.")


@contextmanager
def statsd(address: str | None, monitor: Monitor, prefix: str | None, *, name_pipelines: bool = True) -> Iterator[None]:
    """Send the figures of the monitor over statsd meanwhile, if there is an address."""
    if not address:
        yield
        return
    from headrace.serve.statsd import Statsd

    sender = Statsd(monitor, address, prefix, name_pipelines=name_pipelines)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


@contextmanager
def endpoint(
    options: ListenOptions | None,
    monitor: Monitor,
    profiles: Sequence[str] = (),
    prefix: str | None = None,
    console: Console | None = None,
) -> Iterator[str | None]:
    """Serve the monitor meanwhile, and the console if there is one; yields the URL, or None if the endpoint is off."""
    check_profiles(options, profiles, prefix)
    if options is None:
        yield None
        return
    from headrace.serve.endpoint import Endpoint
    from headrace.serve.metric_profiles import MetricsProfile, ProfileMetrics

    collectors = [ProfileMetrics(monitor, MetricsProfile(profile), prefix) for profile in dict.fromkeys(profiles)]
    if console is None:
        served = Endpoint(monitor, options, collectors=collectors)
    else:
        served = Endpoint(
            monitor,
            options,
            access=console.access,
            collectors=collectors,
            routes=console.routes,
            open_paths=console.open_paths,
            identify=console.identify,
            challenges=console.challenges,
            unauthorized=console.unauthorized,
        )
    url = served.start()
    try:
        yield url
    finally:
        served.stop()


def new_console(
    is_wanted: bool, options: ListenOptions | None, monitor: Monitor, redaction: Redaction
) -> Console | None:
    """The console of an endpoint, if it is wanted."""
    if not is_wanted or options is None:
        return None
    from headrace.serve.access import Access
    from headrace.serve.console.app import Console

    return Console(monitor, Access(options), redaction)
