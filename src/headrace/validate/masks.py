"""Rules for masks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from headrace.spec.diagnostics import UnlocatedDiagnostic
from headrace.spec.model import Spec
from headrace.spec.secrets import BadReference
from headrace.spec.steps import MaskBy
from headrace.spec.table import TableMatch
from headrace.spec.yaml_reader import Path
from headrace.validate.branches import written_options


def check_masks(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Masks that leave unmasked values in the table, or that are invalid."""
    masked = False
    for index, step in enumerate(spec.transform):
        here: Path = ("transform", index)
        if masked and step.jmespath is not None:
            message = "jmespath after a mask reads the original message, including unmasked values"
            yield UnlocatedDiagnostic((*here, "jmespath"), message, "the mask after jmespath", severity="warning")
        for name, by in (step.mask or {}).items():
            yield from _mask((*here, "mask", name), name, by)
        masked = masked or step.mask is not None
    if masked:
        yield from _rescued(spec)
        yield from _null_masks(spec)


def _mask(here: Path, name: str, by: MaskBy | str) -> Iterator[UnlocatedDiagnostic]:
    from headrace.transform.mask import SHORTEST

    if not all(name.split(".")):
        expected = "a column, or a nested field (a.b) without empty segments"
        yield UnlocatedDiagnostic(here, f"'{name}'", expected, on_key=True, depends_on=())
    if isinstance(by, str) or by.sha256 is None:
        return
    with suppress(BadReference):  # reported for all secrets
        size = len(by.sha256.reveal().encode())
        if size < SHORTEST:
            message = f"the key has {size} bytes"
            yield UnlocatedDiagnostic((*here, "sha256"), message, f"at least {SHORTEST} bytes", depends_on=())


def _rescued(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """Rescued values are stored unmasked in `_rescued`."""
    steps = spec.transform
    if any("_rescued" in (*(step.drop or ()), *(step.mask or ())) for step in steps):
        return
    for here, own in written_options(spec):
        table = own.over(spec.table) if isinstance(own, TableMatch) else own
        if table.contract.rescues:
            message = "rescue with a mask: _rescued would contain unmasked values"
            yield UnlocatedDiagnostic((*here, "contract"), message, "a mask for _rescued, or drop: [_rescued]")


def _null_masks(spec: Spec) -> Iterator[UnlocatedDiagnostic]:
    """A required column that a mask sets to NULL rejects every record."""
    null = {name for step in spec.transform for name, by in (step.mask or {}).items() if by == "null"}
    for here, own in written_options(spec):
        for index, column in enumerate(own.columns):
            if column.name in null and not column.nullable:
                path = (*here, "columns", index, "nullable")
                yield UnlocatedDiagnostic(
                    path, f"required, but the mask sets '{column.name}' to NULL", "nullable: true, or another mask"
                )
