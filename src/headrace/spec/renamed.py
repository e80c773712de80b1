"""Former names of keys and values, for suggestions."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.spec.base import SpecModel
from headrace.spec.decode import ProtobufFormat
from headrace.spec.maintenance import MaintenanceSpec
from headrace.spec.merge import MergeSpec
from headrace.spec.model import Spec
from headrace.spec.running import BackOff, CircuitBreakerSpec, RetrySpec
from headrace.spec.source import GenerateSpec
from headrace.spec.table import Expectation

KEYS: Mapping[type[SpecModel], Mapping[str, str]] = {
    Spec: {"also": "branches", "breaker": "circuit_breaker", "maintain": "maintenance"},
    CircuitBreakerSpec: {"share": "max_reject_ratio", "at_least": "min_records"},
    MaintenanceSpec: {
        "small_files": "min_input_files",
        "cold": "idle_after",
        "at_once": "max_bytes_per_run",
        "vacuum": "vacuum_every",
        "retain": "retention",
        "pause_above": "max_lag",
    },
    MergeSpec: {"remember": "tombstone_retention", "history": "scd2"},
    Expectation: {"otherwise": "on_violation"},
    RetrySpec: {"refused": "access_denied"},
    BackOff: {"first": "initial_interval", "longest": "max_interval"},
    GenerateSpec: {"bad": "bad_ratio"},
    ProtobufFormat: {"unknown": "keep_unknown_fields", "empty": "allow_empty"},
}
VALUES: Mapping[str, Mapping[str, str]] = {"mode": {"history": "scd2"}}  # by key


def renamed_key(part: type[SpecModel] | None, name: str) -> str:
    """Current name of a renamed key; empty if the key was not renamed."""
    return KEYS.get(part, {}).get(name, "") if part else ""


def renamed_value(key: str, value: str) -> str:
    """Current name of a renamed value; empty if the value was not renamed."""
    return VALUES.get(key, {}).get(value, "")
