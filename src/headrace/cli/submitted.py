"""The program that spark-submit runs: pipelines on the session that spark-submit has prepared."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    """Run the pipelines of a spec file with JSON events on stdout; returns the exit code."""
    from headrace.cli.console import emit
    from headrace.cli.output import EventOutput
    from headrace.cli.run import exit_code, summary_event
    from headrace.cli.signals import Signals
    from headrace.errors import HeadraceError
    from headrace.pipeline.spark_session import SharedSession
    from headrace.runtime import external_session
    from headrace.serve.runner import run_all
    from headrace.validate.load import load

    parser = argparse.ArgumentParser()
    parser.add_argument("spec")
    parser.add_argument("--until")
    parser.add_argument("--wait", action="store_true")
    options = parser.parse_args(arguments)
    spark = external_session.submitted_session()
    try:
        with Signals() as signals, EventOutput(as_json=True) as output:
            specs = load(external_session.submitted_file(Path(options.spec)))
            shared = SharedSession(specs, signals.stop, output, spark)
            results = run_all(
                specs, until=options.until, report=output, stop=signals.stop, wait=options.wait, shared=shared
            )
        for result in results:
            emit(summary_event(result))
        return exit_code(results)
    except HeadraceError as error:
        sys.stderr.write(f"headrace: {error.name}: {error}\n")
        return error.exit_code
    finally:
        spark.stop()


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file, whose modules are not top-level modules
    sys.exit(main(sys.argv[1:]))
