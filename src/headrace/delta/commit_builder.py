"""The lines of a commit, as the Delta protocol wants them in a version's JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from headrace.delta.actions import File, MetadataAction
from headrace.delta.receipt import Receipt
from headrace.delta.staged_file import StagedFile
from headrace.delta.txn import pipeline_of
from headrace.version import VERSION

_JSON = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)
ENGINE = f"headrace/{VERSION}"
CHANGE_DATA = "_change_data"  # the folder of a table for files of changed rows


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def timed(began: float | None) -> dict[str, str]:
    """How long an operation took since a moment of the monotonic clock, as one of its metrics; nothing without one."""
    return {} if began is None else {"executionTimeMs": str(max(1, round(1000 * (time.monotonic() - began))))}


def commit(lines: Iterable[Mapping[str, Any]]) -> bytes:
    """The JSON of a version."""
    return "\n".join(map(_JSON.encode, lines)).encode() + b"\n"


def add_actions(files: Sequence[StagedFile], *, new: bool = True) -> Iterator[dict[str, Any]]:
    """The staged files as the table's own; not `new` when others held their rows before.

    A path in the log is a URI: the escapes of a folder are escaped again.
    """
    at = now()
    for file in files:
        yield {
            "add": {
                "path": quote(file.path, safe="/=-_.~"),
                "partitionValues": dict(file.partition),
                "size": file.size,
                "modificationTime": at,
                "dataChange": new,
                "stats": file.stats,
            }
        }


def removes(files: Iterable[File], *, lost: bool = True) -> Iterator[dict[str, Any]]:
    """Files that the table no longer stands on, spelled as they were added; not `lost` when others hold their rows."""
    at = now()
    for file in files:
        yield {
            "remove": {
                "path": file.spelled,
                "deletionTimestamp": at,
                "dataChange": lost,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition),
                "size": file.size,
                **({"deletionVector": file.vector.action} if file.vector else {}),
            }
        }


def txns(versions: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """The `txn` actions; without `lastUpdated` a table that expires transactions would drop them."""
    at = now()
    return ({"txn": {"appId": name, "version": version, "lastUpdated": at}} for name, version in versions.items())


def appended(
    files: Sequence[StagedFile],
    number: tuple[str, int] | None,
    commit_id: str,
    account: Mapping[str, Any],
    instead: Sequence[File] | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """What an append says of itself, in Spark's words: a stream's for a batch, a plain write's for any other.

    `instead`: the files it replaces, where it is to replace some.
    """
    mode = "Append" if instead is None else "Overwrite"
    operation, parameters = "WRITE", {"mode": mode}
    if number is not None:
        operation = "STREAMING UPDATE"
        parameters = {"outputMode": mode, "queryId": pipeline_of(number[0]), "epochId": str(number[1])}
    removed = {} if instead is None else {"numRemovedFiles": str(len(instead))}
    metrics = _metrics(files) | removed | timed(began)
    return _info(operation, parameters, commit_id, account, blind=instead is None, metrics=metrics)


def created(
    metadata: MetadataAction,
    files: Sequence[StagedFile],
    commit_id: str,
    account: Mapping[str, Any],
    began: float | None = None,
) -> dict[str, Any]:
    """What the first version of a table says of itself."""
    parameters = {
        "partitionBy": json.dumps(list(metadata.partition_by)),
        "properties": json.dumps(dict(metadata.properties)),
        "isManaged": "false",
    }
    operation = "CREATE TABLE AS SELECT" if files else "CREATE TABLE"
    return _info(operation, parameters, commit_id, account, blind=True, metrics=_metrics(files) | timed(began))


def altered(
    operation: str, parameters: Mapping[str, str], commit_id: str, account: Mapping[str, Any]
) -> dict[str, Any]:
    """What a change of columns or properties says of itself."""
    return _info(operation, parameters, commit_id, account, blind=False, metrics={})


def forgotten(files: Sequence[File], commit_id: str, account: Mapping[str, Any]) -> dict[str, Any]:
    """What a repair says of itself, in the words of delta-rs."""
    return _info("FSCK", {}, commit_id, account, blind=False, metrics={"numRemovedFiles": str(len(files))})


@dataclass(frozen=True, slots=True)
class RowChange:
    """What becomes of rows when new files take the place of old ones, where they do not just move."""

    operation: str  # in Spark's words: MERGE, UPDATE, DELETE
    counts: Mapping[str, int]  # by the names of Spark's metrics
    feed: Sequence[StagedFile] = ()  # the changed rows, for a table that keeps change data


def rewritten(
    old: Sequence[File],
    new: Sequence[StagedFile],
    parameters: Mapping[str, str],
    commit_id: str,
    account: Mapping[str, Any],
    change: RowChange | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """What a compaction, or a change of rows, says of itself."""
    metrics = {
        "numRemovedFiles": str(len(old)),
        "numRemovedBytes": str(sum(file.size for file in old)),
        "numAddedFiles": str(len(new)),
        "numAddedBytes": str(sum(file.size for file in new)),
        **({name: str(count) for name, count in change.counts.items()} if change else {}),
        **timed(began),
    }
    return _info(
        change.operation if change else "OPTIMIZE", parameters, commit_id, account, blind=False, metrics=metrics
    )


def fed(change: RowChange | None) -> Iterator[dict[str, Any]]:
    """The files of changed rows; readers of the change data take these, and nothing else of the commit."""
    for file in change.feed if change else ():
        path = quote(f"{CHANGE_DATA}/{file.path}", safe="/=-_.~")
        yield {"cdc": {"path": path, "partitionValues": dict(file.partition), "size": file.size, "dataChange": False}}


def noted(operation: str, metrics: Mapping[str, str], commit_id: str, account: Mapping[str, Any]) -> dict[str, Any]:
    """What was done to the table beside its log."""
    return _info(operation, {}, commit_id, account, blind=True, metrics=metrics)


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
