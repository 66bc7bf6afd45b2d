"""What nodes tell each other about a member, and which of two tales is the newer."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

import msgspec

from postroad.core import Address, validate_node_name
from postroad.core.errors import ConfigError, MalformedPayloadError
from postroad.core.names import NODE_NAME_BYTES_MAX


class MembershipEventType(enum.Enum):
    """What changed."""

    ADDED = "added"
    METADATA = "metadata"
    REACHABILITY = "reachability"
    REMOVED = "removed"


_EVENT_TEXTS = {
    MembershipEventType.ADDED: "added",
    MembershipEventType.METADATA: "new properties of",
    MembershipEventType.REACHABILITY: "another state of",
    MembershipEventType.REMOVED: "removed",
}


class MembershipEvent(msgspec.Struct, frozen=True):
    """A change of one member.

    `member` is as it is now, so that in a removal its state tells why: dead, or left. `previous` is
    as it was, and None for one that was added.
    """

    kind: MembershipEventType
    member: Member
    previous: Member | None = None

    def __str__(self) -> str:
        return f"{_EVENT_TEXTS[self.kind]} {self.member}"


class NameConflictDetected(msgspec.Struct, frozen=True):
    """Another live node claims this node's name; this node keeps it."""

    rival: Address


class NameConflictLost(msgspec.Struct, frozen=True):
    """Another live node has this node's name and keeps it; this node is no member any more."""

    holder: Address


class MembershipPhase(enum.Enum):
    """The life of a node in its cluster."""

    NEW = "not started"
    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"
    NAME_LOST = "refused"

    @property
    def is_running(self) -> bool:
        """Whether packets and time mean anything."""
        return self in (MembershipPhase.JOINING, MembershipPhase.MEMBER)


class MemberState(enum.IntEnum):
    """What a node thinks of a member. A later state prevails over an earlier one of its kind."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_active(self) -> bool:
        """Whether it counts as a member."""
        return self <= MemberState.SUSPECT


class StateChangeCause(enum.Enum):
    """Why a node changes its mind. Rumours count only if they are news."""

    ANSWERED = "it answered this node"
    GOSSIP_ALIVE = "heard that it is alive"
    GOSSIP_SUSPECT = "heard that it is suspected"
    GOSSIP_DEAD = "heard that it is dead"
    GOSSIP_LEFT = "it said goodbye"
    PROBE_FAILED = "it did not answer"
    TIMED_OUT = "it did not speak up in time"
    REPLACED = "a new process has its name"
    REAPED = "long ago"


GOSSIP_CAUSES = {
    MemberState.ALIVE: StateChangeCause.GOSSIP_ALIVE,
    MemberState.SUSPECT: StateChangeCause.GOSSIP_SUSPECT,
    MemberState.DEAD: StateChangeCause.GOSSIP_DEAD,
    MemberState.LEFT: StateChangeCause.GOSSIP_LEFT,
}

TRANSITIONS: dict[tuple[MemberState | None, StateChangeCause], MemberState | None] = {
    (None, StateChangeCause.ANSWERED): MemberState.ALIVE,
    (MemberState.ALIVE, StateChangeCause.ANSWERED): MemberState.ALIVE,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_ALIVE): MemberState.ALIVE,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_SUSPECT): MemberState.SUSPECT,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_DEAD): MemberState.SUSPECT,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_LEFT): MemberState.LEFT,
    (MemberState.ALIVE, StateChangeCause.PROBE_FAILED): MemberState.SUSPECT,
    (MemberState.ALIVE, StateChangeCause.REPLACED): None,
    (MemberState.SUSPECT, StateChangeCause.ANSWERED): MemberState.ALIVE,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_ALIVE): MemberState.ALIVE,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_SUSPECT): MemberState.SUSPECT,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_DEAD): MemberState.SUSPECT,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_LEFT): MemberState.LEFT,
    (MemberState.SUSPECT, StateChangeCause.TIMED_OUT): MemberState.DEAD,
    (MemberState.SUSPECT, StateChangeCause.REPLACED): None,
    (MemberState.DEAD, StateChangeCause.ANSWERED): MemberState.ALIVE,
    (MemberState.DEAD, StateChangeCause.GOSSIP_DEAD): MemberState.DEAD,
    (MemberState.DEAD, StateChangeCause.GOSSIP_LEFT): MemberState.LEFT,
    (MemberState.DEAD, StateChangeCause.REPLACED): None,
    (MemberState.DEAD, StateChangeCause.REAPED): None,
    (MemberState.LEFT, StateChangeCause.REPLACED): None,
    (MemberState.LEFT, StateChangeCause.REAPED): None,
}
"""None stands for a member that is not known. Of a process that has left nothing is news.

That a node lives which is not known, or thought dead, is a reason to ask it, and no more.
"""


Properties: TypeAlias = dict[str, str]

LEAVE_DIGEST_BYTES = 16
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
    return hashlib.sha256(secret).digest()[:LEAVE_DIGEST_BYTES]


def is_authentic_leave(record: MemberRecord, digest: bytes) -> bool:
    """Whether a record that says "left" comes from the member with that digest itself."""
    return leave_digest(record.leave_secret) == digest


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
    if len(record.leave_digest) != LEAVE_DIGEST_BYTES:
        raise MalformedPayloadError(f"member {record.name!r} has an impossible digest")
    if record.properties and properties_size(record.properties) > properties_bytes_max:
        raise MalformedPayloadError(f"member {record.name!r} has too many properties")
