"""Earlier names of keys and values: an unknown name that is listed here gets its present one as the suggestion."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.spec.base import Part
from headrace.spec.decode import Protobuf
from headrace.spec.maintenance import Maintenance
from headrace.spec.merge import Merge
from headrace.spec.model import Spec
from headrace.spec.running import BackOff, CircuitBreaker
from headrace.spec.source import Generate
from headrace.spec.table import Expectation

KEYS: Mapping[type[Part], Mapping[str, str]] = {
    Spec: {"also": "branches", "breaker": "circuit_breaker", "maintain": "maintenance"},
    CircuitBreaker: {"share": "max_reject_ratio", "at_least": "min_records"},
    Maintenance: {
        "small_files": "min_input_files",
        "cold": "idle_after",
        "at_once": "max_bytes_per_run",
        "vacuum": "vacuum_every",
        "retain": "retention",
        "pause_above": "max_lag",
    },
    Merge: {"remember": "tombstone_retention", "history": "scd2"},
    Expectation: {"otherwise": "on_violation"},
    BackOff: {"first": "initial_interval", "longest": "max_interval"},
    Generate: {"bad": "bad_ratio"},
    Protobuf: {"unknown": "keep_unknown_fields", "empty": "allow_empty"},
}
VALUES: Mapping[str, Mapping[str, str]] = {"mode": {"history": "scd2"}}  # by key


def renamed_key(part: type[Part] | None, name: str) -> str:
    """The present name of a key of a part; empty where no earlier one has this name."""
    return KEYS.get(part, {}).get(name, "") if part else ""


def renamed_value(key: str, value: str) -> str:
    """The present name of a value of a key; empty where no earlier one has this name."""
    return VALUES.get(key, {}).get(value, "")
