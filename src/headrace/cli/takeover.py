"""`headrace takeover`: continue where another writer of the tables has stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.confirm import confirmed
from headrace.cli.console import emit, say
from headrace.cli.options import AsJson, SpecFile, Yes
from headrace.errors import UsageError

if TYPE_CHECKING:
    from headrace.recovery.takeover import Takeover
    from headrace.spec import Spec


def takeover(
    spec_file: SpecFile,
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="ORIGIN",
            help="Positions of the other writer: `kafka-delta-ingest:APP_ID` (its txns in the tables), `group:NAME` (a "
            "consumer group), `checkpoint:PATH` (of Spark Structured Streaming), or `offsets:JSON`, the first offset "
            'to read of each partition: `{"0": 12}` or `{"TOPIC": {"0": 12}}`.',
        ),
    ],
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap",
            help="Continue at the earliest offset where records after a position were deleted, and at the end offset "
            "where the position is beyond it.",
        ),
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Continue where another writer of the tables has stopped.

    Stop that writer first. Its positions are verified against the broker and recorded as the start of a new pipeline,
    so that the first batch neither loses nor repeats records.
    """
    from headrace.recovery.resume import open_context
    from headrace.recovery.takeover import plan_takeover
    from headrace.recovery.takeover_origin import Origin
    from headrace.validate.load import load

    specs, parsed = load(spec_file), Origin.parse(origin)
    if len(specs) != 1:
        raise UsageError(f"{spec_file} has {len(specs)} pipelines.", hint="Use a file with one pipeline.")
    [spec] = specs
    with open_context(spec) as context:
        plan = plan_takeover(context, parsed, accept_gap)
        if not as_json:
            _print(plan)
        recorded = not plan.is_recorded and confirmed("Record these positions?", yes, as_json)
        if recorded:
            plan.record(context)
    if as_json:
        _emit(plan, spec, recorded)
    elif recorded:
        say(f"{spec.pipeline}: the first run starts at these offsets", "green")
    else:
        say(f"{spec.pipeline}: {'already recorded' if plan.is_recorded else 'nothing was recorded'}")


def _print(plan: Takeover) -> None:
    for (topic, number), offset in sorted(plan.start.items()):
        bound = plan.bounds[topic, number]
        say(f"{topic}/{number}: continues at offset {offset} (the broker has {bound.earliest} to {bound.latest})")
    for uri, taken_over in plan.tables.items():
        lasts = ", ".join(f"{topic}/{number} to {last}" for (topic, number), last in sorted(taken_over.offsets.items()))
        say(f"{uri}: has {lasts}")


def _emit(plan: Takeover, spec: Spec, recorded: bool) -> None:
    offsets = [
        {
            "topic": topic,
            "partition": number,
            "offset": offset,
            "earliest": plan.bounds[topic, number].earliest,
            "latest": plan.bounds[topic, number].latest,
        }
        for (topic, number), offset in sorted(plan.start.items())
    ]
    emit({"event": "takeover", "pipeline": spec.pipeline, "offsets": offsets, "tables": sorted(plan.tables)})
    emit({"event": "summary", "pipeline": spec.pipeline, "recorded": recorded, "already_recorded": plan.is_recorded})
