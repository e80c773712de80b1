"""Register tables in a catalog of the Spark session: a Hive metastore or Unity Catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from headrace.errors import UsageError, first_line
from headrace.pipeline.events import Report
from headrace.spec import Spec
from headrace.spec.route_id import RouteId
from headrace.storage.store import Store
from headrace.write.merge_sql import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_UNSUPPORTED = re.compile(r"[^A-Za-z0-9_]")


class CatalogTables:
    """Names of a pipeline's tables in the catalog, which only maps names to paths: it has no part in commits."""

    def __init__(self, spec: Spec, report: Report) -> None:
        self._spec, self._report = spec, report
        self._registered: set[str] = set()
        self._failed: set[str] = set()

    @property
    def is_used(self) -> bool:
        """Whether any table has a name in a catalog."""
        rules = (rules for branch in self._spec.branch_specs().values() for rules in branch.all_rules())
        return any(each.catalog_table is not None for each in rules)

    def check(self, spark: SparkSession) -> None:
        """UsageError if the session has no catalog that outlives it."""
        if self.is_used and spark.conf.get("spark.sql.catalogImplementation", "") != "hive" and not _catalogs(spark):
            raise UsageError(
                "table.catalog_table is set, but the Spark session has neither a Hive metastore nor another catalog.",
                hint="Pass a session that has one: headrace.run(spec, spark=session).",
            )

    def register(self, spark: SparkSession, stores: Iterable[Store]) -> None:
        """Register tables that are not registered yet; a failure is reported once, and repeated with the next batch."""
        for store in stores:
            name = self._name(store.uri)
            if name is not None and store.uri not in self._registered:
                self._register(spark, store, name)

    def _name(self, uri: str) -> tuple[str, ...] | None:
        route_id = self._spec.route_of(uri)
        template = None if route_id is None else self._spec.table_for(route_id).catalog_table
        return None if route_id is None or template is None else catalog_name(template, route_id)

    def _register(self, spark: SparkSession, store: Store, name: tuple[str, ...]) -> None:
        quoted = ".".join(map(quote_identifier, name))
        try:
            if spark.catalog.tableExists(quoted):
                location = spark.sql(f"DESCRIBE DETAIL {quoted}").select("location").first()[0]
                problem = "" if _same_path(location, store.spark_uri) else f"it names another table, {location}"
            else:
                location = store.spark_uri.replace("\\", "\\\\").replace("'", "\\'")
                spark.sql(f"CREATE TABLE IF NOT EXISTS {quoted} USING delta LOCATION '{location}'")
                problem = ""
        except Exception as error:  # the table is committed, and its readers can use the path
            problem = first_line(error)
        if not problem:
            self._registered.add(store.uri)
            self._failed.discard(store.uri)
            self._event(store, name, None)
        elif store.uri not in self._failed:
            self._failed.add(store.uri)
            self._event(store, name, problem)

    def _event(self, store: Store, name: tuple[str, ...], problem: str | None) -> None:
        dotted = ".".join(name)
        text = (
            f"{store.uri} is {dotted} in the catalog" if problem is None else f"{dotted} is not registered: {problem}"
        )
        event: dict[str, Any] = {"event": "catalog", "pipeline": self._spec.pipeline, "table": store.uri}
        self._report(event | {"name": dotted, "error": problem, "text": text})


def catalog_name(template: str, route_id: RouteId) -> tuple[str, ...]:
    """Parts of the name of a route's table. Metastores accept no '.' and '-' in names: `{route}` gets '_' instead."""
    topic, _, route = route_id.route.rpartition(":")
    parts = template.split(".")
    values = {"{topic}": _UNSUPPORTED.sub("_", topic or route), "{route}": _UNSUPPORTED.sub("_", route)}
    for variable, value in values.items():
        parts = [part.replace(variable, value) for part in parts]
    return tuple(parts)


def _catalogs(spark: SparkSession) -> list[str]:
    """Catalogs of the session besides Spark's own."""
    names = (
        name.removeprefix("spark.sql.catalog.") for name in spark.conf.getAll if name.startswith("spark.sql.catalog.")
    )
    return [name for name in names if "." not in name and name != "spark_catalog"]


def _same_path(one: str, two: str) -> bool:
    return _plain(one) == _plain(two)


def _plain(uri: str) -> str:
    """URI without differences in spelling: `file:/x`, `file:///x` and `/x` are the same path."""
    return re.sub(r"^file:/+", "/", uri).rstrip("/")
