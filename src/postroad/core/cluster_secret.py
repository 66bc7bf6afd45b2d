"""The shared secret of a cluster, which nodes prove to each other and never send."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable

from postroad.core.errors import ConfigError
from postroad.core.limits import SECRET_CHARACTERS_MIN, SECRETS_MAX

PROOF_BYTES = 32
"""Size of an HMAC-SHA256 digest."""

_LENGTH = struct.Struct(">I")
_DERIVATION = b"postroad cluster secret\0"


class ClusterSecret:
    """Keys derived from the secrets and the name of a cluster (docs/wire-protocol.md, 3.7).

    Args:
        cluster: name of the cluster; equal secrets of two clusters give different keys.
        secrets: the secret, or several during a rotation: the first one proves, all verify.

    Raises:
        ConfigError: no secret, too many, or one that is too short.
    """

    def __init__(self, cluster: str, secrets: str | Iterable[str]) -> None:
        texts = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        check_secrets(texts)
        purpose = _DERIVATION + cluster.encode()
        self._keys = tuple(hmac.digest(text.encode(), purpose, "sha256") for text in texts)

    def prove(self, purpose: bytes, *parts: bytes) -> bytes:
        """Return the proof of the first secret over a purpose and the parts of a message."""
        return hmac.digest(self._keys[0], _join(purpose, parts), "sha256")

    def verify(self, proof: bytes, purpose: bytes, *parts: bytes) -> bool:
        """Return whether one of the secrets gives this proof for the purpose and parts."""
        joined = _join(purpose, parts)
        return any(
            hmac.compare_digest(hmac.digest(key, joined, "sha256"), proof) for key in self._keys
        )

    def __repr__(self) -> str:
        return f"<ClusterSecret, {len(self._keys)} accepted>"


def check_secrets(secrets: tuple[str, ...]) -> None:
    """Raise ConfigError unless all secrets are valid; the message never contains one."""
    if not 0 < len(secrets) <= SECRETS_MAX:
        raise ConfigError(
            f"secret: {len(secrets)} given; one is enough, and up to {SECRETS_MAX} are accepted "
            "while it is being changed"
        )
    for secret in secrets:
        if not isinstance(secret, str):
            raise ConfigError(f"secret must be text, not {type(secret).__name__}")
        if len(secret) < SECRET_CHARACTERS_MIN:
            raise ConfigError(
                f"secret is shorter than {SECRET_CHARACTERS_MIN} characters: "
                "`openssl rand -hex 32` makes a good one"
            )
        try:
            secret.encode()
        except UnicodeEncodeError:
            raise ConfigError("secret cannot be encoded as UTF-8") from None


def _join(purpose: bytes, parts: tuple[bytes, ...]) -> bytes:
    """Join the parts unambiguously: each is preceded by its length."""
    return b"".join([_LENGTH.pack(len(part)) + part for part in (purpose, *parts)])
