"""Txns of kafka-delta-ingest, which has one for each partition in its tables: `<app id>-<partition>`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headrace.spec.base import InvalidValue, Shorthand, SpecModel

KAFKA_DELTA_INGEST = "kafka-delta-ingest"
_DEFAULT_APP_ID = "kafka_delta_ingest"


def _app_id(value: str) -> str:
    if not value.strip() or not value.isprintable() or value.startswith("headrace:"):
        raise InvalidValue("an app id of kafka-delta-ingest (its --app_id), such as web_requests")
    return value


AppId = Annotated[str, AfterValidator(_app_id)]


class TxnSpec(SpecModel):
    """Txns of kafka-delta-ingest in the table."""

    app_id: AppId | None = Field(
        default=None,
        alias="kafka-delta-ingest",
        description="App id of kafka-delta-ingest (its `--app_id`). A new pipeline continues after the offsets of its "
        "txns `<app id>-<partition>`, and every commit keeps them current, so that kafka-delta-ingest can continue.",
    )
    ignore: tuple[AppId, ...] = Field(
        default=(),
        description="App ids of kafka-delta-ingest, or of writers with the same kind of txns, whose records this "
        "pipeline may read and write again; `*` stands for all others.",
    )

    @model_validator(mode="after")
    def _check_app_ids(self) -> TxnSpec:
        if self.app_id in self.ignore:
            raise InvalidValue("other app ids", message=f"'{self.app_id}' is both used and ignored", key="ignore")
        return self

    def ignores(self, app_id: str) -> bool:
        """Whether the txns of an app id are ignored."""
        return app_id in self.ignore or "*" in self.ignore


def _expand(value: Any) -> Any:
    return {KAFKA_DELTA_INGEST: _DEFAULT_APP_ID} if value == KAFKA_DELTA_INGEST else value


Txn = Annotated[TxnSpec, BeforeValidator(_expand), Shorthand(enum=[KAFKA_DELTA_INGEST])]
