"""The actions of a commit as the Delta protocol defines them, and its JSON."""

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
CHANGE_DATA = "_change_data"  # the folder of a table for the files of its change data feed


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def timed(began: float | None) -> dict[str, str]:
    """The metric with the duration of an operation that started at `began` (`time.monotonic`); empty if it is None."""
    return {} if began is None else {"executionTimeMs": str(max(1, round(1000 * (time.monotonic() - began))))}


def commit(lines: Iterable[Mapping[str, Any]], txns: Mapping[str, int] | None = None) -> bytes:
    """The JSON of a version, with its txns as the last lines."""
    return "\n".join([*map(_JSON.encode, lines), *_txns(txns or {})]).encode() + b"\n"


def add_actions(files: Sequence[StagedFile], *, data_change: bool = True) -> Iterator[dict[str, Any]]:
    """The `add` actions of staged files; no `data_change` if they contain the rows of removed files.

    A path in the log is URL-encoded, also the escapes of a folder: `day=a%2Fb` on disk is `day=a%252Fb` in the log.
    """
    at = now()
    for file in files:
        yield {
            "add": {
                "path": quote(file.path, safe="/=-_.~"),
                "partitionValues": dict(file.partition),
                "size": file.size,
                "modificationTime": at,
                "dataChange": data_change,
                "stats": file.stats,
            }
        }


def removes(files: Iterable[File], *, data_change: bool = True) -> Iterator[dict[str, Any]]:
    """The `remove` actions, with paths as in the `add`; no `data_change` if other files contain the rows."""
    at = now()
    for file in files:
        yield {
            "remove": {
                "path": file.log_path,
                "deletionTimestamp": at,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": dict(file.partition),
                "size": file.size,
                **({"deletionVector": file.vector.action} if file.vector else {}),
            }
        }


def _txns(versions: Mapping[str, int]) -> Iterator[str]:
    """The `txn` actions; without `lastUpdated`, a table that expires transactions drops them.

    Formatted, because a source has up to thousands of partitions, and each commit has a txn of every one.
    """
    at = now()
    for name, version in versions.items():
        yield f'{{"txn":{{"appId":{_JSON.encode(name)},"version":{version},"lastUpdated":{at}}}}}'


def append_info(
    files: Sequence[StagedFile],
    number: tuple[str, int] | None,
    commit_id: str,
    account: Mapping[str, Any],
    instead: Sequence[File] | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """The `commitInfo` of an append: STREAMING UPDATE for a batch, else WRITE; `instead`: the files it replaces."""
    mode = "Append" if instead is None else "Overwrite"
    operation, parameters = "WRITE", {"mode": mode}
    if number is not None:
        operation = "STREAMING UPDATE"
        parameters = {"outputMode": mode, "queryId": pipeline_of(number[0]), "epochId": str(number[1])}
    removed = {} if instead is None else {"numRemovedFiles": str(len(instead))}
    metrics = _metrics(files) | removed | timed(began)
    return _info(operation, parameters, commit_id, account, blind=instead is None, metrics=metrics)


def create_info(
    metadata: MetadataAction,
    files: Sequence[StagedFile],
    commit_id: str,
    account: Mapping[str, Any],
    began: float | None = None,
) -> dict[str, Any]:
    """The `commitInfo` of the first version."""
    parameters = {
        "partitionBy": json.dumps(list(metadata.partition_by)),
        "properties": json.dumps(dict(metadata.properties)),
        "isManaged": "false",
    }
    operation = "CREATE TABLE AS SELECT" if files else "CREATE TABLE"
    return _info(operation, parameters, commit_id, account, blind=True, metrics=_metrics(files) | timed(began))


def alter_info(
    operation: str, parameters: Mapping[str, str], commit_id: str, account: Mapping[str, Any]
) -> dict[str, Any]:
    """The `commitInfo` of a change of columns or properties."""
    return _info(operation, parameters, commit_id, account, blind=False, metrics={})


def repair_info(files: Sequence[File], commit_id: str, account: Mapping[str, Any]) -> dict[str, Any]:
    """The `commitInfo` of a repair; delta-rs names it FSCK."""
    return _info("FSCK", {}, commit_id, account, blind=False, metrics={"numRemovedFiles": str(len(files))})


@dataclass(frozen=True, slots=True)
class RowChange:
    """A rewrite that changes rows, not only their files."""

    operation: str  # as Spark names it: MERGE, UPDATE, DELETE
    counts: Mapping[str, int]  # operationMetrics
    feed: Sequence[StagedFile] = ()  # the changed rows, for the change data feed


def rewrite_info(
    old: Sequence[File],
    new: Sequence[StagedFile],
    parameters: Mapping[str, str],
    commit_id: str,
    account: Mapping[str, Any],
    change: RowChange | None = None,
    began: float | None = None,
) -> dict[str, Any]:
    """The `commitInfo` of a compaction or of a change of rows."""
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


def change_data_actions(change: RowChange | None) -> Iterator[dict[str, Any]]:
    """The `cdc` actions; readers of the change data feed use them instead of the other files of the commit."""
    for file in change.feed if change else ():
        path = quote(f"{CHANGE_DATA}/{file.path}", safe="/=-_.~")
        yield {"cdc": {"path": path, "partitionValues": dict(file.partition), "size": file.size, "dataChange": False}}


def note_info(operation: str, metrics: Mapping[str, str], commit_id: str, account: Mapping[str, Any]) -> dict[str, Any]:
    """The `commitInfo` of an operation outside of the log, as VACUUM."""
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


def receipt(uri: str, at: int, files: Sequence[StagedFile], *, skipped: bool = False, conflicts: int = 0) -> Receipt:
    """The receipt of a commit of these files."""
    rows, size = sum(file.rows for file in files), sum(file.size for file in files)
    return Receipt(uri, at, rows, len(files), size, skipped, conflicts=conflicts)
