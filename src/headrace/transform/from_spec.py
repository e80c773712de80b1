"""Convert the steps of a spec to the steps of a transform."""

from __future__ import annotations

from headrace.spec.model import Spec
from headrace.spec.steps import Jmespath, MaskBy
from headrace.spec.steps import StepSpec as StepSpec
from headrace.transform.mask import Form, HashMask, KeepMask, NullMask, RedactMask
from headrace.transform.steps import DropStep, JmespathStep, MaskStep, RenameStep, SetStep, TransformStep, WhereStep


def transform_steps(spec: Spec) -> list[TransformStep]:
    """The steps of the spec's transform."""
    return [step_of(step) for step in spec.transform]


def step_of(step: StepSpec) -> TransformStep:
    """One step."""
    if step.mask is not None:
        return MaskStep({name: _form_of(masked) for name, masked in step.mask.items()})
    if step.jmespath is not None:
        return JmespathStep(step.queries, step.jmespath.on_null if isinstance(step.jmespath, Jmespath) else "keep")
    if step.set is not None:
        return SetStep(step.set)
    if step.where is not None:
        return WhereStep(step.where)
    return DropStep(step.drop) if step.drop is not None else RenameStep(step.rename or {})


def _form_of(masked: MaskBy | str) -> Form:
    if isinstance(masked, str):
        return NullMask() if masked == "null" else RedactMask()
    if masked.keep is not None:
        return KeepMask(masked.keep.first or 0, masked.keep.last or 0)
    return HashMask(masked.sha256) if masked.sha256 is not None else RedactMask(masked.redact or "")
