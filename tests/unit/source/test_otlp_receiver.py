"""The OTLP receiver with the exporters of the OpenTelemetry SDK, and with requests that are not accepted."""

from __future__ import annotations

import gzip
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from opentelemetry._logs import SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from headrace.dev.kafka import free_ports
from headrace.errors import UsageError
from headrace.source.otlp.json_request import protobuf_of_json
from headrace.source.otlp.receiver import OtlpReceiver
from headrace.source.otlp.refusal import Refusal
from headrace.source.ranges import Range
from headrace.source.spool.reader import open_reader, record_batches
from headrace.source.spool.writer import Spool, SpoolLimits
from headrace.spec.decode import SIGNALS, Signal
from headrace.spec.otlp_source import OtlpSpec
from services.certs import Certificates, make_certificates
from services.otlp_requests import random_request, rows_of
from services.plans import plan_of
from services.wait import eventually

RESOURCE = Resource.create({"service.name": "shop", "host.cpus": 8})
SERVICES = {
    "traces": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
    "metrics": "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "logs": "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    "profiles": "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
}
PROTOBUF, JSON = "application/x-protobuf", "application/json"


@dataclass
class Running:
    """A receiver with its spool."""

    receiver: OtlpReceiver
    spool: Spool
    folder: Path

    @property
    def grpc(self) -> str:
        return f"localhost:{self.receiver.grpc_port}"

    @property
    def http(self) -> str:
        return f"http://localhost:{self.receiver.http_port}"

    def values(self, topic: str) -> list[bytes]:
        """The stored requests of a signal."""
        return self.records(topic)["value"].to_pylist()

    def records(self, *topics: str) -> pa.Table:
        """The stored records."""
        reader = open_reader(str(self.folder))
        ends = reader.ends()
        ranges = [Range(topic, 0, 0, ends[topic]) for topic in topics if ends.get(topic)]
        return pa.Table.from_batches([batch for each in ranges for batch in record_batches(reader, each)])


@contextmanager
def running(
    folder: Path, *, limits: SpoolLimits | None = None, record_bytes: int = 16 << 20, **options: Any
) -> Iterator[Running]:
    """A receiver on free ports of this machine."""
    spec = OtlpSpec.model_validate({"grpc": "localhost:0", "http": "localhost:0", **options})
    receiver, spool = OtlpReceiver(spec, record_bytes), Spool.open(folder / "spool", "web", limits)
    try:
        receiver.start(spool, lambda _: None)
        yield Running(receiver, spool, folder / "spool")
    finally:
        receiver.stop()
        spool.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as server:
        yield server


def post(url: str, body: bytes, method: str = "POST", **headers: str) -> tuple[int, bytes, Mapping[str, str]]:
    """Status, body and headers of an answer."""
    address, _, path = url.removeprefix("http://").partition("/")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        connection.request(method, f"/{path}", body, {"content-type": PROTOBUF, **named})
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}


def call(address: str, signal: str, body: bytes, token: str | None = None) -> tuple[grpc.StatusCode, str, Any]:
    """Code, message and `RetryInfo` or response bytes of a gRPC call."""
    metadata = [("authorization", f"Bearer {token}")] if token else []
    with grpc.insecure_channel(address) as channel:
        try:
            answer = channel.unary_unary(SERVICES[signal])(body, metadata=metadata, timeout=30)
        except grpc.RpcError as error:
            return error.code(), error.details(), _retry_info(error)
        return grpc.StatusCode.OK, "", answer


def _retry_info(error: Any) -> Any:
    raw = dict(error.trailing_metadata()).get("grpc-status-details-bin")
    if raw is None or not (details := status_pb2.Status.FromString(raw).details):
        return None
    info = error_details_pb2.RetryInfo()
    assert details[0].Unpack(info)
    return info.retry_delay.ToNanoseconds() / 1e9


def spans(number: int = 1, name: str = "GET /x") -> bytes:
    """A request with spans."""
    request = trace_service_pb2.ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for nth in range(number):
        scope.spans.add(trace_id=nth.to_bytes(16), span_id=nth.to_bytes(8), name=name)
    return request.SerializeToString()


# ---- exporters ----


def export_all(span_exporter: Any, metric_exporter: Any, log_exporter: Any) -> None:
    """Export two spans, three metrics and a log record."""
    tracers = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(span_exporter))
    with tracers.get_tracer("shop.web", "1.0").start_as_current_span("GET /x", attributes={"http.status": 200}) as span:
        span.add_event("cached", {"hits": 3})
        with tracers.get_tracer("shop.web").start_as_current_span("SELECT"):
            pass
    tracers.shutdown()
    reader = PeriodicExportingMetricReader(metric_exporter, export_interval_millis=1e9)
    meters = MeterProvider([reader], RESOURCE, shutdown_on_exit=False)
    meter = meters.get_meter("shop.web")
    meter.create_counter("requests", "1").add(5, {"path": "/x"})
    meter.create_histogram("latency", "ms").record(12.5)
    meter.create_observable_gauge("load", [lambda _: []])
    meters.shutdown()
    loggers = LoggerProvider(RESOURCE, shutdown_on_exit=False)
    loggers.add_log_record_processor(SimpleLogRecordProcessor(log_exporter))
    loggers.get_logger("shop").emit(
        body="out of stock", severity_number=SeverityNumber.WARN, severity_text="WARN", attributes={"item": "cup"}
    )
    loggers.shutdown()


def check_rows(server: Running) -> None:
    """Read the spool and run a plan with one table per signal over it."""
    plan = plan_of(decode={"otlp": {"layout": "flat"}}, route={"by": "topic"})
    result = plan.apply(server.records(*SIGNALS))
    tables = {route.route: rows.to_pylist() for route, rows in result.tables.items()}
    assert not len(result.dead_letters)
    inner, outer = tables["traces"]
    assert (inner["name"], outer["name"]) == ("SELECT", "GET /x")
    assert inner["parent_span_id"] == outer["span_id"]
    assert inner["trace_id"] == outer["trace_id"]
    assert outer["service_name"] == "shop"
    assert dict(outer["attributes"]) == {"http.status": "200"}
    assert outer["events"][0]["name"] == "cached"
    assert dict(outer["resource_attributes"])["host.cpus"] == "8"
    assert outer["start_time"] <= inner["start_time"] <= inner["end_time"] <= outer["end_time"]
    points = {point["name"]: point for point in tables["metrics"]}
    assert (points["requests"]["type"], points["requests"]["value_int"]) == ("sum", 5)
    assert (points["latency"]["type"], points["latency"]["count"], points["latency"]["sum"]) == ("histogram", 1, 12.5)
    (log,) = tables["logs"]
    assert (log["body"], log["severity_text"], log["severity_number"]) == ("out of stock", "WARN", 13)
    assert {row["_source"]["topic"] for row in tables["logs"]} == {"logs"}


@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_grpc_exporters(server: Running, compression: Any) -> None:
    options = {"endpoint": server.grpc, "insecure": True, "compression": compression}
    export_all(GrpcSpans(**options), GrpcMetrics(**options), GrpcLogs(**options))
    check_rows(server)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_http_exporters(server: Running, compression: Any) -> None:
    options = {"compression": compression}
    export_all(
        HttpSpans(f"{server.http}/v1/traces", **options),
        HttpMetrics(f"{server.http}/v1/metrics", **options),
        HttpLogs(f"{server.http}/v1/logs", **options),
    )
    check_rows(server)


def test_an_exporter_waits_for_the_receiver(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = next(iter(free_ports()))
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(GrpcSpans(f"localhost:{port}", insecure=True, timeout=30)))
    with ThreadPoolExecutor(1) as exporter:
        exported = exporter.submit(lambda: tracers.get_tracer("web").start_span("a").end())
        eventually(lambda: "retrying" in caplog.text)
        with running(tmp_path, grpc=f"localhost:{port}") as server:
            exported.result(30)
            assert len(server.values("traces")) == 1
    tracers.shutdown()


# ---- accepted requests ----


@pytest.mark.parametrize("signal", SIGNALS)
def test_requests_are_stored_as_they_were_sent(server: Running, signal: Signal) -> None:
    requests = (random_request(signal, seed) for seed in count())
    bodies = [each.SerializeToString() for each in islice((each for each in requests if rows_of(signal, each)), 4)]
    url = f"{server.http}/v1/{signal}"
    assert call(server.grpc, signal, bodies[0])[0] == grpc.StatusCode.OK
    assert post(url, bodies[1])[:2] == (200, b"")
    assert post(url, gzip.compress(bodies[2]), content_encoding="gzip")[0] == 200
    zstd = bytes(pa.Codec("zstd").compress(bodies[3]))
    assert post(url, zstd, content_encoding="zstd")[0] == 200
    assert server.values(signal) == bodies


@pytest.mark.parametrize("signal", SIGNALS)
def test_json_is_stored_as_protobuf(server: Running, signal: Signal) -> None:
    request = next(each for seed in count() if rows_of(signal, each := random_request(signal, seed)))
    status, body, headers = post(f"{server.http}/v1/{signal}", otlp_json(request), content_type=JSON)
    assert (status, json.loads(body), headers["content-type"]) == (200, {}, JSON)
    assert repr(type(request).FromString(server.values(signal)[0])) == repr(request)  # NaN is not equal to itself


def otlp_json(request: Any) -> bytes:
    """A request in OTLP's JSON: Protobuf's, with hexadecimal ids and numbers for enums."""
    content = json_format.MessageToDict(request, use_integers_for_enums=True)
    return json.dumps(_with_hex(content)).encode()


def _with_hex(value: Any) -> Any:
    import base64

    if isinstance(value, dict):
        return {
            key: base64.b64decode(each).hex() if key in ("traceId", "spanId", "parentSpanId") else _with_hex(each)
            for key, each in value.items()
        }
    return [_with_hex(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("seed", range(25))
def test_json_and_protobuf_are_the_same_request(signal: Signal, seed: int) -> None:
    request = random_request(signal, seed)
    assert repr(type(request).FromString(protobuf_of_json(signal, otlp_json(request)))) == repr(request)


def test_json_of_other_writers() -> None:
    span = {"traceId": "5B8EFFF798038103D269B633813FC60C", "startTimeUnixNano": "1544712660000000000", "kind": 2}
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{**span, "later": [1]}]}]}], "new": {}}).encode()
    request = trace_service_pb2.ExportTraceServiceRequest.FromString(protobuf_of_json("traces", body))
    (read,) = request.resource_spans[0].scope_spans[0].spans
    assert read.trace_id.hex() == "5b8efff798038103d269b633813fc60c"
    assert (read.start_time_unix_nano, read.kind) == (1544712660000000000, 2)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("[]", "expected an object"),
        ("{", "Expecting property name"),
        ('{"resourceSpans": [], "resourceSpans": []}', "duplicate key"),
        ('{"resourceSpans": 1}', "resourceSpans"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "xyz"}]}]}]}', "traceId: expected hexadecimal"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"kind": "SERVER"}]}]}]}', "kind: expected the number"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"flags": NaN}]}]}]}', "NaN is not JSON"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"flags": -1}]}]}]}', "flags"),
        ("[" * 100_000, "nested too deeply"),
        ("\xff", "codec"),
    ],
)
def test_malformed_json_is_refused(text: str, detail: str) -> None:
    with pytest.raises(Refusal, match=detail) as refused:
        protobuf_of_json("traces", text.encode("latin-1"))
    assert refused.value.kind.http_status == 400


def test_a_repeated_request_is_stored_once(server: Running) -> None:
    assert [call(server.grpc, "traces", spans())[0] for _ in range(2)] == [grpc.StatusCode.OK] * 2
    assert post(f"{server.http}/v1/traces", spans())[0] == 200
    assert server.values("traces") == [spans()]
    assert server.spool.counts.duplicates == 2


def test_requests_without_records_are_accepted(server: Running) -> None:
    assert call(server.grpc, "traces", b"")[0] == grpc.StatusCode.OK
    assert post(f"{server.http}/v1/logs", b"{}", content_type=JSON)[0] == 200
    assert server.spool.counts.requests == 0


def test_large_requests_are_split_and_larger_records_rejected(tmp_path: Path) -> None:
    request = trace_service_pb2.ExportTraceServiceRequest()
    for nth in range(3):
        resource = request.resource_spans.add(schema_url=f"resource {nth}")
        for inner in range(2):
            scope = resource.scope_spans.add(schema_url=f"scope {nth} {inner}")
            for each in range(40):
                scope.spans.add(name=f"{nth} {inner} {each}", trace_state="x" * (6000 if each == 7 else 50))
    with running(tmp_path, record_bytes=4000) as server:
        code, _, answer = call(server.grpc, "traces", request.SerializeToString())
        assert code == grpc.StatusCode.OK
        partial = trace_service_pb2.ExportTraceServiceResponse.FromString(answer).partial_success
        assert partial.rejected_spans == 6
        assert partial.error_message == "6 spans exceed 4,000 bytes (limits.record_bytes) and were rejected."
        values = server.values("traces")
    assert max(map(len, values)) <= 4000
    assert len(values) < 20
    assert _names(map(request.FromString, values)) == [each for each in _names([request]) if not each[2].endswith(" 7")]


def _names(requests: Any) -> list[tuple[str, str, str]]:
    return [
        (resource.schema_url, scope.schema_url, span.name)
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def test_rejected_metrics_count_as_their_data_points(tmp_path: Path) -> None:
    request = metrics_service_pb2.ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    scope.metrics.add(name="large").gauge.data_points.extend(
        [scope.metrics.add(name="a").gauge.data_points.add(as_double=1.5, time_unix_nano=7)] * 300
    )
    body = json_format.MessageToJson(request).encode()
    with running(tmp_path, record_bytes=1000) as server:
        status, answer, _ = post(f"{server.http}/v1/metrics", body, content_type=JSON)
        assert len(server.values("metrics")) == 1
    assert status == 200
    assert json.loads(answer)["partialSuccess"]["rejectedDataPoints"] == "300"


# ---- refused requests ----


def test_malformed_requests_are_refused_for_good(server: Running) -> None:
    code, message, retry = call(server.grpc, "logs", b"\x0a\xff")
    assert (code, retry) == (grpc.StatusCode.INVALID_ARGUMENT, None)
    assert message == "The body is not a Protobuf export request for logs."
    status, body, headers = post(f"{server.http}/v1/logs", b"\x0a\xff")
    assert (status, headers.get("retry-after"), headers["content-type"]) == (400, None, PROTOBUF)
    assert status_pb2.Status.FromString(body).message == message
    status, body, headers = post(f"{server.http}/v1/logs", b"{", content_type=JSON)
    assert (status, headers["content-type"]) == (400, JSON)
    assert json.loads(body)["code"] == 3
    assert post(f"{server.http}/v1/logs", b"no gzip", content_encoding="gzip")[0] == 400
    assert server.spool.counts.requests == 0


def test_profiles_are_refused_by_name(server: Running) -> None:
    code, message, _ = call(server.grpc, "profiles", b"")
    assert (code, message) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "Profiles are not supported: send traces, metrics and logs only.",
    )
    for path in ("/v1/profiles", "/v1development/profiles"):
        status, body, _ = post(f"{server.http}{path}", b"{}", content_type=JSON)
        assert (status, json.loads(body)["message"]) == (404, message)


def test_other_paths_methods_and_content_types(server: Running) -> None:
    assert post(f"{server.http}/v1/trace", b"")[0] == 404
    assert post(f"{server.http}/v1/traces", b"", content_type="text/plain")[0] == 415
    assert post(f"{server.http}/v1/traces", b"", content_encoding="br")[0] == 415
    status, _, headers = post(f"{server.http}/v1/traces", b"", method="GET")
    assert (status, headers["allow"]) == (405, "POST")


def test_requests_above_the_limit(tmp_path: Path) -> None:
    large = spans(1, "x" * 30_000)
    bomb = gzip.compress(b"\x0a" * 50_000_000)
    with running(tmp_path, max_body=20_000) as server:
        assert post(f"{server.http}/v1/traces", large)[0] == 413
        assert post(f"{server.http}/v1/traces", gzip.compress(large), content_encoding="gzip")[0] == 413
        assert (
            post(f"{server.http}/v1/traces", bytes(pa.Codec("zstd").compress(large)), content_encoding="zstd")[0] == 413
        )
        assert post(f"{server.http}/v1/traces", bomb, content_encoding="gzip")[0] == 413
        code, _, retry = call(server.grpc, "traces", large)
        assert (code, retry) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None)
        with grpc.insecure_channel(server.grpc, compression=grpc.Compression.Gzip) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(SERVICES["traces"])(b"\x0a" * 5_000_000, timeout=30)
            assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert server.spool.counts.requests == 0


def test_a_full_spool_is_answered_with_the_time_of_a_retry(tmp_path: Path) -> None:
    limits = SpoolLimits(max_bytes=100_000, segment_bytes=50_000)
    with running(tmp_path, limits=limits) as server:
        stored = 0
        while call(server.grpc, "traces", spans(1, f"{stored}" * 5_000))[0] == grpc.StatusCode.OK:
            stored += 1
        code, message, retry = call(server.grpc, "traces", spans(1, "y" * 50_000))
        assert (code, retry) == (grpc.StatusCode.RESOURCE_EXHAUSTED, 5.0)
        assert "spool is full" in message
        status, body, headers = post(f"{server.http}/v1/traces", spans(1, "y" * 50_000))
        assert (status, headers["retry-after"]) == (429, "5")
        assert status_pb2.Status.FromString(body).details[0].Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        assert len(server.values("traces")) == stored > 2


def test_a_closed_spool_is_unavailable_for_now(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        server.spool.close()
        assert call(server.grpc, "traces", spans())[::2] == (grpc.StatusCode.UNAVAILABLE, 5.0)
        status, _, headers = post(f"{server.http}/v1/traces", spans())
        assert (status, headers["retry-after"]) == (503, "5")


# ---- tokens and TLS ----


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTLP_TOKEN", "canary-one")
    (tmp_path / "token").write_text("canary-two\n")
    tokens = ["${env:OTLP_TOKEN}", f"${{file:{tmp_path}/token}}"]
    with running(tmp_path, tokens=tokens) as server:
        for token in (None, "canary", "canary-onee", ""):
            code, message, retry = call(server.grpc, "traces", spans(), token)
            assert (code, retry) == (grpc.StatusCode.UNAUTHENTICATED, None)
            assert "canary" not in message
        assert call(server.grpc, "traces", spans(), "canary-one")[0] == grpc.StatusCode.OK
        status, _, headers = post(f"{server.http}/v1/traces", spans(2))
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert post(f"{server.http}/v1/traces", spans(2), authorization="Basic canary-two")[0] == 401
        assert post(f"{server.http}/v1/traces", spans(2), authorization="Bearer canary-two")[0] == 200
        assert server.values("traces") == [spans(), spans(2)]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def _tls(certificates: Certificates) -> dict[str, str]:
    pem = certificates.server.read_text()
    return {"certificate": pem[pem.index("-----BEGIN CERTIFICATE") :], "key": f"${{file:{certificates.server}}}"}


@pytest.fixture(autouse=True)
def _without_other_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP client of the exporters prefers these variables to its own settings."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def test_tls(tmp_path: Path, certificates: Certificates) -> None:
    with running(tmp_path, tls=_tls(certificates)) as server:
        trusted = grpc.ssl_channel_credentials(certificates.authority.read_bytes())
        GrpcSpans(server.grpc, credentials=trusted).shutdown()
        options = {"certificate_file": str(certificates.authority)}
        url = server.http.replace("http:", "https:")
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(GrpcSpans(server.grpc, credentials=trusted)))
        tracers.add_span_processor(SimpleSpanProcessor(HttpSpans(f"{url}/v1/traces", **options)))
        tracers.get_tracer("web").start_span("a").end()
        tracers.shutdown()
        assert server.spool.counts.records + server.spool.counts.duplicates == 2


def test_client_certificates(tmp_path: Path, certificates: Certificates) -> None:
    tls = {**_tls(certificates), "client_ca": certificates.authority.read_text()}
    with running(tmp_path, tls=tls) as server:
        ca, key, chain = (
            each.read_bytes() for each in (certificates.authority, certificates.client_key, certificates.client_chain)
        )
        for credentials, expected in (
            (grpc.ssl_channel_credentials(ca), grpc.StatusCode.UNAVAILABLE),
            (grpc.ssl_channel_credentials(ca, key, chain), grpc.StatusCode.OK),
        ):
            with grpc.secure_channel(server.grpc, credentials) as channel:
                method = channel.unary_unary(SERVICES["traces"])
                try:
                    method(spans(), timeout=30)
                    code = grpc.StatusCode.OK
                except grpc.RpcError as error:
                    code = error.code()
                assert code == expected
        url = server.http.replace("http:", "https:")
        options = {
            "certificate_file": str(certificates.authority),
            "client_key_file": str(certificates.client_key),
            "client_certificate_file": str(certificates.client_chain),
        }
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(HttpSpans(f"{url}/v1/traces", **options)))
        tracers.get_tracer("web").start_span("a").end()
        tracers.shutdown()
        assert server.spool.counts.records == 2
        context = ssl.create_default_context(cadata=ca.decode())
        anonymous = http.client.HTTPSConnection("localhost", server.receiver.http_port, context=context, timeout=30)
        with closing(anonymous), pytest.raises((ssl.SSLError, OSError)):  # noqa: PT012 - either step may fail
            anonymous.request("POST", "/v1/traces", b"")
            anonymous.getresponse()


def test_a_certificate_that_cannot_be_used(tmp_path: Path, certificates: Certificates) -> None:
    tls = {**_tls(certificates), "key": f"${{file:{certificates.client_key}}}"}
    with pytest.raises(UsageError, match=r"source.otlp.tls cannot be used"), running(tmp_path, tls=tls):
        pass


def test_an_address_in_use(tmp_path: Path, server: Running) -> None:
    for protocol, port in (("grpc", server.receiver.grpc_port), ("http", server.receiver.http_port)):
        with (
            pytest.raises(UsageError, match=f"cannot listen on localhost:{port}"),
            running(tmp_path / protocol, **{protocol: f"localhost:{port}"}),
        ):
            pass
