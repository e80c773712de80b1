"""The lines of a commit, as the Delta protocol wants them in a version's JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from headrace.batch import Receipt, StagedFile
from headrace.commit.marks import pipeline_of
from headrace.tables.log import Metadata
from headrace.version import VERSION

_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
ENGINE = f"headrace/{VERSION}"


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def commit(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """The JSON of a version."""
    return "\n".join(map(_JSON.encode, lines)).encode() + b"\n"


def adds(files: Sequence[StagedFile]) -> Iterator[dict[str, Any]]:
    """The staged files as the table's own. A path in the log is a URI: the escapes of a folder are escaped again."""
    at = now()
    for file in files:
        yield {
            "add": {
                "path": quote(file.path, safe="/=-_.~"),
                "partitionValues": dict(file.partition),
                "size": file.size,
                "modificationTime": at,
                "dataChange": True,
                "stats": file.stats,
            }
        }


def txns(marks: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The marks; without `lastUpdated` a table that expires transactions would drop them."""
    at = now()
    return ({"txn": {"appId": name, "version": mark, "lastUpdated": at}} for name, mark in marks.items())


def appended(
    files: Sequence[StagedFile], number: tuple[str, int] | None, commit_id: str, account: Mapping[str, Any]
) -> dict[str, Any]:
    """What an append says of itself, in the words Spark uses for a streaming sink."""
    parameters = {"outputMode": "Append"}
    if number is not None:
        parameters |= {"queryId": pipeline_of(number[0]), "epochId": str(number[1])}
    return _info("STREAMING UPDATE", parameters, commit_id, account, blind=True, metrics=_metrics(files))


def created(
    metadata: Metadata, files: Sequence[StagedFile], commit_id: str, account: Mapping[str, Any]
) -> dict[str, Any]:
    """What the first version of a table says of itself."""
    parameters = {
        "partitionBy": json.dumps(list(metadata.partition_by)),
        "properties": json.dumps(dict(metadata.properties)),
        "isManaged": "false",
    }
    operation = "CREATE TABLE AS SELECT" if files else "CREATE TABLE"
    return _info(operation, parameters, commit_id, account, blind=True, metrics=_metrics(files))


def evolved(schema_json: str, commit_id: str, account: Mapping[str, Any]) -> dict[str, Any]:
    """What a change of columns says of itself."""
    return _info("CHANGE COLUMNS", {"schema": schema_json}, commit_id, account, blind=False, metrics={})


def _info(
    operation: str,
    parameters: Mapping[str, str],
    commit_id: str,
    account: Mapping[str, Any],
    *,
    blind: bool,
    metrics: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "commitInfo": {
            "timestamp": now(),
            "operation": operation,
            "operationParameters": parameters,
            "isolationLevel": "WriteSerializable",
            "isBlindAppend": blind,
            "operationMetrics": metrics,
            "engineInfo": ENGINE,
            "txnId": commit_id,
            "headrace": account,
        }
    }


def _metrics(files: Sequence[StagedFile]) -> dict[str, str]:
    return {
        "numFiles": str(len(files)),
        "numOutputRows": str(sum(file.rows for file in files)),
        "numOutputBytes": str(sum(file.size for file in files)),
    }


def receipt(uri: str, at: int, files: Sequence[StagedFile], *, skipped: bool = False) -> Receipt:
    """What the table has to show for these files."""
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    return Receipt(uri, at, rows, len(files), size, skipped)
