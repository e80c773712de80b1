"""Write modes other than plain appends: upserts, SCD2 and deduplication."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field, PrivateAttr, model_validator

from headrace.spec.base import InvalidValue, SpecModel
from headrace.spec.units import Duration, Flag


class Update(SpecModel):
    """Partial updates; by default, a change replaces the whole row."""

    columns: tuple[str, ...] = Field(
        default=(), description="Columns that a change updates in an existing row. Default: all."
    )
    ignore_nulls: Flag = Field(default=False, description="Keep the existing value where the change has NULL.")

    @model_validator(mode="after")
    def _some(self) -> Update:
        if not self.columns and not self.ignore_nulls:
            raise InvalidValue("columns, ignore_nulls: true, or both", message="neither")
        return self


class Scd2Spec(SpecModel):
    """Columns of an SCD2 table and the columns that are tracked."""

    valid_from: str = Field(
        default="valid_from",
        min_length=1,
        description="Column for the sequence value at which the row version became valid.",
    )
    valid_to: str = Field(
        default="valid_to",
        min_length=1,
        description="Column for the sequence value at which the row version ended; NULL for the current version.",
    )
    current: str = Field(
        default="current", min_length=1, description="Column that is true for the current version of a key."
    )
    track: tuple[str, ...] = Field(
        default=(),
        description="Columns whose changes create a new row version; other columns are updated in place. Default: all.",
    )

    @property
    def columns(self) -> tuple[str, str, str]:
        """Columns that are managed by Headrace and not part of the records."""
        return self.valid_from, self.valid_to, self.current


class MergeSpec(SpecModel):
    """Merge settings of a table with one row per key (`upsert`) or one row per version of a key (`scd2`)."""

    keys: tuple[str, ...] = Field(min_length=1, description="Key columns. Records with a NULL key are rejected.")
    sequence_by: str | None = Field(
        default=None,
        min_length=1,
        description="Column that orders the changes of a key: the highest value wins, regardless of arrival "
        "order. Ties, and tables without `sequence_by`, are ordered by partition and offset.",
    )
    delete_when: str | None = Field(
        default=None,
        min_length=1,
        description="SQL predicate over the transformed row; matching records delete their row.",
    )
    truncate_when: str | None = Field(
        default=None,
        min_length=1,
        description="SQL predicate over the transformed row; a matching record deletes all earlier rows.",
    )
    update: Update | None = Field(
        default=None, description="Partial updates. Changes are ordered by partition and offset."
    )
    scd2: Scd2Spec | None = Field(default=None, description="SCD2 options for `mode: scd2`.")
    tombstone_retention: Duration = Field(
        default=timedelta(days=7),
        ge=timedelta(seconds=1),
        description="How long deletes are stored, so that late changes of the key do not restore the row; "
        "with `scd2.track`, the maximum lateness of a change.",
    )

    _events: bool = PrivateAttr(False)  # whether records are change events with an operation in `_op`

    def apply_event_operations(self) -> None:
        """Also apply the operation of change events, in addition to the predicates."""
        self._events = True

    def with_scd2(self) -> MergeSpec:
        """Merge settings with the SCD2 columns, defaults resolved."""
        return self if self.scd2 else self.model_copy(update={"scd2": Scd2Spec()})

    @property
    def aside(self) -> tuple[str, ...]:
        """Columns of the change event's operation that are not table columns."""
        return ("_op", "_before") if self._events else ()

    @property
    def deletes(self) -> str | None:
        """Predicate for records that delete their row."""
        return _either(self.delete_when, "_op = 'delete'" if self._events else None)

    @property
    def truncates(self) -> str | None:
        """Predicate for records that truncate the table."""
        return _either(self.truncate_when, "_op = 'truncate'" if self._events else None)


class Deduplicate(SpecModel):
    """Deduplication of rows by key within a time window."""

    keys: tuple[str, ...] = Field(
        min_length=1, description="Columns that identify a row. A row with NULL in one of them is always written."
    )
    within: Duration = Field(
        ge=timedelta(seconds=1),
        le=timedelta(days=30),
        description="Time window: a row is a duplicate if an earlier row with the same key is at most this much older "
        "or newer.",
    )


def _either(first: str | None, second: str | None) -> str | None:
    return f"({first}) OR ({second})" if first and second else first or second
