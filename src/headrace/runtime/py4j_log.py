"""Log messages of py4j about a JVM that has ended: each is an exception as well, which the caller handles."""

from __future__ import annotations

import logging

_LOST = ("Exception while sending command.", "An error occurred while trying to connect to the Java server")
_LOGGERS = (None, "py4j.java_gateway")  # the first is the root logger


def ignore_lost_connections() -> None:
    """Log no traceback of a connection that is closed because its JVM was killed."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_of_others)


def _is_of_others(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith(_LOST)
