"""Transform: SQL and JMESPath expressions over rows and their envelopes."""

from headrace.transform.expressions import ENVELOPE as ENVELOPE_NAMES
from headrace.transform.letters import LetterColumns
from headrace.transform.mask import Form, Hash, Keep, Null, Redact
from headrace.transform.sql import Drop, Mask, Query, Rename, Set, Step, Transform, Transformed, Where, evaluate

__all__ = [
    "ENVELOPE_NAMES",
    "Drop",
    "Form",
    "Hash",
    "Keep",
    "LetterColumns",
    "Mask",
    "Null",
    "Query",
    "Redact",
    "Rename",
    "Set",
    "Step",
    "Transform",
    "Transformed",
    "Where",
    "evaluate",
]
