"""Credentials of AWS for requests that Headrace signs itself: keys, profiles, and roles of pods and machines."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from headrace.errors import AuthenticationFailed, BrokerUnreachable
from headrace.storage.access import environment, is_set
from headrace.storage.aws_profile import process_credentials, profile_settings

_TIMEOUT = 5.0  # seconds
_MAX_RESPONSE = 64 * 1024  # bytes
_CONTAINER_HOST = "http://169.254.170.2"
_MACHINE_HOST = "http://169.254.169.254"
_ROLES = "/latest/meta-data/iam/security-credentials/"
_XML_VALUE = re.compile(r"<(AccessKeyId|SecretAccessKey|SessionToken|Expiration)>([^<]+)</")


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """Access key, with the session token and the expiration of temporary credentials."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires: datetime | None = None


def aws_credentials(profile: str = "") -> AwsCredentials:
    """Credentials of the named profile; by default of the environment, the default profile, or a role.

    AuthenticationFailed if there are none, UsageError for a profile that does not exist.
    """
    if not profile and (key := environment("AWS_ACCESS_KEY_ID")):
        return AwsCredentials(key, environment("AWS_SECRET_ACCESS_KEY"), environment("AWS_SESSION_TOKEN"))
    settings = profile_settings(profile)
    if settings.access_key_id:
        return AwsCredentials(settings.access_key_id, settings.secret_access_key, settings.session_token)
    if settings.credential_process:
        keys = process_credentials(settings.credential_process)
        token, expires = keys["token"] or "", keys["expires_at"]
        return AwsCredentials(keys["access_key_id"], keys["secret_access_key"], token, expires)
    for origin in () if profile else (_web_identity, _container_role, _machine_role):
        if (credentials := origin()) is not None:
            return credentials
    raise AuthenticationFailed(
        "There are no AWS credentials in the environment, in a profile, or of a role.",
        hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or run with a role.",
    )


def _web_identity() -> AwsCredentials | None:
    """Credentials of the role of a Kubernetes pod, for its service account token."""
    file, role = environment("AWS_WEB_IDENTITY_TOKEN_FILE"), environment("AWS_ROLE_ARN")
    if not file or not role:
        return None
    region = environment("AWS_REGION", "AWS_DEFAULT_REGION")
    public = f"https://sts.{region}.amazonaws.com" if region else "https://sts.amazonaws.com"
    form = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": role,
        "RoleSessionName": environment("AWS_ROLE_SESSION_NAME") or "headrace",
        "WebIdentityToken": _text(file),
    }
    endpoint = environment("AWS_ENDPOINT_URL_STS") or public
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    content = _response("POST", f"{endpoint}/", headers, urlencode(form))
    values = dict(_XML_VALUE.findall(content))
    return _temporary({**values, "Token": values.get("SessionToken")}, f"The token service {endpoint}")


def _container_role() -> AwsCredentials | None:
    """Credentials of an ECS task, or of an EKS pod identity."""
    relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    url = f"{_CONTAINER_HOST}{relative}" if relative else environment("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if not url:
        return None
    file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = _text(file) if file else environment("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    content = _response("GET", url, {"Authorization": token} if token else {})
    return _temporary(_object(content), "The credentials service of the container")


def _machine_role() -> AwsCredentials | None:
    """Credentials of the role of a machine; None if there is no metadata service."""
    if is_set("AWS_EC2_METADATA_DISABLED"):
        return None
    host = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT").rstrip("/") or _MACHINE_HOST
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    try:
        token = _request("PUT", f"{host}/latest/api/token", lifetime)[1]
    except (OSError, HTTPException):
        return None
    headers = {"X-aws-ec2-metadata-token": token}
    role = _response("GET", f"{host}{_ROLES}", headers).split("\n")[0].strip()
    content = _response("GET", f"{host}{_ROLES}{role}", headers)
    return _temporary(_object(content), "The metadata service of the machine")


def _temporary(values: Mapping[str, Any], origin: str) -> AwsCredentials:
    try:
        expires = datetime.fromisoformat(values["Expiration"]) if values.get("Expiration") else None
        return AwsCredentials(values["AccessKeyId"], values["SecretAccessKey"], values.get("Token") or "", expires)
    except (KeyError, ValueError, TypeError):
        raise AuthenticationFailed(f"{origin} returned no credentials.", hint="Check the role.") from None


def _text(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError):
        raise AuthenticationFailed(f"Cannot read the token file {file}.", hint="Check the role.") from None


def _object(content: str) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _response(method: str, url: str, headers: Mapping[str, str], body: str | None = None) -> str:
    """Content of a successful response. Errors have the address only: a response may contain a secret."""
    address = "{0.scheme}://{0.netloc}".format(urlsplit(url))
    try:
        status, content = _request(method, url, headers, body)
    except (OSError, HTTPException) as error:
        raise BrokerUnreachable(f"{address} returns no AWS credentials: {type(error).__name__}.") from None
    if status == 429 or status >= 500:
        raise BrokerUnreachable(f"{address} returns no AWS credentials: HTTP {status}.")
    if status != 200:
        raise AuthenticationFailed(f"{address} returns no AWS credentials: HTTP {status}.", hint="Check the role.")
    return content


def _request(method: str, url: str, headers: Mapping[str, str], body: str | None = None) -> tuple[int, str]:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT)
    try:
        connection.request(method, f"{parts.path or '/'}{parts.query and '?' + parts.query}", body, dict(headers))
        response = connection.getresponse()
        return response.status, response.read(_MAX_RESPONSE).decode(errors="replace")
    finally:
        connection.close()
