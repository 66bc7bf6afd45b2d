"""Version handshake of a connection: preamble and version, answered by a version (1).

It covers client and server of both profiles. Bytes may arrive in chunks of any size; bytes after
the handshake are returned to the caller.
"""

from __future__ import annotations

import struct

import msgspec

from postroad.core.errors import ConfigError, HandshakeRejectedError
from postroad.wire.frames import ConnectionRole

_PREAMBLE = struct.Struct(">i")


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit integer."""
    units = memoryview(text.encode("utf-16-be", "surrogatepass"))
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def encode_preamble(cluster: str) -> bytes:
    """Return the four bytes that start every handshake and datagram of a cluster."""
    return _PREAMBLE.pack(java_string_hash(cluster))


_VERSION = struct.Struct(">h")
_PREAMBLE_BYTES = 4

# First bytes of a TLS record: a client hello, or the alert of a server that received plain bytes.
_TLS_RECORDS = (b"\x16\x03", b"\x15\x03")


AUTHENTICATION_VERSION = 3
"""The first version in which a node can prove that it has the cluster secret."""


class ProtocolProfile(msgspec.Struct, frozen=True):
    """A profile of the protocol: its versions and the form of a server's response."""

    name: str
    versions: tuple[int, ...]
    """Supported versions, ascending; a server answers an unknown version with the last."""
    answers_preamble: bool
    """Whether the server's response repeats the preamble before its version."""

    def up_to(self, version: int | None) -> ProtocolProfile:
        """Return the profile without versions newer than this one."""
        newest = self.versions[-1] if version is None else version
        return self._restricted(
            0, newest, f"profile {self.name!r} has no version {version} or older"
        )

    def since(self, version: int | None) -> ProtocolProfile:
        """Return the profile without versions older than this one."""
        newest = self.versions[-1]
        problem = f"profile {self.name!r} has no version {version} or newer up to {newest}"
        return self._restricted(version or 0, newest, problem)

    def proving(self) -> ProtocolProfile:
        """Return the profile without versions that cannot prove the cluster secret."""
        problem = (
            f"a secret needs version {AUTHENTICATION_VERSION}; profile {self.name!r} "
            f"as it is configured has {', '.join(map(str, self.versions))}"
        )
        return self._restricted(AUTHENTICATION_VERSION, self.versions[-1], problem)

    def _restricted(self, oldest: int, newest: int, problem: str) -> ProtocolProfile:
        versions = tuple(number for number in self.versions if oldest <= number <= newest)
        if not versions:
            raise ConfigError(problem)
        if versions == self.versions:
            return self
        return msgspec.structs.replace(self, versions=versions)


DOCUMENTED = ProtocolProfile("documented", (1, 2, 3), answers_preamble=False)
ZEEBE = ProtocolProfile("zeebe", (1, 2), answers_preamble=True)
PROFILES = {profile.name: profile for profile in (DOCUMENTED, ZEEBE)}


class Handshake:
    """One side of the handshake. Feed it bytes until it returns the bytes that follow."""

    __slots__ = ("_expected", "_preamble", "_profile", "_received", "offered", "role", "version")

    def __init__(self, role: ConnectionRole, profile: ProtocolProfile, preamble: bytes) -> None:
        self.role = role
        self._profile = profile
        self._preamble = preamble
        self._received = b""
        has_preamble = role is ConnectionRole.SERVER or profile.answers_preamble
        self._expected = preamble if has_preamble else b""
        # The negotiated version, 0 until the handshake is complete.
        self.version = 0
        # The version that the peer offered or answered, 0 until then.
        self.offered = 0

    def initial_bytes(self) -> bytes:
        """Return the bytes this side sends before it has received any."""
        if self.role is ConnectionRole.SERVER:
            return b""
        return self._preamble + _VERSION.pack(self._profile.versions[-1])

    def response_bytes(self) -> bytes:
        """Return the bytes a server sends when the handshake is complete."""
        prefix = self._preamble if self._profile.answers_preamble else b""
        return prefix + _VERSION.pack(self.version)

    def feed(self, data: bytes) -> bytes | None:
        """Process bytes; return the bytes after the handshake, or None while it is incomplete."""
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
        if self.role is ConnectionRole.SERVER:
            return self._profile.versions[-1]
        if self._received.startswith(_TLS_RECORDS):
            raise HandshakeRejectedError(self._describe_unknown_protocol())
        is_preamble = self._received[: _VERSION.size] == self._preamble[: _VERSION.size]
        if is_preamble and not self._profile.answers_preamble:
            raise HandshakeRejectedError(
                f"the peer repeats the preamble, as profile {ZEEBE.name!r} does; this node is "
                f"configured with profile {self._profile.name!r}"
            )
        versions = ", ".join(map(str, self._profile.versions))
        raise HandshakeRejectedError(
            f"the peer answered version {offered}; this node supports {versions}"
        )

    def _describe_unknown_protocol(self) -> str:
        if self._received.startswith(_TLS_RECORDS):
            return "the peer speaks TLS, this side does not"
        version = self._received[: _VERSION.size]
        if self.role is ConnectionRole.CLIENT and version in map(
            _VERSION.pack, DOCUMENTED.versions
        ):
            return (
                f"the peer answers without the preamble, as profile {DOCUMENTED.name!r} does; this "
                f"node is configured with profile {self._profile.name!r}"
            )
        start = self._received[:_PREAMBLE_BYTES].hex(" ")
        return (
            f"preamble {start} is not {self._preamble.hex(' ')}: "
            "another cluster name, another profile, or no Postroad node"
        )
