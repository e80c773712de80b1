"""Valid values of table properties: with an invalid value, Spark can no longer read the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta

from headrace.delta.snapshot import TableState
from headrace.errors import TableError, UsageError

# Suffixes in the names of data files, by compression codec.
SUFFIXES = {"snappy": ".snappy", "zstd": ".zstd", "gzip": ".gz", "lz4": ".lz4raw", "none": ""}

_PART = re.compile(
    r"([+-]?)\s*(\d+|\d*\.\d{0,9}(?=\s+second))\s+(week|day|hour|minute|second|millisecond|microsecond)s?"
)
_LONGEST = timedelta(days=10**8)  # about the maximum of Spark
EXPIRING = "delta.setTransactionRetentionDuration"  # checkpoints drop the txns of idle writers


def interval(text: str) -> timedelta | None:
    """Parse a duration as Spark does: `interval 30 days 12 hours`; None if it is invalid, also for months and years."""
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
    """A duration property; None if the table does not have it, TableError if it is invalid."""
    text = state.properties.get(name)
    duration = None if text is None else interval(text)
    if text is not None and duration is None:
        raise TableError(
            f"Invalid duration in the table property {name}: '{text}'.",
            hint=f"Set it: `headrace table set-properties PATH --set '{name}=interval 7 days'`.",
        )
    return duration


def property_text(value: object) -> str:
    """A value as the text of a property."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_properties(properties: Mapping[str, object]) -> None:
    """UsageError for a value that Spark or other readers reject; the hint has the valid values."""
    for name, value in properties.items():
        if valid := expected_value(name, property_text(value)):
            raise UsageError(f"Invalid value of the property {name}: '{value}'.", hint=f"It must be {valid}.")


def expected_value(name: str, value: str) -> str | None:
    """The valid values of a property if this one is invalid; None if it is valid, or the property unknown."""
    is_valid, valid = _RULES.get(name, (None, ""))
    return None if is_valid is None or is_valid(value.strip()) else valid


def _one_of(*words: str) -> tuple[Callable[[str], bool], str]:
    return lambda text: text.lower() in words, " or ".join(words)


def _integer(least: int) -> tuple[Callable[[str], bool], str]:
    return lambda text: bool(re.fullmatch(r"-?\d{1,9}", text)) and int(text) >= least, f"an integer of at least {least}"


_SWITCH = _one_of("true", "false")
_TIME = (lambda text: interval(text) is not None, "a duration without months and years, as `interval 7 days`")
_PROTOCOL = (lambda _: False, "unset: the features of the table determine it")
_RULES: dict[str, tuple[Callable[[str], bool], str]] = {
    "delta.appendOnly": _SWITCH,
    "delta.autoOptimize": _SWITCH,
    "delta.autoOptimize.autoCompact": _one_of("true", "false", "auto", "legacy"),
    "delta.autoOptimize.optimizeWrite": _SWITCH,
    "delta.checkpoint.writeStatsAsJson": _SWITCH,
    "delta.checkpoint.writeStatsAsStruct": _SWITCH,
    "delta.checkpointInterval": _integer(1),
    "delta.checkpointRetentionDuration": _TIME,
    "delta.dataSkippingNumIndexedCols": _integer(-1),
    "delta.deletedFileRetentionDuration": _TIME,
    "delta.enableChangeDataFeed": _SWITCH,
    "delta.enableDeletionVectors": _SWITCH,
    "delta.enableExpiredLogCleanup": _SWITCH,
    "delta.enableFullRetentionRollback": _SWITCH,
    "delta.isolationLevel": _one_of("serializable", "writeserializable", "snapshotisolation"),
    "delta.logRetentionDuration": _TIME,
    "delta.minReaderVersion": _PROTOCOL,
    "delta.minWriterVersion": _PROTOCOL,
    "delta.parquet.compression.codec": _one_of(*SUFFIXES),
    "delta.randomPrefixLength": _integer(1),
    "delta.randomizeFilePrefixes": _SWITCH,
    "delta.sampleRetentionDuration": _TIME,
    EXPIRING: (lambda _: False, "unset: the txns of pipelines would expire, and a batch could be written twice"),
    "delta.targetFileSize": (lambda text: bool(re.fullmatch(r"\d{1,15}", text)) and int(text) > 0, "a number of bytes"),
    "delta.tuneFileSizesForRewrites": _SWITCH,
}
