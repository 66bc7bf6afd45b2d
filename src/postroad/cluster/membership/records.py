"""What nodes tell each other about a member, and which of two tales is the newer."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from postroad.core import Address, validate_node_name
from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.core.names import NODE_NAME_BYTES_MAX

from .states import MemberState

Properties: TypeAlias = dict[str, str]

FAREWELL_BYTES = 16
_HOST_BYTES_MAX = 255
_SECRET_BYTES_MAX = 64
# What others may claim of a node, and what it can say itself to outrank any claim.
CLAIM_MAX = 1 << 62
NUMBER_MAX = (1 << 63) - 1


class MemberRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member as it travels."""

    name: str
    instance: int
    """Tells one process from the next of that name; a process that began later has a higher one."""
    host: str
    port: int
    incarnation: int
    """Raised by the member itself, and by nobody else, to make its word the last."""
    state: MemberState
    version: int
    """Counts the changes of the properties."""
    leave_digest: bytes
    """Digest of a secret; whoever can tell the secret may say that this process leaves."""
    properties: Properties | None = None
    """None where they are left out; whoever has an older version can ask for them."""
    reported_by: str = ""
    """Of a suspected or dead member: who says so."""
    leave_secret: bytes = b""
    """Of one that left: what the digest was made of."""

    @property
    def address(self) -> Address:
        """Where it is reached."""
        return Address(self.host, self.port)

    @property
    def identity(self) -> tuple[int, str, int, bytes]:
        """What one process never changes."""
        return (self.instance, self.host, self.port, self.leave_digest)

    @property
    def precedence(self) -> tuple[int, int]:
        """Of two records of one process the one of the higher rank is the newer."""
        if self.state is MemberState.LEFT:
            return (NUMBER_MAX, MemberState.LEFT)
        return (self.incarnation, self.state)

    def supersedes(self, other: MemberRecord) -> bool:
        """Of two records of one name that differ in their process, whether this is the later."""
        return (self.incarnation, self.instance) > (other.incarnation, other.instance)

    def without_properties(self) -> MemberRecord:
        """The same, shorter."""
        return msgspec.structs.replace(self, properties=None)


class Member(msgspec.Struct, frozen=True):
    """One member of the cluster as a node sees it at one moment."""

    name: str
    address: Address
    state: MemberState
    incarnation: int
    instance: int
    properties: Mapping[str, str]
    version: int
    """Counts the changes of its properties."""

    @property
    def is_reachable(self) -> bool:
        """Whether it answers; a member that does not is kept for a while, then removed."""
        return self.state is MemberState.ALIVE

    def __str__(self) -> str:
        return f"{self.name} at {self.address}, {self.state.name.lower()}"


def to_member(record: MemberRecord) -> Member:
    """The public form of a record."""
    return Member(
        name=record.name,
        address=record.address,
        state=record.state,
        incarnation=record.incarnation,
        instance=record.instance,
        properties=MappingProxyType(record.properties or {}),
        version=record.version,
    )


def leave_digest(secret: bytes) -> bytes:
    """What everybody may know of the secret."""
    return hashlib.sha256(secret).digest()[:FAREWELL_BYTES]


def is_authentic_leave(record: MemberRecord, farewell: bytes) -> bool:
    """Whether a record that says "left" comes from the member with that digest itself."""
    return leave_digest(record.leave_secret) == farewell


def properties_size(properties: Mapping[str, str]) -> int:
    """Bytes that properties take in a packet, nearly."""
    return sum(len(key.encode()) + len(value.encode()) + 4 for key, value in properties.items())


def check_record(record: MemberRecord, *, properties_bytes_max: int) -> None:
    """Raise MalformedPayloadError if no honest node would send it."""
    try:
        validate_node_name(record.name)
    except ConfigError as error:
        raise MalformedPayloadError(str(error)) from None
    if not 0 < len(record.host.encode()) <= _HOST_BYTES_MAX or not 0 < record.port < 65536:
        raise MalformedPayloadError(f"member {record.name!r} at an impossible address")
    numbers = (record.incarnation, record.instance, record.version)
    if not all(0 <= number < NUMBER_MAX for number in numbers):
        raise MalformedPayloadError(f"member {record.name!r} has an impossible number")
    # What fits no datagram would stand at the head of the news for ever.
    if (
        len(record.reported_by.encode()) > NODE_NAME_BYTES_MAX
        or len(record.leave_secret) > _SECRET_BYTES_MAX
    ):
        raise MalformedPayloadError(f"member {record.name!r} has an impossible witness")
    if len(record.leave_digest) != FAREWELL_BYTES:
        raise MalformedPayloadError(f"member {record.name!r} has an impossible digest")
    if record.properties and properties_size(record.properties) > properties_bytes_max:
        raise MalformedPayloadError(f"member {record.name!r} has too many properties")
