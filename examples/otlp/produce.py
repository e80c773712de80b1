"""Send 200 spans, a metric and 20 log records with the exporters of the OpenTelemetry SDK."""

from __future__ import annotations

import argparse
import random

from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode

RESOURCE = Resource.create({"service.name": "shop", "service.version": "1.4.2"})
PATHS = ("/", "/cart", "/checkout")


def send(endpoint: str) -> None:
    """Send everything, and wait until it is acknowledged."""
    options = {"endpoint": endpoint, "insecure": True, "timeout": 60}
    tracers, meters, loggers = (
        TracerProvider(resource=RESOURCE),
        MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(**options))], RESOURCE),
        LoggerProvider(RESOURCE),
    )
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(**options)))
    loggers.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(**options)))
    tracer, logger = tracers.get_tracer("shop.web"), loggers.get_logger("shop.web")
    requests = meters.get_meter("shop.web").create_counter("requests", "1", "Requests by path")
    rng = random.Random(1)
    for number in range(100):
        path = PATHS[rng.randrange(len(PATHS))]
        requests.add(1, {"url.path": path})
        with tracer.start_as_current_span(f"GET {path}", kind=SpanKind.SERVER, attributes={"url.path": path}) as span:
            with tracer.start_as_current_span("SELECT", kind=SpanKind.CLIENT):
                pass
            if number % 5 == 0:
                span.set_status(Status(StatusCode.ERROR, "out of stock"))
                text = f"no stock for request {number}"
                logger.emit(body=text, severity_number=SeverityNumber.WARN, severity_text="WARN")
    for provider in (tracers, meters, loggers):
        provider.shutdown()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", default="http://localhost:4317")
    send(parser.parse_args().endpoint)
    print("sent 200 spans, 1 metric and 20 log records")
