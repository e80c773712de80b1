"""Export requests in OTLP's JSON, converted to Protobuf.

It is Protobuf's JSON with two differences: ids are hexadecimal, not base64, and enums are numbers.
"""

from __future__ import annotations

import base64
import binascii
import json
from functools import cache
from importlib import import_module
from typing import Any

from google.protobuf import json_format

from headrace.decode.otlp.messages import SIGNAL_TYPES
from headrace.source.otlp.refusal import Refusal, RefusalKind
from headrace.spec.decode import Signal

_IDS = frozenset({"traceId", "spanId", "parentSpanId", "trace_id", "span_id", "parent_span_id"})
_ENUMS = frozenset({"kind", "code", "severityNumber", "severity_number"}) | {
    "aggregationTemporality",
    "aggregation_temporality",
}


def protobuf_of_json(signal: Signal, body: bytes) -> bytes:
    """An export request in Protobuf; unknown fields are ignored, as the protocol demands."""
    try:
        content = json.loads(body, object_pairs_hook=_object, parse_constant=_refuse_constant)
        if not isinstance(content, dict):
            raise ValueError("expected an object")
        message = json_format.ParseDict(content, request_type(signal)(), ignore_unknown_fields=True)
    except RecursionError:
        raise _malformed("nested too deeply") from None
    except (ValueError, json_format.ParseError, UnicodeDecodeError) as error:
        raise _malformed(str(error)) from None
    return bytes(message.SerializeToString())


@cache
def request_type(signal: Signal) -> Any:
    """The message class of the export request of a signal."""
    return getattr(_service(signal), SIGNAL_TYPES[signal].request)


@cache
def response_type(signal: Signal) -> Any:
    """The message class of the response of a signal."""
    return getattr(_service(signal), SIGNAL_TYPES[signal].request.replace("Request", "Response"))


def _service(signal: Signal) -> Any:
    module = SIGNAL_TYPES[signal].module
    return import_module(f"opentelemetry.proto.collector.{module}.v1.{module}_service_pb2")


def _malformed(detail: str) -> Refusal:
    return Refusal(RefusalKind.MALFORMED, f"The body is not an export request in OTLP's JSON: {detail[:300]}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = {key: _value(key, value) for key, value in pairs}
    if len(content) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return content


def _value(key: str, value: Any) -> Any:
    if key in _IDS and isinstance(value, str):
        try:
            return base64.b64encode(binascii.unhexlify(value)).decode()
        except (binascii.Error, ValueError):
            raise ValueError(f"{key}: expected hexadecimal text") from None
    if key in _ENUMS and isinstance(value, str):
        raise ValueError(f"{key}: expected the number of the enum value")
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
