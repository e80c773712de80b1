"""Transform: SQL expressions over rows and their envelopes."""

from headrace.transform.expressions import ENVELOPE as ENVELOPE_NAMES
from headrace.transform.sql import Drop, Rename, Set, Step, Transform, Transformed, Where, evaluate

__all__ = [
    "ENVELOPE_NAMES",
    "Drop",
    "Rename",
    "Set",
    "Step",
    "Transform",
    "Transformed",
    "Where",
    "evaluate",
]
