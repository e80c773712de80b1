"""Profiles of the AWS configuration files, which obstore does not read."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from configparser import ConfigParser, Error
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import AuthenticationFailed, UsageError
from headrace.storage.access import environment

_PROCESS_SECONDS = 60
_UNSUPPORTED = ("role_arn", "sso_session", "sso_start_url", "web_identity_token_file")


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """Settings of one profile."""

    endpoint: str = ""
    region: str = ""
    access_key_id: str = field(default="", repr=False)
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    credential_process: str = field(default="", repr=False)


def profile_settings(name: str = "") -> ProfileSettings:
    """Settings of a profile; default: AWS_PROFILE, then `default`. UsageError if a named profile does not exist."""
    wanted = name or environment("AWS_PROFILE", "AWS_DEFAULT_PROFILE")
    config = _sections(_file("AWS_CONFIG_FILE", "config"))
    credentials = _sections(_file("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    profile = wanted or "default"
    in_config = config.get("default" if profile == "default" else f"profile {profile}", config.get(profile))
    values = {**(in_config or {}), **credentials.get(profile, {})}
    if not values:
        if wanted:
            files = "~/.aws/config (AWS_CONFIG_FILE) or ~/.aws/credentials (AWS_SHARED_CREDENTIALS_FILE)"
            raise UsageError(f"AWS profile '{wanted}' not found.", hint=f"Add it to {files}.")
        return ProfileSettings()
    has_credentials = "aws_access_key_id" in values or "credential_process" in values
    if wanted and not has_credentials and (kind := next((key for key in _UNSUPPORTED if key in values), "")):
        process = f"aws configure export-credentials --profile {wanted} --format process"
        raise UsageError(
            f"AWS profile '{wanted}' uses {kind}, which is not supported.",
            hint=f"Use a profile with `credential_process = {process}`.",
        )
    service = _nested(values.get("s3", "")) | _nested(
        config.get(f"services {values.get('services', '')}", {}).get("s3", "")
    )
    return ProfileSettings(
        service.get("endpoint_url") or values.get("endpoint_url", ""),
        values.get("region", ""),
        values.get("aws_access_key_id", ""),
        values.get("aws_secret_access_key", ""),
        values.get("aws_session_token", ""),
        "" if "aws_access_key_id" in values else values.get("credential_process", ""),
    )


def _file(variable: str, name: str) -> Path:
    return Path(environment(variable) or Path.home() / ".aws" / name).expanduser()


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = ConfigParser(interpolation=None, default_section="\0", strict=False)
    try:
        parser.read_string(path.read_text())
    except OSError:
        return {}  # without the file there are no profiles, as in other AWS clients
    except (Error, UnicodeDecodeError):
        raise UsageError(f"{path} is not a valid AWS configuration file.") from None  # the cause may quote a secret
    return {" ".join(name.split()): dict(parser[name]) for name in parser.sections()}


def _nested(text: str) -> dict[str, str]:
    """Settings of a service, one per line below its name: `s3 =\\n  endpoint_url = …`."""
    lines = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in lines}


def process_credentials(command: str) -> dict[str, Any]:
    """Run the credential process of a profile; returns keys of obstore. AuthenticationFailed if it fails."""
    try:
        done = subprocess.run(
            shlex.split(command), capture_output=True, timeout=_PROCESS_SECONDS, check=True, env=os.environ
        )
        output = json.loads(done.stdout)
        expires = output.get("Expiration")
        return {
            "access_key_id": output["AccessKeyId"],
            "secret_access_key": output["SecretAccessKey"],
            "token": output.get("SessionToken"),
            "expires_at": datetime.fromisoformat(expires) if expires else None,
        }
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, AttributeError) as error:
        reason = (
            f"exit code {error.returncode}"
            if isinstance(error, subprocess.CalledProcessError)
            else type(error).__name__
        )
        raise AuthenticationFailed(
            f"The credential_process of the AWS profile failed: {reason}.",  # its output may contain secrets
            hint="Run its command in a shell, then run again.",
        ) from None
