"""SASL settings of a Kafka connection, and the JAAS line of each mechanism, which is built from these fields only."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from headrace.spec.base import InvalidValue, SpecModel
from headrace.spec.secrets import Secret, secret_in_file
from headrace.spec.units import PlainText
from headrace.spec.uris import LocalPath, host_of, is_loopback, server

_SECURITY = "org.apache.kafka.common.security"
_LOGIN_SECONDS = 10
MSK = "AWS_MSK_IAM"
KERBEROS = "GSSAPI"
_KERBEROS_LOGIN = "com.sun.security.auth.module.Krb5LoginModule"
_MSK = "software.amazon.msk.auth.iam"

# Keys of each mechanism: those that it requires, and those that it also accepts.
_PASSWORD = (("username", "password"), ())
_KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "PLAIN": _PASSWORD,
    "SCRAM-SHA-256": _PASSWORD,
    "SCRAM-SHA-512": _PASSWORD,
    "OAUTHBEARER": (
        (),
        ("token_endpoint", "token_file", "client_id", "client_secret", "scope", "extensions", "ca"),
    ),
    "AWS_MSK_IAM": ((), ("region", "profile")),
    "GSSAPI": ((), ("principal", "keytab", "service_name")),
}
_OF_ENDPOINT = ("client_id", "client_secret", "scope", "ca")


def _token_endpoint(text: str) -> str:
    expected = "https://host:port/path, or http:// on a loopback address; without user, query or fragment"
    try:
        server(text)
    except ValueError:
        raise ValueError(expected) from None
    if not re.fullmatch(r"[A-Za-z0-9._~:/\[\]!$&()*+;=%-]+", text) or (
        text.startswith("http:") and not is_loopback(host_of(text))
    ):
        raise ValueError(expected)
    return text


def _token_file(path: str) -> str:
    """Java does not decode the path of a file URL, and lists of URLs have no quotes."""
    if not re.fullmatch(r"[A-Za-z0-9._/@:+=~-]+", path):
        raise ValueError("a path of A–Z, a–z, 0–9 and . _ / @ : + = ~ -")
    return path


def _extension(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z]{1,64}", name) or name.lower() == "auth":
        message = f"invalid name of an extension '{name[:64]}'"
        raise InvalidValue("a name of A–Z and a–z other than `auth`", message=message)
    return name


def _extension_value(text: str) -> str:
    if not re.fullmatch(r"[\x20-\x7e]+", text):
        raise ValueError("printable ASCII")
    return text


def _principal(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._/@+$-]{1,256}", text):
        raise ValueError("a principal such as headrace@EXAMPLE.COM")
    return text


def _service_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text):
        raise ValueError("a name of A–Z, a–z, 0–9 and . _ -")
    return text


class SaslSpec(SpecModel):
    """SASL authentication to the broker."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"] = Field(
        description="SASL mechanism."
    )
    username: str | None = Field(default=None, min_length=1, description="Username, for PLAIN and SCRAM.")
    password: Secret | None = Field(default=None, description="Password as a reference, for PLAIN and SCRAM.")
    token_endpoint: Annotated[str, AfterValidator(_token_endpoint)] | None = Field(
        default=None,
        description="OAUTHBEARER: URL of the OAuth 2.0 token endpoint that issues tokens for client credentials. "
        "`http://` only on a loopback address.",
    )
    token_file: Annotated[LocalPath, AfterValidator(_token_file)] | None = Field(
        default=None,
        description="OAUTHBEARER: file with a token (a JWT), read again for each batch. Alternative to "
        "`token_endpoint`; with a cluster, it must be at this path on all nodes.",
    )
    client_id: str | None = Field(default=None, min_length=1, description="OAUTHBEARER: client id.")
    client_secret: Secret | None = Field(default=None, description="OAUTHBEARER: client secret, as a reference.")
    scope: PlainText | None = Field(default=None, description="OAUTHBEARER: scope of the requested token.")
    extensions: Mapping[
        Annotated[str, AfterValidator(_extension)], Annotated[PlainText, AfterValidator(_extension_value)]
    ] = Field(default_factory=dict, description="OAUTHBEARER: SASL extensions that are sent to the broker.")
    ca: str | None = Field(
        default=None,
        description="OAUTHBEARER: CA certificates of the token endpoint: PEM text or `${file:…}`. Default: the "
        "system trust store.",
    )
    region: str | None = Field(
        default=None,
        pattern=r"^[a-z]{2}(-[a-z]+)+-[0-9]{1,2}$",
        description="AWS_MSK_IAM: region of the cluster. Default: that of the broker's host name.",
    )
    profile: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9._@+-]{1,128}$",
        description="AWS_MSK_IAM: profile of the AWS configuration files. Default: credentials of the environment, of "
        "the default profile, or of a role.",
    )
    principal: Annotated[PlainText, AfterValidator(_principal)] | None = Field(
        default=None, description="GSSAPI: Kerberos principal of the client. Default: that of the ticket cache."
    )
    keytab: LocalPath | None = Field(
        default=None,
        description="GSSAPI: file with the key of `principal`; with a cluster, it must be at this path on all nodes. "
        "Default: the ticket cache of `kinit`.",
    )
    service_name: Annotated[PlainText, AfterValidator(_service_name)] | None = Field(
        default=None, description="GSSAPI: first part of the principals of the brokers. Default: `kafka`."
    )

    @model_validator(mode="after")
    def _check_keys(self) -> SaslSpec:
        required, accepted = _KEYS[self.mechanism]
        given = {name for name in type(self).model_fields if getattr(self, name)} - {"mechanism"}
        if self.mechanism == "OAUTHBEARER":
            required = self._token_keys()
        if self.mechanism == KERBEROS and self.keytab is not None:
            required = ("principal",)
        for name in type(self).model_fields:
            if name in required and name not in given:
                raise InvalidValue(f"{name} for {self.mechanism}", message="required key is missing", key=name)
            if name in given - {*required, *accepted}:
                expected = f"no {name} with {self.mechanism}"
                raise InvalidValue(expected, message=f"not a key of {self.mechanism}", key=name)
        return self

    def _token_keys(self) -> tuple[str, ...]:
        """The keys that OAUTHBEARER requires; InvalidValue unless there is exactly one origin of tokens."""
        if (self.token_endpoint is None) == (self.token_file is None):
            message = "token_endpoint and token_file together" if self.token_file else "no source of tokens"
            raise InvalidValue("token_endpoint or token_file", message=message)
        if self.token_file is None:
            return ("client_id", "client_secret")
        for name in _OF_ENDPOINT:
            if getattr(self, name) is not None:
                raise InvalidValue(f"no {name} with token_file", message="a key of token_endpoint", key=name)
        return ()

    @property
    def has_tokens(self) -> bool:
        """Whether clients authenticate with tokens, which expire."""
        return self.mechanism in ("OAUTHBEARER", MSK)

    @property
    def token_url(self) -> str:
        """The URL that Kafka's Java client gets tokens from; empty for mechanisms without tokens."""
        if self.token_file is not None:
            return f"file://{self.token_file}"
        return self.token_endpoint or ""

    def token_in_file(self) -> str:
        """The content of `token_file`."""
        return secret_in_file(Path(self.token_file or "")).strip()

    def token_version(self) -> str:
        """A text that changes with the content of `token_file`; empty without one."""
        return hashlib.sha256(self.token_in_file().encode()).hexdigest()[:12] if self.token_file else ""


def java_sasl(sasl: SaslSpec) -> dict[str, str]:
    """Settings for Kafka's Java client, with secrets resolved."""
    settings = {"sasl.mechanism": sasl.mechanism, "sasl.jaas.config": _jaas(sasl)}
    if sasl.mechanism == "OAUTHBEARER":
        settings |= {
            "sasl.login.callback.handler.class": f"{_SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": sasl.token_url,
            "sasl.login.connect.timeout.ms": str(_LOGIN_SECONDS * 1000),
            "sasl.login.read.timeout.ms": str(_LOGIN_SECONDS * 1000),
        }
    elif sasl.mechanism == KERBEROS:
        settings["sasl.kerberos.service.name"] = sasl.service_name or "kafka"
    elif sasl.mechanism == MSK:
        settings["sasl.client.callback.handler.class"] = f"{_MSK}.IAMClientCallbackHandler"
    return settings


def librdkafka_sasl(sasl: SaslSpec) -> dict[str, str]:
    """Settings for librdkafka, with secrets resolved; tokens are passed by a callback (`source/kafka_token.py`)."""
    if sasl.password is None:
        return {"sasl.mechanism": "OAUTHBEARER"}
    password = sasl.password.reveal()
    return {"sasl.mechanism": sasl.mechanism, "sasl.username": sasl.username or "", "sasl.password": password}


def _jaas(sasl: SaslSpec) -> str:
    module, options = {
        "PLAIN": (f"{_SECURITY}.plain.PlainLoginModule", _password_options),
        "OAUTHBEARER": (f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule", _token_options),
        MSK: (f"{_MSK}.IAMLoginModule", _aws_options),
        KERBEROS: (_KERBEROS_LOGIN, _kerberos_options),
    }.get(sasl.mechanism, (f"{_SECURITY}.scram.ScramLoginModule", _password_options))
    written = "".join(f" {name}={_quoted(text)}" for name, text in options(sasl).items() if text)
    return f"{module} required{written};"


def _kerberos_options(sasl: SaslSpec) -> dict[str, str]:
    key = (
        {"useKeyTab": "true", "storeKey": "true", "keyTab": sasl.keytab} if sasl.keytab else {"useTicketCache": "true"}
    )
    return {**key, "doNotPrompt": "true", "principal": sasl.principal or ""}


def _aws_options(sasl: SaslSpec) -> dict[str, str]:
    return {"awsProfileName": sasl.profile or ""}


def _password_options(sasl: SaslSpec) -> dict[str, str]:
    return {"username": sasl.username or "", "password": sasl.password.reveal() if sasl.password else ""}


def _token_options(sasl: SaslSpec) -> dict[str, str]:
    # Java reads the file once for each set of options: another `version` makes it read a new token.
    options = {
        "clientId": sasl.client_id or "",
        "clientSecret": sasl.client_secret.reveal() if sasl.client_secret else "",
        "scope": sasl.scope or "",
        "version": sasl.token_version(),
        **{f"extension_{name}": text for name, text in sasl.extensions.items()},
    }
    if sasl.ca is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": sasl.ca}
    return options


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", "\\r").replace("\n", "\\n")
    return f'"{escaped}"'
