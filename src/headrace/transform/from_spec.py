"""The steps of a spec as the transform runs them."""

from __future__ import annotations

from headrace.spec.model import Spec
from headrace.spec.steps import Jmespath, MaskBy
from headrace.spec.steps import Step as StepSpec
from headrace.transform.mask import Form, Hash, Keep, Null, Redact
from headrace.transform.steps import Drop, Mask, Query, Rename, Set, Step, Where


def steps_of(spec: Spec) -> list[Step]:
    """The steps of the spec's transform."""
    return [step_of(step) for step in spec.transform]


def step_of(step: StepSpec) -> Step:
    """One step."""
    if step.mask is not None:
        return Mask({name: _form_of(masked) for name, masked in step.mask.items()})
    if step.jmespath is not None:
        return Query(step.queries, step.jmespath.on_null if isinstance(step.jmespath, Jmespath) else "keep")
    if step.set is not None:
        return Set(step.set)
    if step.where is not None:
        return Where(step.where)
    return Drop(step.drop) if step.drop is not None else Rename(step.rename or {})


def _form_of(masked: MaskBy | str) -> Form:
    if isinstance(masked, str):
        return Null() if masked == "null" else Redact()
    if masked.keep is not None:
        return Keep(masked.keep.first or 0, masked.keep.last or 0)
    return Hash(masked.sha256) if masked.sha256 is not None else Redact(masked.redact or "")
