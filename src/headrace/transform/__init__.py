"""Transform: SQL and JMESPath expressions over rows and their envelopes."""

from headrace.transform.expressions import ENVELOPE as ENVELOPE_NAMES
from headrace.transform.letters import LetterColumns
from headrace.transform.sql import Drop, Query, Rename, Set, Step, Transform, Transformed, Where, evaluate

__all__ = [
    "ENVELOPE_NAMES",
    "Drop",
    "LetterColumns",
    "Query",
    "Rename",
    "Set",
    "Step",
    "Transform",
    "Transformed",
    "Where",
    "evaluate",
]
