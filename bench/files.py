"""Files of JSON lines as a source, and `spark.read.json` of the same files into a Delta table."""

from __future__ import annotations

from bench.runs import Bench, Figures

KIND, FILES = "plain", 8


def files(bench: Bench) -> list[Figures]:
    """Read the same files with each; Spark is given the schema, and writes no positions of records."""
    count = bench.scale.records
    folder = bench.folder / "files"
    folder.mkdir()
    values = bench.topics.values(KIND, count)
    for number in range(FILES):
        (folder / f"{number}.jsonl").write_bytes(b"\n".join(values[number::FILES]) + b"\n")
    drain = {"topic": bench.topics.filled(KIND, bench.scale.warm), "records": count, "headers": False}
    source = {"source": {"files": {"path": str(folder), "settle": "0s"}}}
    return [
        *bench.run("headrace", [{**drain, "label": "files, Headrace", "spec": source}]),
        *bench.run("read json", [{"label": "files, spark.read.json", "records": count, "path": str(folder)}]),
    ]
