"""Health probe for containers: exit code 0 if a path of Headrace's endpoint answers with 200.

`probe.py /live` needs no token; other paths send that of HEADRACE_VIEWER_TOKEN or HEADRACE_VIEWER_TOKEN_FILE.
HEADRACE_PROBE_URL: scheme, host and port, if not http://127.0.0.1:9187. Standard library only, to start fast.
"""

from __future__ import annotations

import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

_URL = "http://127.0.0.1:9187"
_SECONDS = 4.0


def _token() -> str:
    if path := os.environ.get("HEADRACE_VIEWER_TOKEN_FILE"):
        return Path(path).read_text().strip()
    return os.environ.get("HEADRACE_VIEWER_TOKEN", "")


def _probe(path: str) -> str:
    """The problem; empty if there is none."""
    url = os.environ.get("HEADRACE_PROBE_URL", _URL) + path
    token = "" if path == "/live" else _token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # No proxy of the environment: the endpoint is in this container.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=_SECONDS):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return f"{url}: status {error.code}: {error.read(500).decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].startswith("/"):
        sys.exit("usage: probe.py PATH, for example /live or /ready")
    if problem := _probe(sys.argv[1]):
        sys.exit(problem)
