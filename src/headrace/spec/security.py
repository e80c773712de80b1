"""TLS and SASL settings of a broker connection, in the notation of each client."""

from __future__ import annotations

from pydantic import Field

from headrace.spec.base import SpecModel
from headrace.spec.sasl import SaslSpec, java_sasl, librdkafka_sasl
from headrace.spec.secrets import Secret


class TlsSpec(SpecModel):
    """TLS connection to a server; host names are always verified."""

    ca: str | None = Field(
        default=None, description="CA certificates to trust: PEM text or `${file:…}`. Default: the system trust store."
    )
    certificate: str | None = Field(default=None, description="Client certificate chain (PEM).")
    key: Secret | None = Field(default=None, description="Private key of `certificate` (PEM, PKCS #8), as a reference.")
    key_password: Secret | None = Field(default=None, description="Password of `key`, as a reference.")


def java(protocol: str, tls: TlsSpec | None, sasl: SaslSpec | None) -> dict[str, str]:
    """Settings for Kafka's Java client, including the JAAS configuration, with secrets resolved."""
    settings = {"security.protocol": protocol}
    if tls is not None:
        settings |= {"ssl.endpoint.identification.algorithm": "https"}
        if tls.ca is not None:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": tls.ca}
        if tls.certificate is not None and tls.key is not None:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": tls.certificate,
                "ssl.keystore.key": tls.key.reveal(),
            }
        if tls.key_password is not None:
            settings |= {"ssl.key.password": tls.key_password.reveal()}
    if sasl is not None:
        settings |= java_sasl(sasl)
    return settings


def librdkafka(protocol: str, tls: TlsSpec | None, sasl: SaslSpec | None) -> dict[str, str]:
    """Settings for librdkafka, with secrets resolved."""
    settings = {"security.protocol": protocol}
    if tls is not None:
        pems = {"ssl.ca.pem": tls.ca, "ssl.certificate.pem": tls.certificate}
        secrets = {"ssl.key.pem": tls.key, "ssl.key.password": tls.key_password}
        settings |= {"ssl.endpoint.identification.algorithm": "https"}
        settings |= {name: pem for name, pem in pems.items() if pem is not None}
        settings |= {name: secret.reveal() for name, secret in secrets.items() if secret is not None}
    if sasl is not None:
        settings |= librdkafka_sasl(sasl)
    return settings
