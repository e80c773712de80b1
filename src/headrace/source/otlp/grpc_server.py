"""OTLP over gRPC: the three services take and return bytes, so that receiving parses nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from headrace.source.otlp.intake import Intake
from headrace.source.otlp.refusal import Refusal, RefusalKind, refusal_of
from headrace.spec.decode import Signal

_SERVICES: dict[str, Signal] = {
    "/opentelemetry.proto.collector.trace.v1.TraceService/Export": "traces",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export": "metrics",
    "/opentelemetry.proto.collector.logs.v1.LogsService/Export": "logs",
}
_PROFILES = "/opentelemetry.proto.collector.profiles."
_ROOM = 1024  # bytes of a message beside the request
_STOP_SECONDS = 5.0


class GrpcServer:
    """The gRPC server; all methods are called in its event loop."""

    def __init__(self, intake: Intake, address: str, credentials: Any | None) -> None:
        options = [
            ("grpc.max_receive_message_length", intake.max_body + _ROOM),
            ("grpc.so_reuseport", 0),
        ]
        self._server = grpc.aio.server(options=options)
        self._server.add_generic_rpc_handlers((_Exports(intake),))
        self.port = (
            self._server.add_insecure_port(address)
            if credentials is None
            else self._server.add_secure_port(address, credentials)
        )

    async def start(self) -> None:
        """Accept requests."""
        await self._server.start()

    async def stop(self) -> None:
        """Answer the current requests, then stop."""
        await self._server.stop(_STOP_SECONDS)


class _Exports(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method; None if there is none, which gRPC answers with UNIMPLEMENTED."""
        method = handler_call_details.method
        if (signal := _SERVICES.get(method)) is not None:
            return grpc.unary_unary_rpc_method_handler(self._export(signal))
        return grpc.unary_unary_rpc_method_handler(_refuse_profiles) if method.startswith(_PROFILES) else None

    def _export(self, signal: Signal) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def export(request: bytes, context: Any) -> bytes:
            try:
                self._intake.authenticate(_authorization(context))
                return bytes((await self._intake.store(signal, request)).SerializeToString())
            except Exception as error:
                return await _abort(context, refusal_of(error))

        return export


def _authorization(context: Any) -> str | None:
    value = dict(context.invocation_metadata()).get("authorization")
    return value if isinstance(value, str) else None


async def _refuse_profiles(_request: bytes, context: Any) -> bytes:
    return await _abort(context, Refusal(RefusalKind.NO_SUCH_PATH, PROFILES))


PROFILES = "Profiles are not supported: send traces, metrics and logs only."


async def _abort(context: Any, refusal: Refusal) -> bytes:
    status = refusal.status()
    details = [("grpc-status-details-bin", status.SerializeToString())]
    # Where the exporters of some languages look for the wait.
    details += [("google.rpc.retryinfo-bin", each.value) for each in status.details]
    await context.abort(getattr(grpc.StatusCode, refusal.kind.code_name), refusal.message, tuple(details))
    raise AssertionError("abort raises an error")
