"""Tokens of AWS MSK IAM: a URL with a signature of version 4, which the broker verifies with AWS."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

from headrace.storage.aws_roles import AwsCredentials
from headrace.version import VERSION

_SERVICE = "kafka-cluster"
LIFETIME = timedelta(minutes=15)  # the longest that MSK accepts


def signed_token(region: str, credentials: AwsCredentials, at: datetime) -> str:
    """Token for the clusters of a region, signed at this time; valid for `LIFETIME`."""
    host, moment = f"kafka.{region}.amazonaws.com", at.astimezone(UTC)
    scope = f"{moment:%Y%m%d}/{region}/{_SERVICE}/aws4_request"
    query = {
        "Action": f"{_SERVICE}:Connect",
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.access_key_id}/{scope}",
        "X-Amz-Date": f"{moment:%Y%m%dT%H%M%SZ}",
        "X-Amz-Expires": str(int(LIFETIME.total_seconds())),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session_token:
        query["X-Amz-Security-Token"] = credentials.session_token
    canonical = "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in sorted(query.items()))
    empty = hashlib.sha256(b"").hexdigest()
    request = f"GET\n/\n{canonical}\nhost:{host}\n\nhost\n{empty}"
    text = f"AWS4-HMAC-SHA256\n{query['X-Amz-Date']}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{credentials.secret_access_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    url = f"https://{host}/?{canonical}&X-Amz-Signature={signature}&User-Agent=headrace%2F{VERSION}"
    return urlsafe_b64encode(url.encode()).decode().rstrip("=")
