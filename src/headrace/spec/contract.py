"""The contract of a table and of its columns: what happens to a record that does not fit."""

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
    """What happens to a record that does not fit this column, where that is another answer than the table's."""

    wrong_type: WrongType | None = Field(default=None, description="A value does not fit the column's type.")
    missing: Missing | None = Field(
        default=None, description="The column is required, and absent; `default` asks for a default."
    )


class ContractKeys(SpecModel):
    """What happens to a record that does not fit its table."""

    new_field: NewField | None = Field(
        default=None,
        description="The record brings a field the table lacks. Default: `ignore` (and count) when columns are "
        "declared, else `evolve`. `rescue` keeps its text in `_rescued`.",
    )
    wrong_type: WrongType = Field(
        default="reject",
        description="A value does not fit its column's type. `rescue` keeps its text in `_rescued` and leaves the "
        "column NULL; where that is not allowed, the record is a letter. `widen` gives the column the wider type that "
        "holds it, and asks for `features: [typeWidening]`; what no wider type holds is a letter.",
    )
    missing: Missing = Field(
        default="reject",
        description="A required field is absent; `default` asks for a default on every required column.",
    )


@dataclass(frozen=True, slots=True)
class Contract:
    """What happens to a record that does not fit its table, defaults filled in."""

    new_field: NewField
    wrong_type: WrongType
    missing: Missing
    columns: Mapping[str, ColumnContract] = field(default_factory=dict)  # those with answers of their own

    def wrong_type_of(self, column: str) -> WrongType:
        """The answer to a value that does not fit a column."""
        own = self.columns.get(column)
        return self.wrong_type if own is None or own.wrong_type is None else own.wrong_type

    def missing_of(self, column: str) -> Missing:
        """The answer to a required column that is absent."""
        own = self.columns.get(column)
        return self.missing if own is None or own.missing is None else own.missing

    @property
    def rescues(self) -> bool:
        """Whether what does not fit is kept as text beside the row."""
        return self.new_field == "rescue" or self._somewhere("rescue")

    @property
    def widens(self) -> bool:
        """Whether some column's type gives way to a value that only a wider one holds."""
        return self._somewhere("widen")

    def _somewhere(self, answer: WrongType) -> bool:
        return answer in (self.wrong_type, *(own.wrong_type for own in self.columns.values()))
