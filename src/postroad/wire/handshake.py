"""The negotiation that opens a connection: preamble and version, answered by a version.

Client and server sides of both profiles. Bytes may arrive in any pieces, and whatever follows the
handshake in the same piece is handed back, not lost.
"""

from __future__ import annotations

import struct

import msgspec

from postroad.core.errors import ConfigError, HandshakeRejectedError
from postroad.wire.frames import ConnectionRole

_PREAMBLE = struct.Struct(">i")


def java_string_hash(text: str) -> int:
    """Java's `String.hashCode`: over UTF-16 code units, wrapped to a signed 32-bit integer."""
    units = memoryview(text.encode("utf-16-be", "surrogatepass"))
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def encode_preamble(cluster: str) -> bytes:
    """The four bytes that open every handshake and datagram of that cluster."""
    return _PREAMBLE.pack(java_string_hash(cluster))


_VERSION = struct.Struct(">h")
_PREAMBLE_BYTES = 4

# First bytes of a TLS record: a client's hello, or the alert of a server that met plain bytes.
_TLS_RECORDS = (b"\x16\x03", b"\x15\x03")


AUTHENTICATION_VERSION = 3
"""The first version in which a node can prove that it knows the secret of its cluster."""


class ProtocolProfile(msgspec.Struct, frozen=True):
    """A dialect of the protocol: which versions exist and how a server answers."""

    name: str
    versions: tuple[int, ...]
    """Versions spoken, ascending; a server answers an unknown offer with the last."""
    answers_preamble: bool
    """Whether the server's answer repeats the preamble before its version."""

    def up_to(self, version: int | None) -> ProtocolProfile:
        """The same dialect without the versions newer than the given one."""
        if version is None:
            return self
        kept = tuple(known for known in self.versions if known <= version)
        if not kept:
            raise ConfigError(f"profile {self.name!r} has no version {version} or older")
        return msgspec.structs.replace(self, versions=kept)

    def since(self, version: int | None) -> ProtocolProfile:
        """The same dialect without the versions older than the given one."""
        if version is None:
            return self
        kept = tuple(known for known in self.versions if known >= version)
        if not kept:
            raise ConfigError(
                f"profile {self.name!r} has no version {version} or newer up to {self.versions[-1]}"
            )
        return msgspec.structs.replace(self, versions=kept)

    def proving(self) -> ProtocolProfile:
        """The same dialect without the versions in which no secret can be proven."""
        kept = tuple(known for known in self.versions if known >= AUTHENTICATION_VERSION)
        if not kept:
            raise ConfigError(
                f"a secret needs version {AUTHENTICATION_VERSION}; profile {self.name!r} "
                f"as it is configured has {', '.join(map(str, self.versions))}"
            )
        return msgspec.structs.replace(self, versions=kept)


DOCUMENTED = ProtocolProfile("documented", (1, 2, 3), answers_preamble=False)
ZEEBE = ProtocolProfile("zeebe", (1, 2), answers_preamble=True)
PROFILES = {profile.name: profile for profile in (DOCUMENTED, ZEEBE)}


class Handshake:
    """One side of the negotiation. Feed it bytes until it hands back what follows."""

    __slots__ = ("_expected", "_preamble", "_profile", "_received", "_role", "offered", "version")

    def __init__(self, role: ConnectionRole, profile: ProtocolProfile, preamble: bytes) -> None:
        self._role = role
        self._profile = profile
        self._preamble = preamble
        self._received = b""
        has_preamble = role is ConnectionRole.SERVER or profile.answers_preamble
        self._expected = preamble if has_preamble else b""
        # The agreed version, 0 until the handshake is complete.
        self.version = 0
        # What the peer offered or answered, 0 until then.
        self.offered = 0

    def initial_bytes(self) -> bytes:
        """What this side sends before it has received anything."""
        if self._role is ConnectionRole.SERVER:
            return b""
        return self._preamble + _VERSION.pack(self._profile.versions[-1])

    def response_bytes(self) -> bytes:
        """What a server sends once the handshake is complete."""
        prefix = self._preamble if self._profile.answers_preamble else b""
        return prefix + _VERSION.pack(self.version)

    def feed(self, data: bytes) -> bytes | None:
        """Take bytes; None while more are needed, else the bytes that follow the handshake."""
        self._received += data
        expected = self._expected
        if self._received[: len(expected)] != expected[: len(self._received)]:
            raise HandshakeRejectedError(self._describe_unknown_protocol())
        size = len(expected) + _VERSION.size
        if len(self._received) < size:
            return None
        (offered,) = _VERSION.unpack_from(self._received, len(expected))
        self.offered = offered
        self.version = self._negotiate_version(offered)
        return self._received[size:]

    def _negotiate_version(self, offered: int) -> int:
        if offered in self._profile.versions:
            return offered
        if self._role is ConnectionRole.SERVER:
            return self._profile.versions[-1]
        if self._received.startswith(_TLS_RECORDS):
            raise HandshakeRejectedError(self._describe_unknown_protocol())
        known = ", ".join(map(str, self._profile.versions))
        raise HandshakeRejectedError(f"the peer answered version {offered}; known here are {known}")

    def _describe_unknown_protocol(self) -> str:
        if self._received.startswith(_TLS_RECORDS):
            return "the peer speaks TLS, this side does not"
        start = self._received[:_PREAMBLE_BYTES].hex(" ")
        return (
            f"preamble {start} is not {self._preamble.hex(' ')}: "
            "another cluster name, another profile, or no Postroad node"
        )
