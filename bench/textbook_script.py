"""A plain PySpark script: `readStream` from Kafka, `from_json`, Delta sink. It does not import Headrace.

Run: python bench/textbook_script.py ORDER — an order has class path, options of the source, schema, trigger and folder.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

SETTINGS = {
    "spark.master": "local[*]",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def main(order: dict[str, Any]) -> None:
    """Run the query until it ends, or until SIGTERM."""
    builder = SparkSession.builder.appName("textbook").config("spark.driver.extraClassPath", order["class_path"])
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    source = spark.readStream.format("kafka").options(**order["options"]).load()
    rows = source.select(
        F.from_json(F.col("value").cast("string"), order["schema"]).alias("event"),
        F.struct("topic", "partition", "offset", "timestamp").alias("_source"),
    ).select("event.*", "_source")
    sink = rows.writeStream.format("delta").option("checkpointLocation", f"{order['folder']}/checkpoint")
    query = sink.trigger(**order["trigger"]).start(order["table"])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    while not stop.is_set() and not query.awaitTermination(1):
        pass
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
