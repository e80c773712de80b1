"""A GCS server (fake-gcs-server) as a child, behind a gate that speaks the XML API.

The server has Google's JSON API, with generation preconditions. Its XML API, which object_store uses, has no plain
puts, no preconditions, no multipart uploads and no order of listings: the gate sends these requests to the JSON API.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from xml.sax.saxutils import escape

from headrace.dev.kafka import free_ports
from headrace.runtime.child_process import Child, spawn
from services.azure import answers
from services.programs import FAKE_GCS, go_program
from services.s3gate import Answer, Passage, s3gate
from services.wait import eventually


@dataclass(slots=True)
class GcsServer:
    """Where the server is."""

    endpoint: str
    child: Child

    @property
    def settings(self) -> dict[str, object]:
        """The keys of `storage.gcs` in a spec."""
        return {"endpoint": self.endpoint, "allow_http": True}

    def bucket(self) -> str:
        """Make a bucket of a new name."""
        name = f"b-{uuid.uuid4().hex[:12]}"
        body, kind = json.dumps({"name": name}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.endpoint}/storage/v1/b?project=test", body, kind)  # noqa: S310
        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
        return name


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """Run the server and its gate for the length of the block."""
    port = next(iter(free_ports()))
    address, log = f"127.0.0.1:{port}", folder / "gcs.log"
    command = [str(go_program(FAKE_GCS)), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", address, "-log-level", "warn"]
    child = spawn(command, log=log)
    try:
        upstream = f"http://{address}"
        eventually(lambda: answers(f"{upstream}/storage/v1/b?project=test", child), within=30, say=log.read_text)
        with _gate(upstream, folder / "gate.log") as endpoint:
            yield GcsServer(endpoint, child)
    finally:
        child.stop()


@contextmanager
def _gate(upstream: str, log: Path) -> Iterator[str]:
    """Run the gate in a process of its own: some calls of delta-rs and pyarrow block all threads of theirs."""
    child = spawn(
        [sys.executable, "-m", __name__, upstream], log=log, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    try:
        yield eventually(lambda: log.read_text().strip(), within=30, say="the gate answers")
    finally:
        child.stop()


class _XmlApi(Passage):
    """Requests of the XML API as requests of the JSON API; all others are forwarded."""

    uploads: dict[str, dict[int, bytes]] = {}  # noqa: RUF012  # parts by upload

    def forward(self, body: bytes) -> Answer:
        url = urlsplit(self.path)
        bucket, _, key = url.path.lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        if bucket in ("storage", "upload", "download", "batch", "resumable"):
            return self._json_api(body)
        if not key:
            return self._list(bucket, query)
        key = unquote(key)
        if "uploads" in query or "uploadId" in query:
            return self._multipart(bucket, key, query, body)
        if self.command == "PUT":
            return self._put(bucket, key, body)
        return super().forward(body)

    def _json_api(self, body: bytes) -> Answer:
        """Forward; the server names its own address in the URLs of resumable uploads."""
        status, headers, content = super().forward(body)
        server = "http://{}:{}".format(*self.gate.upstream)
        return status, [(name, value.replace(server, self.gate.endpoint)) for name, value in headers], content

    def _put(self, bucket: str, key: str, body: bytes) -> Answer:
        query = {"uploadType": "media", "name": key}
        if generation := self.headers.get("x-goog-if-generation-match"):
            query["ifGenerationMatch"] = generation
        path = f"/upload/storage/v1/b/{bucket}/o?{urlencode(query)}"
        if source := self.headers.get("x-goog-copy-source"):
            source_bucket, _, source_key = unquote(source).lstrip("/").partition("/")
            path = f"/storage/v1/b/{source_bucket}/o/{quote(source_key, '')}/copyTo/b/{bucket}/o/{quote(key, '')}"
        status, _, content = self._ask("POST", path, body)
        if status == 404:
            return _missing_bucket()
        if status != 200:
            return status, [("Content-Length", str(len(content)))], content
        meta = json.loads(content)
        return 200, [("ETag", _tag(meta)), ("x-goog-generation", meta["generation"]), ("Content-Length", "0")], b""

    def _multipart(self, bucket: str, key: str, query: dict[str, str], body: bytes) -> Answer:
        if "uploads" in query:
            upload = uuid.uuid4().hex
            self.uploads[upload] = {}
            return _xml(f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>")
        if self.command == "PUT":
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
            return 200, [("ETag", f'"{query["partNumber"]}"'), ("Content-Length", "0")], b""
        parts = self.uploads.pop(query["uploadId"], {})
        if self.command == "DELETE":
            return 204, [("Content-Length", "0")], b""
        status, headers, content = self._put(bucket, key, b"".join(parts[number] for number in sorted(parts)))
        tag = dict(headers).get("ETag", "")
        if status != 200:
            return status, headers, content
        return _xml(f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag></CompleteMultipartUploadResult>")

    def _list(self, bucket: str, query: dict[str, str]) -> Answer:
        after = query.get("start-after", "")
        names = {"prefix": "prefix", "delimiter": "delimiter", "continuation-token": "pageToken"}
        asked = {theirs: query[ours] for ours, theirs in names.items() if query.get(ours)}
        asked |= {"startOffset": after} if after else {}
        status, _, content = self._ask("GET", f"/storage/v1/b/{bucket}/o?{urlencode(asked)}&maxResults=1000", b"")
        if status == 404:
            return _missing_bucket()
        page: dict[str, Any] = json.loads(content)
        items = "".join(_item(each) for each in page.get("items", []) if each["name"] > after)
        folders = "".join(
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in page.get("prefixes", [])
        )
        token = page.get("nextPageToken")
        more = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>" if token else ""
        return _xml(f"<ListBucketResult>{items}{folders}{more}</ListBucketResult>")

    def ask(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
        """Ask the server under its own name, by which it tells objects from buckets."""
        others = [pair for pair in headers if pair[0].lower() != "host"]
        return super().ask(method, path, [("Host", "{}:{}".format(*self.gate.upstream)), *others], body)

    def _ask(self, method: str, path: str, body: bytes) -> Answer:
        return self.ask(method, path, [("Content-Length", str(len(body)))], body)


def _missing_bucket() -> Answer:
    return _xml("<Error><Code>NoSuchBucket</Code><Message>The bucket does not exist.</Message></Error>", 404)


def _tag(meta: dict[str, Any]) -> str:
    return f'"{meta.get("md5Hash", "")}"'


def _item(meta: dict[str, Any]) -> str:
    modified = datetime.fromisoformat(meta["updated"]).isoformat()
    return (
        f"<Contents><Key>{escape(meta['name'])}</Key><Size>{meta['size']}</Size>"
        f"<LastModified>{modified}</LastModified><ETag>{escape(_tag(meta))}</ETag></Contents>"
    )


def _xml(text: str, status: int = 200) -> Answer:
    content = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    return status, [("Content-Length", str(len(content))), ("Content-Type", "application/xml")], content


if __name__ == "__main__":
    with s3gate(sys.argv[1], _XmlApi) as opened:
        print(opened.endpoint, flush=True)
        threading.Event().wait()
