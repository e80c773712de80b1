"""Daemon of Spark's Python workers that has imported the modules of a task before it forks a worker.

Spark starts it by `spark.python.daemon.module`. With Spark's own daemon every worker imports these modules again
(0.8 CPU-seconds) and has its own copy of them in memory (100 MB).
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import headrace.decode.json.decoder
import headrace.pipeline.task  # noqa: F401
from headrace.runtime.hidden_pandas import hidden_pandas

if __name__ == "__main__":
    gc.collect()
    gc.freeze()  # a collection in a worker would copy the pages of all these objects
    with hidden_pandas():
        manager()
