"""What a pipeline asks of its Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.errors import SetupError
from headrace.pipeline.spark_session import SharedSession, jar_groups, token_urls
from headrace.runtime import jars
from services.plans import spec_of

UPSERT = {"mode": "upsert", "merge": {"keys": ["id"]}}
WIDENS = {"features": ["typeWidening"]}


@pytest.mark.parametrize(
    ("table", "more", "groups"),
    [
        ({"path": "s3://lake/{route}"}, {}, {"s3"}),  # a table of a route may require Spark
        ({"path": "s3://lake/{route}", **UPSERT}, {}, {"s3"}),
        ({"path": "az://lake/{route}", **WIDENS}, {"state": "s3://lake/state"}, {"azure", "s3"}),
        ({"path": "./lake/{route}", **UPSERT}, {}, set()),
    ],
    ids=["appends", "merges", "widens on another store than the state", "merges on disk"],
)
def test_jars_of_object_stores_where_spark_may_write(
    table: dict[str, Any], more: dict[str, Any], groups: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "lake")
    spec = spec_of(table=table, route={"by": {"field": "kind"}}, **more)
    assert jar_groups(spec) == groups


def test_jars_and_token_urls_of_brokers() -> None:
    msk = spec_of(source=kafka({"mechanism": "AWS_MSK_IAM", "region": "eu-central-1"}), table={"path": "./lake/t"})
    assert jar_groups(msk) == {"msk"}
    oauth = {"mechanism": "OAUTHBEARER", "token_file": "/run/token"}
    assert token_urls([msk, spec_of(source=kafka(oauth), table={"path": "./lake/t"})]) == ("file:///run/token",)


def test_downloads_of_a_first_start_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(coordinates: list[str], scratch: Path, progress: jars.ReportDownload) -> dict[str, Path]:
        progress("  one.jar")
        raise SetupError("No network.")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "resolve_jars", refuse)
    monkeypatch.setattr("headrace.runtime.session._shared", None)  # the session of other tests
    events: list[dict[str, Any]] = []
    specs = [spec_of(pipeline=name, table={"path": f"./lake/{name}"}) for name in ("a", "b")]
    with pytest.raises(SetupError):
        SharedSession(specs, report=events.append).get()
    assert {event["event"] for event in events} == {"setup"}
    texts = [(event["pipeline"], event["text"]) for event in events]
    assert texts[:2] == [("a", "Starting Spark…"), ("b", "Starting Spark…")]
    assert texts[2][1].startswith("Downloading ")
    assert texts[3:] == [("a", "  one.jar")]


def kafka(sasl: dict[str, str]) -> dict[str, Any]:
    return {"kafka": {"brokers": "localhost:9092", "topics": ["t"], "sasl": sasl}}
