"""How records become rows where they do not just add one: merges, histories, doubles."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, PrivateAttr, model_validator

from headrace.spec.base import InvalidValue, SpecModel
from headrace.spec.units import Duration, Flag


class Update(SpecModel):
    """What a change leaves of the row that is there; without it, a change replaces the whole row."""

    columns: tuple[str, ...] = Field(
        default=(), description="The columns that a change brings to a row that is there; all without it."
    )
    ignore_nulls: Flag = Field(
        default=False, description="Whether a NULL says nothing: the row keeps the value that it has."
    )

    @model_validator(mode="after")
    def _some(self) -> Update:
        if not self.columns and not self.ignore_nulls:
            raise InvalidValue("columns, ignore_nulls: true, or both", message="neither")
        return self


class Scd2Spec(SpecModel):
    """The columns of a table that keeps every state of a row, and what makes a new one."""

    valid_from: str = Field(
        default="valid_from", min_length=1, description="The column with the sequence from which on the row was so."
    )
    valid_to: str = Field(
        default="valid_to", min_length=1, description="The column with the sequence that ended it; NULL while it is so."
    )
    current: str = Field(
        default="current", min_length=1, description="The column that is true in the last row of a key that is there."
    )
    track: tuple[str, ...] = Field(
        default=(),
        description="The columns whose change makes a new row; others are overwritten in the row that is there. "
        "Without it, every change makes one.",
    )

    @property
    def columns(self) -> tuple[str, str, str]:
        """The columns that no record brings."""
        return self.valid_from, self.valid_to, self.current


class MergeSpec(SpecModel):
    """How records change the rows of a table that has one row for each key, or one for each state of a key."""

    keys: tuple[str, ...] = Field(min_length=1, description="The columns that tell rows apart. NULL is no key.")
    sequence_by: str | None = Field(
        default=None,
        min_length=1,
        description="The column that orders the changes of a key: the highest wins, whenever it comes. Without it, and "
        "among equals, the higher partition and offset.",
    )
    delete_when: str | None = Field(
        default=None, min_length=1, description="An SQL predicate over the transformed row: such a row is deleted."
    )
    truncate_when: str | None = Field(
        default=None,
        min_length=1,
        description="An SQL predicate over the transformed row: all rows that came before such a record are deleted.",
    )
    update: Update | None = Field(
        default=None, description="Changes that bring only some columns; they are ordered by partition and offset."
    )
    scd2: Scd2Spec | None = Field(default=None, description="For `mode: scd2`: its columns, and what makes a new row.")
    tombstone_retention: Duration = Field(
        default=timedelta(days=7),
        ge=timedelta(seconds=1),
        description="How long a delete keeps older changes of its key away that come late; with `scd2.track`, how "
        "late a change may come.",
    )

    _events: bool = PrivateAttr(False)  # whether records are change events, whose `_op` says what to do

    def told_by_events(self) -> None:
        """Let the envelope's word count beside the predicates."""
        self._events = True

    def with_scd2(self) -> MergeSpec:
        """The same with the columns of a history, those of the defaults where none are said."""
        return self if self.scd2 else self.model_copy(update={"scd2": Scd2Spec()})

    @property
    def aside(self) -> tuple[str, ...]:
        """Columns of the envelope that say what to do, and are no columns of the table."""
        return ("_op", "_before") if self._events else ()

    @property
    def deletes(self) -> str | None:
        """When a record deletes its row."""
        return _either(self.delete_when, "_op = 'delete'" if self._events else None)

    @property
    def truncates(self) -> str | None:
        """When a record empties the table."""
        return _either(self.truncate_when, "_op = 'truncate'" if self._events else None)


class Deduplicate(SpecModel):
    """Rows of which one is enough, by their keys, for as long as doubles may come."""

    keys: tuple[str, ...] = Field(
        min_length=1, description="The columns that tell rows apart. Where one is NULL, the row is stored anyway."
    )
    within: Duration = Field(
        ge=timedelta(seconds=1),
        le=timedelta(days=30),
        description="How far apart the timestamps of two records may be of which only the first is stored.",
    )


def _either(one: str | None, two: str | None) -> str | None:
    return f"({one}) OR ({two})" if one and two else one or two
