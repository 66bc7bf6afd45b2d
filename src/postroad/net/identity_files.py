"""Reads the certificate and the key that a program shows to others, and says what is wrong."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import NoReturn, TypeAlias

from postroad.core.errors import ConfigError

from .owned_files import check_file, read_file

_REASONS = {
    "KEY_VALUES_MISMATCH": "the key belongs to another certificate",
    "NO_START_LINE": "one of them is not in PEM form",
    "NO_CERTIFICATE_OR_CRL_FOUND": "there is no certificate in it",
}


PathText: TypeAlias = str | os.PathLike[str]


def load_certificate(
    context: ssl.SSLContext, certificate: PathText, key: PathText, *, what: str
) -> None:
    """Have a context show a certificate.

    Args:
        what: how errors call the certificate, as `TLS certificate`.

    Raises:
        ConfigError: the files cannot be read, or do not fit together.
    """
    place = f"{what} {certificate} with key {key} cannot be used"
    for path in (certificate, key):
        try:
            read_file(Path(path))
        except OSError as error:
            raise ConfigError(f"{place}: {path}: {error.strerror}") from error
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None

    def refuse() -> NoReturn:
        # Otherwise a node would stand still and wait for somebody at a keyboard.
        raise ConfigError(f"{place}: the key is encrypted; give one that is not")

    try:
        context.load_cert_chain(certificate, key, password=refuse)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{place}: {describe_tls_file_error(error)}") from error


def load_trust(context: ssl.SSLContext, trust: PathText, *, what: str) -> None:
    """Have a context trust those who are signed by certificates in a file; raises ConfigError."""
    try:
        check_file(trust)
        context.load_verify_locations(trust)
    except ConfigError as error:
        raise ConfigError(f"{what} {trust} cannot be used: {error}") from None
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{what} {trust} cannot be used: {describe_tls_file_error(error)}"
        ) from error


def describe_tls_file_error(error: OSError) -> str:
    """What is wrong with files of certificates, in words."""
    if isinstance(error, ssl.SSLError):
        if error.reason in _REASONS:
            return _REASONS[error.reason]
        if "PEM lib" in str(error):
            return "one of them is not in PEM form"
    return error.strerror or str(error)
