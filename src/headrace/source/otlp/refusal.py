"""Refused export requests: codes of gRPC and HTTP, and the wait before a retry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

from headrace.errors import HeadraceError


class RefusalKind(Enum):
    """Why a request is refused: gRPC's code (number and name), and the HTTP status."""

    MALFORMED = (3, "INVALID_ARGUMENT", 400)
    UNAUTHENTICATED = (16, "UNAUTHENTICATED", 401)
    NO_SUCH_PATH = (12, "UNIMPLEMENTED", 404)
    WRONG_METHOD = (12, "UNIMPLEMENTED", 405)
    TOO_LARGE = (8, "RESOURCE_EXHAUSTED", 413)  # without RetryInfo: exporters do not send it again
    WRONG_CONTENT_TYPE = (3, "INVALID_ARGUMENT", 415)
    FULL = (8, "RESOURCE_EXHAUSTED", 429)
    UNAVAILABLE = (14, "UNAVAILABLE", 503)

    @property
    def code(self) -> int:
        """Number of the gRPC code."""
        return int(self.value[0])

    @property
    def code_name(self) -> str:
        """Name of the gRPC code."""
        return str(self.value[1])

    @property
    def http_status(self) -> int:
        """HTTP status."""
        return int(self.value[2])


@dataclass
class Refusal(Exception):
    """An export request that is not accepted, with the answer to its producer."""

    kind: RefusalKind
    message: str
    retry_after: float | None = None  # seconds; None: the same request is refused again

    @property
    def retry_seconds(self) -> int | None:
        """Whole seconds for `Retry-After`, at least one."""
        return None if self.retry_after is None else max(1, math.ceil(self.retry_after))

    def status(self) -> Any:
        """The refusal as a `google.rpc.Status`, with `RetryInfo` if the request can be sent again."""
        from google.rpc import error_details_pb2, status_pb2

        status = status_pb2.Status(code=self.kind.code, message=self.message)
        if self.retry_after is not None:
            info = error_details_pb2.RetryInfo()
            info.retry_delay.FromNanoseconds(int(self.retry_after * 1e9))
            status.details.add().Pack(info)
        return status


_UNAVAILABLE_SECONDS = 5.0


def refusal_of(error: BaseException) -> Refusal:
    """The answer to a request whose records could not be stored; whatever the error, they can be sent again."""
    if isinstance(error, Refusal):
        return error
    retry_after = getattr(error, "retry_after", None)
    if retry_after is not None:
        return Refusal(RefusalKind.FULL, str(error), float(retry_after))
    what = error.message if isinstance(error, HeadraceError) else f"internal error ({type(error).__name__})"
    return Refusal(RefusalKind.UNAVAILABLE, f"The records cannot be stored now: {what}", _UNAVAILABLE_SECONDS)
