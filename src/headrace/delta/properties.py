"""What the properties of a table may be: a value that Spark cannot read shuts Spark out of the table for good."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta

from headrace.delta.snapshot import TableState
from headrace.errors import TableError, UsageError

# Of the names of data files, by compression codec.
SUFFIXES = {"snappy": ".snappy", "zstd": ".zstd", "gzip": ".gz", "lz4": ".lz4raw", "none": ""}

_PART = re.compile(
    r"([+-]?)\s*(\d+|\d*\.\d{0,9}(?=\s+second))\s+(week|day|hour|minute|second|millisecond|microsecond)s?"
)
_LONGEST = timedelta(days=10**8)  # about what Spark adds up
EXPIRING = "delta.setTransactionRetentionDuration"  # lets checkpoints drop the txns of writers that rest


def interval(text: str) -> timedelta | None:
    """A time as Spark reads one: `interval 30 days 12 hours`; None for what it does not, months and years among it."""
    rest = text.strip().lower().removeprefix("interval ").strip()
    parts = [_PART.fullmatch(part) for part in re.split(r"(?<=[a-z])\s+(?=[-+.\d])", rest)]
    try:
        total = sum((_time(part) for part in parts if part), timedelta())
    except (OverflowError, ValueError):
        return None
    return total if all(parts) and timedelta() <= total <= _LONGEST else None


def _time(part: re.Match[str]) -> timedelta:
    return timedelta(**{f"{part[3]}s": float(part[2]) * (-1 if part[1] == "-" else 1)})


def interval_of(state: TableState, name: str) -> timedelta | None:
    """A property that is a time; None where the table does not have it, TableError where it is none."""
    said = state.properties.get(name)
    found = None if said is None else interval(said)
    if said is not None and found is None:
        raise TableError(
            f"The table's property {name} is '{said}', which is no time that Spark reads: how long it keeps what "
            "cannot be told.",
            hint=f"Set it: `headrace table set-properties PATH --set '{name}=interval 7 days'`.",
        )
    return found


def text_of(value: object) -> str:
    """A value as a property has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_properties(properties: Mapping[str, object]) -> None:
    """UsageError for a value that Spark or other readers would stumble over, with what it may be."""
    for name, value in properties.items():
        if wanted := expected_value(name, text_of(value)):
            raise UsageError(f"The property {name} cannot be '{value}'.", hint=f"It is {wanted}.")


def expected_value(name: str, value: str) -> str | None:
    """What a property must be, where it cannot be this value; None where it can, or nothing is known of it."""
    fits, wanted = _RULES.get(name, (None, ""))
    return None if fits is None or fits(value.strip()) else wanted


def _among(*words: str) -> tuple[Callable[[str], bool], str]:
    return lambda text: text.lower() in words, " or ".join(words)


def _whole(least: int) -> tuple[Callable[[str], bool], str]:
    return lambda text: bool(re.fullmatch(r"-?\d{1,9}", text)) and int(text) >= least, f"a whole number from {least}"


_SWITCH = _among("true", "false")
_TIME = (lambda text: interval(text) is not None, "a time without months and years, as `interval 7 days`")
_PROTOCOL = (lambda _: False, "set by the features that a table uses, not by itself")
_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "delta.appendOnly": _SWITCH,
    "delta.autoOptimize": _SWITCH,
    "delta.autoOptimize.autoCompact": _among("true", "false", "auto", "legacy"),
    "delta.autoOptimize.optimizeWrite": _SWITCH,
    "delta.checkpoint.writeStatsAsJson": _SWITCH,
    "delta.checkpoint.writeStatsAsStruct": _SWITCH,
    "delta.checkpointInterval": _whole(1),
    "delta.checkpointRetentionDuration": _TIME,
    "delta.dataSkippingNumIndexedCols": _whole(-1),
    "delta.deletedFileRetentionDuration": _TIME,
    "delta.enableChangeDataFeed": _SWITCH,
    "delta.enableDeletionVectors": _SWITCH,
    "delta.enableExpiredLogCleanup": _SWITCH,
    "delta.enableFullRetentionRollback": _SWITCH,
    "delta.isolationLevel": _among("serializable", "writeserializable", "snapshotisolation"),
    "delta.logRetentionDuration": _TIME,
    "delta.minReaderVersion": _PROTOCOL,
    "delta.minWriterVersion": _PROTOCOL,
    "delta.parquet.compression.codec": _among(*SUFFIXES),
    "delta.randomPrefixLength": _whole(1),
    "delta.randomizeFilePrefixes": _SWITCH,
    "delta.sampleRetentionDuration": _TIME,
    EXPIRING: (lambda _: False, "left unset: the txns of pipelines would expire, and a batch could be written twice"),
    "delta.targetFileSize": (lambda text: bool(re.fullmatch(r"\d{1,15}", text)) and int(text) > 0, "a number of bytes"),
    "delta.tuneFileSizesForRewrites": _SWITCH,
}
