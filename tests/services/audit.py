"""The audit: what is in the lake against what is in the topic, by readers that are not ours.

A read_committed consumer of librdkafka says which records there are, delta-rs which rows; the tables' logs are read as
the JSON they are. Each record must be in exactly one place, unchanged, and the ledger must say the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from deltalake import DeltaTable
from obstore.store import AzureStore, GCSStore, LocalStore, S3Store

from headrace.spec import Spec
from services.kafka import Seen, ends, read_all

DEAD, FILTERED = "dead letters", "filtered"
Place = tuple[str, int, int]  # topic, partition, offset
_STORES: dict[str, Any] = {"s3": S3Store, "az": AzureStore, "gs": GCSStore}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a record belongs: a route, `DEAD` or `FILTERED`; and the row it becomes."""

    place: str
    row: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Audit:
    """What was found; `problems` is empty when all is well."""

    records: int = 0
    rows: dict[str, int] = field(default_factory=dict)  # by route
    dead_letters: int = 0
    filtered: int = 0
    batches: list[dict[str, Any]] = field(default_factory=list)  # the ledger's rows
    orphans: int = 0  # data files that no commit names
    problems: list[str] = field(default_factory=list)


def by_kind(record: Seen) -> Verdict:
    """The fate of the records of `services.pipelines` under its specs."""
    try:
        event = json.loads(record.value or b"")
    except ValueError:
        return Verdict(DEAD)
    if event.get("keep") is False:
        return Verdict(FILTERED)
    return Verdict(event["kind"], event)


def audit(
    bootstrap: str,
    topics: Iterable[str],
    spec: Spec,
    judge: Callable[[Seen], Verdict] = by_kind,
    *,
    drained: bool = True,
) -> Audit:
    """Compare everything; AssertionError with what is wrong. Not `drained`: records past the ledger are not due yet."""
    lake = Lake(spec)
    seen = read_all(bootstrap, list(topics))
    found = Audit(batches=lake.ledger())
    reached = _ranges_meet(found, {(t, p): at for t in topics for p, at in ends(bootstrap, t).items()}, drained)
    due = [each for each in seen if each.offset < reached.get((each.topic, each.partition), 0)]
    found.records = len(due)
    _places(found, lake, {(each.topic, each.partition, each.offset): each for each in due}, judge)
    _account(found, due)
    for path in [*lake.tables().values(), spec.dead_letters_uri, f"{spec.state_uri}/ledger"]:
        _log(found, lake, path)
    assert not found.problems, "\n".join(found.problems[:20])
    return found


def contents(bootstrap: str, topics: Iterable[str], spec: Spec, judge: Callable[[Seen], Verdict] = by_kind) -> Audit:
    """Compare the records of whole topics with the tables alone: for a ledger that was lost or tells of refills."""
    lake = Lake(spec)
    due = {(each.topic, each.partition, each.offset): each for each in read_all(bootstrap, list(topics))}
    found = Audit(len(due), batches=lake.ledger())
    _places(found, lake, due, judge)
    assert not found.problems, "\n".join(found.problems[:20])
    return found


class Lake:
    """The storage of a spec, seen without Headrace."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.options = _options(spec)

    def store(self, uri: str) -> Any:
        """A client of one folder."""
        if "://" not in uri:
            return LocalStore(uri, mkdir=True)
        scheme, _, path = uri.partition("://")
        bucket, _, prefix = path.partition("/")
        config = {name: value for name, value in self.options.items() if not name.endswith("allow_http")}
        return _STORES[scheme](bucket, prefix=prefix, config=config, client_options={"allow_http": True})

    def files(self, uri: str) -> list[str]:
        """Every file below a folder."""
        return sorted(item["path"] for part in self.store(uri).list() for item in part)

    def tables(self) -> dict[str, str]:
        """Every table beside the state folder, known to anybody or not: route and URI."""
        base = self.spec.base_uri
        logs = {path.partition("/_delta_log/")[0] for path in self.files(base) if "/_delta_log/" in path}
        return {name: f"{base}/{name}" for name in sorted(logs) if not name.startswith("_headrace/")}

    def rows(self, uri: str) -> list[dict[str, Any]]:
        """All rows of a table, by delta-rs; none where there is no table."""
        if not DeltaTable.is_deltatable(uri, self.options or None):
            return []
        return DeltaTable(uri, storage_options=self.options or None).to_pyarrow_table().to_pylist()

    def dead_letters(self) -> list[dict[str, Any]]:
        """The dead letters."""
        return self.rows(self.spec.dead_letters_uri)

    def ledger(self) -> list[dict[str, Any]]:
        """The ledger's rows, in order."""
        return sorted(self.rows(f"{self.spec.state_uri}/ledger"), key=lambda row: row["batch"])

    def log(self, uri: str) -> list[list[dict[str, Any]]]:
        """The actions of each version of a table."""
        store = self.store(f"{uri}/_delta_log")
        names = sorted(item["path"] for part in store.list() for item in part if item["path"].endswith(".json"))
        texts = [store.get(name).bytes().to_bytes() for name in names if "/" not in name]
        return [[json.loads(line) for line in text.splitlines()] for text in texts]


def _options(spec: Spec) -> dict[str, str]:
    """Storage options of delta-rs and object_store, from the keys of the spec."""
    s3, azure, gcs = spec.storage.s3, spec.storage.azure, spec.storage.gcs
    if s3.endpoint:
        options = {
            "aws_endpoint": s3.endpoint,
            "aws_access_key_id": s3.access_key_id or "",
            "aws_secret_access_key": s3.secret_access_key.reveal() if s3.secret_access_key else "",
            "aws_region": s3.region or "us-east-1",
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }
        return options | ({"aws_session_token": s3.session_token.reveal()} if s3.session_token else {})
    if azure.endpoint:
        return {
            "azure_storage_account_name": azure.account_name or "",
            "azure_storage_account_key": azure.account_key.reveal() if azure.account_key else "",
            "azure_storage_endpoint": azure.endpoint,
            "azure_allow_http": "true",
        }
    if gcs.endpoint:
        nobody = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
        key = {"gcs_base_url": gcs.endpoint} | nobody
        return {"google_service_account_key": json.dumps(key), "allow_http": "true"}
    return {}


def _places(found: Audit, lake: Lake, due: Mapping[Place, Seen], judge: Callable[[Seen], Verdict]) -> None:
    """Every record in exactly one place, and unchanged."""
    verdicts = {at: judge(record) for at, record in due.items()}
    for name, path in lake.tables().items():
        rows = {}
        for row in lake.rows(path):
            source = row.pop("_source")
            at = (source["topic"], source["partition"], source["offset"])
            _once(found, rows, at, name)
            rows[at] = row
            if at in due and source["timestamp"] != _moment(due[at].timestamp):
                found.problems.append(f"{name}: {at} has another timestamp")
        _same(found, name, {at: _filled(row) for at, row in rows.items()}, verdicts)
        found.rows[name] = len(rows)
    for name in {verdict.place for verdict in verdicts.values()} - {*found.rows, DEAD, FILTERED}:
        found.problems.append(f"lost: there is no table for '{name}'")
    _letters(found, lake, due, verdicts)
    found.filtered = sum(verdict.place == FILTERED for verdict in verdicts.values())


def _letters(found: Audit, lake: Lake, due: Mapping[Place, Seen], verdicts: Mapping[Place, Verdict]) -> None:
    letters: dict[Place, Any] = {}
    for row in lake.dead_letters():
        at = (row["topic"], row["partition"], row["offset"])
        _once(found, letters, at, DEAD)
        letters[at] = row
        headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
        if at in due and (row["key"], row["value"], headers) != (due[at].key, due[at].value, due[at].headers):
            found.problems.append(f"changed: the letter of {at} has other bytes")
    _same(found, DEAD, {at: {} for at in letters}, verdicts)
    found.dead_letters = len(letters)


def _once(found: Audit, there: Mapping[Place, Any], at: Place, name: str) -> None:
    if at in there:
        found.problems.append(f"doubled: {at} in {name}")


def _same(found: Audit, name: str, rows: Mapping[Place, Mapping[str, Any]], verdicts: Mapping[Place, Verdict]) -> None:
    wanted = {at: _filled(verdict.row) for at, verdict in verdicts.items() if verdict.place == name}
    found.problems += [f"lost: {at} from {name}" for at in sorted(wanted.keys() - rows.keys())]
    found.problems += [f"misplaced: {at} in {name}" for at in sorted(rows.keys() - wanted.keys())]
    for at in wanted.keys() & rows.keys():
        if rows[at] != wanted[at]:
            found.problems.append(f"changed: {at} in {name} is {rows[at]}, was sent as {wanted[at]}")


def _filled(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _moment(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _ranges_meet(
    found: Audit, bounds: Mapping[tuple[str, int], tuple[int, int]], drained: bool
) -> dict[tuple[str, int], int]:
    """The ledger's ranges begin at the first record and meet; answers how far they reach."""
    reached: dict[tuple[str, int], int] = {}
    for number, row in enumerate(found.batches, 1):
        if row["batch"] != number:
            found.problems.append(f"batch {number} is booked as {row['batch']}")
        for item in row["ranges"]:
            at = (item["topic"], item["partition"])
            if item["from"] != reached.get(at, bounds[at][0]):
                found.problems.append(f"batch {number}: hole or overlap at {at}: {item} after {reached.get(at)}")
            reached[at] = item["until"]
    if drained:
        left = {at: high for at, (low, high) in bounds.items() if high > low and reached.get(at) != high}
        found.problems += [
            f"not read to the end: {at} to {high}, reached {reached.get(at)}" for at, high in left.items()
        ]
    return reached


def _account(found: Audit, due: Iterable[Seen]) -> None:
    """Each batch adds up, counts what the consumer saw in its ranges, and all together count what is in the lake."""
    seen = Counter((each.topic, each.partition, each.offset) for each in due)
    for row in found.batches:
        if row["read"] != row["routed"] + row["dead"] + row["filtered"] + row["skipped"]:
            found.problems.append(f"batch {row['batch']} does not add up: {row}")
        spans = [(r["topic"], r["partition"], n) for r in row["ranges"] for n in range(r["from"], r["until"])]
        there = sum(at in seen for at in spans)
        if row["read"] != there:
            found.problems.append(f"batch {row['batch']} says it read {row['read']}, its ranges hold {there}")
    counted = {name: sum(row[name] for row in found.batches) for name in ("read", "routed", "dead", "filtered")}
    there = {
        "read": found.records,
        "routed": sum(found.rows.values()),
        "dead": found.dead_letters,
        "filtered": found.filtered,
    }
    if counted != there:
        found.problems.append(f"the ledger counts {counted}, there are {there}")


def _log(found: Audit, lake: Lake, path: str) -> None:
    """Marks only grow, each batch is in a table once, and the ledger's receipts name the versions that hold it."""
    batch_mark = f"headrace:{lake.spec.pipeline}"
    last: dict[str, int] = {}
    held: dict[tuple[int, int], int] = {}  # rows by (version, batch)
    files = 0
    for version, actions in enumerate(lake.log(path)):
        marks = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
        adds = [each["add"] for each in actions if "add" in each]
        back = [name for name, value in marks.items() if value < last.get(name, -1) + (name == batch_mark)]
        found.problems += [f"{path}: version {version} sets {name} to {marks[name]} from {last[name]}" for name in back]
        if adds and batch_mark not in marks:
            found.problems.append(f"{path}: version {version} adds rows without a mark")
        last |= marks
        files += len(adds)
        held[version, marks.get(batch_mark, 0)] = sum(json.loads(each["stats"])["numRecords"] for each in adds)
    _receipts(found, path, held)
    data = [name for name in lake.files(path) if name.endswith(".parquet") and not name.startswith("_delta_log/")]
    found.orphans += len(data) - files


def _receipts(found: Audit, path: str, held: Mapping[tuple[int, int], int]) -> None:
    for row in found.batches:
        for receipt in (each for each in row["tables"] if each["path"] == path):
            if held.get((receipt["version"], row["batch"])) != receipt["rows"]:
                found.problems.append(f"batch {row['batch']}: {receipt} is not what the log of {path} says")
