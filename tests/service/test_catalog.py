"""Tables are registered in the Hive metastore of the caller's session, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import UsageError
from headrace.pipeline.catalog import CatalogTables, catalog_name
from headrace.runtime import jars
from headrace.runtime.java import find_java
from headrace.spec.route_id import RouteId
from headrace.validate.load import loads
from services.plans import spec_of

_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
import headrace

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars", sys.argv[1])
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    .config("spark.sql.warehouse.dir", sys.argv[3] + "/warehouse")
    .config("spark.hadoop.javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .enableHiveSupport()
    .getOrCreate()
)
spark.sql("CREATE DATABASE shop")
spark.sql("CREATE TABLE shop.signup (x int) USING delta")  # the name of another table
events = []
summary = headrace.run(sys.argv[2], until="latest", report=events.append, spark=spark)
print(json.dumps({
    "counts": {name: spark.table("shop." + name).count() for name in ("page_view", "purchase")},
    "routed": summary.tables,
    "events": [each for each in events if each["event"] == "catalog"],
}))
"""


@pytest.mark.slow
def test_tables_are_registered_in_a_hive_metastore(tmp_path: Path) -> None:
    spec = {
        "pipeline": "cataloged",
        "source": {"generate": {"records": 300, "bad_ratio": 0}},
        "route": {"by": {"field": "type"}},
        "table": {"path": "./lake/{route}", "catalog_table": "shop.{route}"},
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    (tmp_path / "program.py").write_text(_PROGRAM)
    delta = ",".join(str(path) for path in jars.ensure("spark"))
    done = subprocess.run(
        [sys.executable, "program.py", delta, "spec.yaml", str(tmp_path)],
        cwd=tmp_path,
        env={
            **os.environ,
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    rows = {Path(path).name: count for path, count in result["routed"].items()}
    assert result["counts"] == {name: rows[name] for name in ("page_view", "purchase")}
    errors = {each["name"]: each["error"] for each in result["events"]}
    assert errors.keys() == {"shop.page_view", "shop.purchase", "shop.signup"}
    assert errors["shop.page_view"] is None
    assert "names another table" in errors["shop.signup"]


def test_names_in_a_catalog_have_no_dots_of_the_route() -> None:
    assert catalog_name("main.shop.{route}", RouteId("", "web.page-view")) == ("main", "shop", "web_page_view")
    assert catalog_name("{topic}.{route}", RouteId("", "orders:new")) == ("orders", "new")
    assert catalog_name("shop.{topic}", RouteId("", "orders")) == ("shop", "orders")


class _NoCatalog:
    """The settings of a session that Headrace starts."""

    class conf:
        getAll = {"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"}  # noqa: RUF012

        @staticmethod
        def get(name: str, default: str) -> str:
            return "in-memory"


def test_a_session_without_a_catalog_is_an_error_before_the_first_batch() -> None:
    spec = spec_of(table={"catalog_table": "shop.events"})
    with pytest.raises(UsageError, match="neither a Hive metastore nor another catalog"):
        CatalogTables(spec, print).check(_NoCatalog)  # type: ignore[arg-type]
    CatalogTables(spec_of(), print).check(_NoCatalog)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "path", "found"),
    [
        ("shop.{route}", "./lake/{route}", None),
        ("shop.events", "./lake/{route}", "the same name for all routes"),
        ("shop.{kind}", "./lake/{route}", "an unknown variable"),
        ("shop.events", "./lake/events", None),
        ("shop.{route}", "./lake/events", "{route} requires a route"),
    ],
)
def test_the_name_has_the_variables_of_the_path(tmp_path: Path, name: str, path: str, found: str | None) -> None:
    route = {"route": {"by": "topic"}} if "{" in path else {}
    content = {
        "pipeline": "web",
        "source": {"kafka": {"brokers": "localhost:9092", "topics": ["a", "b"]}},
        "table": {"path": path, "catalog_table": name},
        **route,
    }
    if found is None:
        assert loads(json.dumps(content), tmp_path)
    else:
        with pytest.raises(UsageError, match=found.replace("{", r"\{")):
            loads(json.dumps(content), tmp_path)
