"""The secret of a cluster: what its nodes know, prove to each other, and never send."""

from __future__ import annotations

import hmac
import struct
from collections.abc import Iterable

from postroad.core.errors import ConfigError
from postroad.core.limits import SECRET_CHARACTERS_MIN, SECRETS_MAX

PROOF_BYTES = 32
"""Size of an HMAC-SHA256."""

_LENGTH = struct.Struct(">I")
_DERIVATION = b"postroad cluster secret\0"


class ClusterSecret:
    """Keys derived from the secrets of a cluster, and from its name.

    Args:
        cluster: another cluster with the same secret has other keys.
        secrets: the secret; or several while it is being changed: the first proves, all are
            accepted.

    Raises:
        ConfigError: there is none, one is too short, or there are too many.
    """

    __slots__ = ("_keys",)

    def __init__(self, cluster: str, secrets: str | Iterable[str]) -> None:
        texts = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        check_secrets(texts)
        purpose = _DERIVATION + cluster.encode()
        self._keys = tuple(hmac.digest(text.encode(), purpose, "sha256") for text in texts)

    def prove(self, purpose: bytes, *parts: bytes) -> bytes:
        """The proof of knowing the secret, bound to a purpose and to what is said."""
        return hmac.digest(self._keys[0], _join(purpose, parts), "sha256")

    def verify(self, proof: bytes, purpose: bytes, *parts: bytes) -> bool:
        """Whether whoever made the proof knows one of the secrets, and said just this."""
        joined = _join(purpose, parts)
        return any(
            hmac.compare_digest(hmac.digest(key, joined, "sha256"), proof) for key in self._keys
        )

    def __repr__(self) -> str:
        return f"<ClusterSecret, {len(self._keys)} accepted>"


def check_secrets(secrets: tuple[str, ...]) -> None:
    """Refuse what is no secret; the error never tells it."""
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
    """All of it as bytes that nothing else gives: each part with its length before it."""
    return b"".join([_LENGTH.pack(len(part)) + part for part in (purpose, *parts)])
