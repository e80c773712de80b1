"""Rules about masks: what they would not hide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.secrets import BadReference
from headrace.spec.steps import MaskBy
from headrace.spec.table import TableMatch
from headrace.spec.yaml_reader import Path
from headrace.validate.branches import written


def check_masks(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Masks that would not hide what they should."""
    covered = False
    for index, step in enumerate(spec.transform):
        here: Path = ("transform", index)
        if covered and step.jmespath is not None:
            seen = "jmespath after a mask reads the original message, including unmasked values"
            yield UnlocatedDiagnostic((*here, "jmespath"), seen, "the mask after jmespath", severity="warning")
        for name, by in (step.mask or {}).items():
            yield from _mask((*here, "mask", name), name, by)
        covered = covered or step.mask is not None
    if covered:
        yield from _rescued(spec)
        yield from _emptied(spec)


def _mask(here: Path, name: str, by: MaskBy | str) -> Iterator[UnlocatedDiagnostic]:
    from headrace.transform.mask import SHORTEST

    if not all(name.split(".")):
        yield UnlocatedDiagnostic(
            here, f"'{name}'", "a column, or a nested field (a.b) without empty segments", on_key=True
        )
    if isinstance(by, str) or by.sha256 is None:
        return
    with suppress(BadReference):  # which is told of every secret
        size = len(by.sha256.reveal().encode())
        if size < SHORTEST:
            yield UnlocatedDiagnostic((*here, "sha256"), f"the key has {size} bytes", f"at least {SHORTEST} bytes")


def _rescued(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """What is rescued is kept as it came, a value that a mask should cover among it."""
    steps = spec.transform
    if any("_rescued" in (*(step.drop or ()), *(step.mask or ())) for step in steps):
        return
    for here, own in written(spec):
        table = own.over(spec.table) if isinstance(own, TableMatch) else own
        if table.contract.rescues:
            seen = "rescue with a mask: _rescued would contain unmasked values"
            yield UnlocatedDiagnostic((*here, "contract"), seen, "a mask for _rescued, or drop: [_rescued]")


def _emptied(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """A required column that is always NULL would make a letter of every record."""
    null = {name for step in spec.transform for name, by in (step.mask or {}).items() if by == "null"}
    for here, own in written(spec):
        for index, column in enumerate(own.columns):
            if column.name in null and not column.nullable:
                path = (*here, "columns", index, "nullable")
                yield UnlocatedDiagnostic(
                    path, f"required, but the mask sets '{column.name}' to NULL", "nullable: true, or another mask"
                )
