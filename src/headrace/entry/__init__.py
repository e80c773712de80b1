"""Entry points of the commands: Ctrl-C ends them without a traceback, also while Python imports their modules."""

from __future__ import annotations

import signal
import sys

INTERRUPTED = 128 + signal.SIGINT


def headrace_command() -> None:
    """Run `headrace`."""
    try:
        from headrace.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def kafka_delta_ingest_command() -> None:
    """Run `kafka-delta-ingest`."""
    try:
        from headrace.compat import kafka_delta_ingest

        kafka_delta_ingest.kafka_delta_ingest()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
