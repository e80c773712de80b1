"""Rules for `spark`: masters, settings and paths that executors must reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.dev.kafka import free_ports
from headrace.spec.spark_settings import SPARK_SETTINGS
from headrace.validate.load import examine_text, loads
from headrace.validate.online import online

CLUSTER = "spark://10.0.0.1:7077"


def messages(tmp_path: Path, spark: dict[str, Any], path: str = "s3://lake/events", **more: Any) -> list[str]:
    content = {
        "pipeline": "shop",
        "source": {"generate": {}},
        "table": {"path": path},
        "spark": spark,
        **more,
    }
    _, diagnostics = examine_text(json.dumps(content), tmp_path, "shop.yaml")
    return [f"{each.key}: {each.message}" for each in diagnostics]


@pytest.mark.parametrize("master", ["local[*]", "local[4]", CLUSTER, "spark://a:1,b:2", "yarn", "k8s://https://h:443"])
def test_masters(tmp_path: Path, master: str) -> None:
    assert messages(tmp_path, {"master": master}) == []


@pytest.mark.parametrize("master", ["local", "local[0]", "spark://a", "mesos://a:1", "YARN", "k8s://", ""])
def test_other_masters_are_rejected(tmp_path: Path, master: str) -> None:
    assert len(messages(tmp_path, {"master": master})) == 1


def test_local_paths_need_a_shared_mount_on_a_cluster(tmp_path: Path) -> None:
    spark = {"master": CLUSTER}
    (found,) = messages(tmp_path, spark, "/lake/events")
    assert "table.path: /lake/events is a local path" in found
    assert len(messages(tmp_path, spark, "/lake/events", state="/state")) == 2
    assert messages(tmp_path, {**spark, "shared_mounts": ["/lake"]}, "/lake/events") == []
    assert len(messages(tmp_path, {**spark, "shared_mounts": ["/lak"]}, "/lake/events")) == 1
    assert messages(tmp_path, {"master": "local[*]"}, "/lake/events") == []


def test_keys_of_the_other_kind_of_master(tmp_path: Path) -> None:
    assert "only one of them" not in messages(tmp_path, {"cores": 2})
    assert messages(tmp_path, {"cores": 2}) == []
    assert messages(tmp_path, {"master": "local[2]", "cores": 2}) == ["spark.cores: cores with local[2]"]
    assert messages(tmp_path, {"master": CLUSTER, "cores": 2}) == ["spark.cores: cores with a cluster"]
    assert messages(tmp_path, {"executors": {"cores": 2}}) == ["spark.executors: not used with local[*]"]


def test_brokers_on_loopback_addresses_are_doubtful_on_a_cluster(tmp_path: Path) -> None:
    source = {"kafka": {"brokers": "localhost:9092", "topics": ["t"]}}
    (found,) = messages(tmp_path, {"master": CLUSTER}, source=source)
    assert found.startswith("source.kafka.brokers: loopback addresses")
    assert messages(tmp_path, {"master": "spark://127.0.0.1:7077"}, source=source) == []


@pytest.mark.parametrize("name", [*SPARK_SETTINGS, "spark.executorEnv.LANG", "spark.kubernetes.node.selector.pool"])
def test_allowed_settings(tmp_path: Path, name: str) -> None:
    assert messages(tmp_path, {"master": CLUSTER, "conf": {name: "1"}}) == []


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("spark.master", "use `master`"),
        ("spark.driver.memory", "use `memory`"),
        ("spark.executor.instances", "use `executors`"),
        ("spark.executor.memory", "use `executors`"),
        ("spark.jars", "use `environment`"),
        ("spark.jars.packages", "use `environment`"),
        ("spark.archives", "use `environment`"),
        ("spark.python.daemon.module", "use `environment`"),
        ("spark.pyspark.python", "use `environment`"),
        ("spark.executorEnv.PYTHONPATH", "use `environment`"),
        ("spark.executor.extraJavaOptions", "options of a JVM can load code"),
        ("spark.driver.extraClassPath", "classes cannot be loaded"),
        ("spark.plugins", "classes cannot be loaded"),
        ("spark.sql.extensions", "classes cannot be loaded"),
        ("spark.extraListeners", "classes cannot be loaded"),
        ("spark.hadoop.fs.s3a.secret.key", "use `storage`"),
        ("spark.sql.session.timeZone", "results could change"),
        ("spark.databricks.delta.snapshotPartitions", "results could change"),
        ("spark.authenticate.secret", "_SPARK_AUTH_SECRET"),
        ("spark.executorEnv.AWS_SECRET_ACCESS_KEY", "secrets travel with the tasks"),
        ("spark.local.dir", "configure it on the nodes"),
        ("spark.taskmaxFailures", "unknown setting"),
    ],
)
def test_refused_settings_have_a_reason(tmp_path: Path, name: str, reason: str) -> None:
    (found,) = messages(tmp_path, {"master": CLUSTER, "conf": {name: "1"}})
    assert reason in found


def test_an_unreachable_master_and_a_missing_archive_are_found_online(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    port = next(iter(free_ports()))
    content = {
        "pipeline": "shop",
        "source": {"generate": {}},
        "table": {"path": str(tmp_path / "events")},
        "spark": {"master": f"spark://127.0.0.1:{port}", "shared_mounts": [str(tmp_path)]},
    }
    (spec,) = loads(json.dumps(content), tmp_path)
    (found,) = [each for each in online(spec) if each.key.startswith("spark")]
    assert "headrace setup --pack" in f"{found}"
    (spec,) = loads(json.dumps(content | {"spark": {**content["spark"], "environment": "installed"}}), tmp_path)
    (found,) = [each for each in online(spec) if each.key.startswith("spark")]
    assert f"no master accepts connections: 127.0.0.1:{port}: Connection refused" in found.message
