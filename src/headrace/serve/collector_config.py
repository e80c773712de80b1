"""Configuration of an OpenTelemetry collector that exports to the OTLP source of a pipeline."""

from __future__ import annotations

from typing import Any

from headrace.errors import UsageError
from headrace.spec import Spec
from headrace.spec.decode import SIGNALS
from headrace.spec.listener import split_address
from headrace.spec.otlp_source import OtlpSpec

TOKEN_VARIABLE = "OTLP_TOKEN"  # noqa: S105 - the name of a variable
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on
_HEAD = """\
# Exporter of an OpenTelemetry collector for the pipeline {pipeline}. Add it to the configuration of the collector,
# with the receivers that it has. Requires the component {component}.
"""
_TEMPLATE = """\
exporters:
  {component}/headrace:
    endpoint: {endpoint}
    compression: gzip
    timeout: 30s
{tls}{headers}\
    retry_on_failure:
      enabled: true
      initial_interval: 1s
      max_interval: 30s
      max_elapsed_time: 0s # never drop data: retry until Headrace accepts it
    sending_queue:
      enabled: true
      num_consumers: 4
      queue_size: 10000
      storage: file_storage/headrace # keeps the queue over restarts of the collector
extensions:
  file_storage/headrace:
    directory: /var/lib/otelcol/headrace
    create_directory: true
service:
  extensions: [file_storage/headrace]
  pipelines:
{pipelines}"""


def collector_config(spec: Spec, protocol: str | None = None, host: str | None = None) -> str:
    """The configuration as YAML; UsageError if the pipeline does not receive by this protocol.

    `host` replaces the address of the spec, for example where that is all interfaces.
    """
    otlp = spec.source.otlp
    if otlp is None:
        raise UsageError(
            f"{spec.pipeline} does not receive OTLP: its source is '{spec.source_kind}'.",
            hint="Use a spec with source.otlp.",
        )
    chosen = protocol or next(iter(otlp.addresses))
    if chosen not in otlp.addresses:
        raise UsageError(
            f"{spec.pipeline} does not receive OTLP over {chosen}.",
            hint=f"Use --protocol {' or '.join(otlp.addresses)}.",
        )
    component = "otlp" if chosen == "grpc" else "otlphttp"
    head = _HEAD.format(pipeline=spec.pipeline, component=f"{component}exporter")
    return head + _TEMPLATE.format(
        component=component,
        endpoint=_endpoint(otlp, chosen, host),
        tls=_tls(otlp),
        headers=_headers(otlp),
        pipelines="".join(f"    {signal}: {{exporters: [{component}/headrace]}}\n" for signal in SIGNALS),
    )


def _endpoint(otlp: OtlpSpec, protocol: str, host: str | None) -> str:
    own_host, port = split_address(otlp.addresses[protocol])
    if port == 0:
        raise UsageError(f"The port of source.otlp.{protocol} is any free port.", hint="Set a port in the spec.")
    if host is None and own_host in _EVERYWHERE:
        raise UsageError(
            f"source.otlp.{protocol} listens on all interfaces.", hint="Use --host with the name of this machine."
        )
    name = host or own_host
    named = f"[{name}]" if ":" in name else name
    return f"{'https' if otlp.tls is not None else 'http'}://{named}:{port}"


def _tls(otlp: OtlpSpec) -> str:
    if otlp.tls is None:
        return "    tls: {insecure: true} # plain text, as in the spec\n"
    files: dict[str, Any] = {"ca_file": "/etc/otelcol/headrace-ca.pem # of the certificate in source.otlp.tls"}
    if otlp.tls.client_ca is not None:
        files |= {
            "cert_file": "/etc/otelcol/client.pem # issued by source.otlp.tls.client_ca",
            "key_file": "/etc/otelcol/client.key",
        }
    return "    tls:\n" + "".join(f"      {name}: {path}\n" for name, path in files.items())


def _headers(otlp: OtlpSpec) -> str:
    if not otlp.tokens:
        return ""
    return f'    headers: {{authorization: "Bearer ${{env:{TOKEN_VARIABLE}}}"}} # one of source.otlp.tokens\n'
