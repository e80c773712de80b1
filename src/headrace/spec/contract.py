"""Data contract of a table and its columns: handling of records that do not match the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from headrace.spec.base import SpecModel

NewField = Literal["evolve", "ignore", "rescue", "reject", "stop"]
WrongType = Literal["reject", "widen", "rescue", "stop"]
Missing = Literal["reject", "default", "stop"]


class ColumnContract(SpecModel):
    """Column-level overrides of the table's contract."""

    wrong_type: WrongType | None = Field(
        default=None, description="Action for a value that does not match the column type."
    )
    missing: Missing | None = Field(
        default=None, description="Action for a missing required value; `default` requires `default` to be set."
    )


class ContractKeys(SpecModel):
    """Handling of records that do not match the table schema."""

    new_field: NewField | None = Field(
        default=None,
        description="Action for a field that the table does not have. Default: `ignore` (counted) if columns "
        "are declared, otherwise `evolve`. `rescue` stores the field as JSON text in `_rescued`.",
    )
    wrong_type: WrongType = Field(
        default="reject",
        description="Action for a value that does not match the column type. `rescue` stores the value as "
        "JSON text in `_rescued` and sets the column to NULL, or rejects the record if the column "
        "is not nullable. `widen` changes the column to a wider type, rejects values that no "
        "wider type can hold, and requires `features: [typeWidening]`.",
    )
    missing: Missing = Field(
        default="reject",
        description="Action for a missing required field. `default` requires a default value on every required column.",
    )


@dataclass(frozen=True, slots=True)
class Contract:
    """Contract of a table with all defaults resolved."""

    new_field: NewField
    wrong_type: WrongType
    missing: Missing
    columns: Mapping[str, ColumnContract] = field(default_factory=dict)  # those with answers of their own

    def wrong_type_of(self, column: str) -> WrongType:
        """Action for a value that does not match the column type."""
        own = self.columns.get(column)
        return self.wrong_type if own is None or own.wrong_type is None else own.wrong_type

    def missing_of(self, column: str) -> Missing:
        """Action for a missing required column."""
        own = self.columns.get(column)
        return self.missing if own is None or own.missing is None else own.missing

    @property
    def rescues(self) -> bool:
        """Whether non-matching values are stored as JSON text in `_rescued`."""
        return self.new_field == "rescue" or self._somewhere("rescue")

    @property
    def widens(self) -> bool:
        """Whether any column may be widened."""
        return self._somewhere("widen")

    def _somewhere(self, answer: WrongType) -> bool:
        return answer in (self.wrong_type, *(own.wrong_type for own in self.columns.values()))
