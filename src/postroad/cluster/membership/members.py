"""Member records, member states with their transitions, and membership events."""

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
    """Kind of a membership event."""

    ADDED = "added"
    METADATA = "metadata"
    REACHABILITY = "reachability"
    REMOVED = "removed"


_EVENT_TEXTS = {
    MembershipEventType.ADDED: "added",
    MembershipEventType.METADATA: "updated properties of",
    MembershipEventType.REACHABILITY: "changed state of",
    MembershipEventType.REMOVED: "removed",
}


class MembershipEvent(msgspec.Struct, frozen=True):
    """A change of one member.

    `member` is the new view, so that after a removal its state says why: dead or left. `previous`
    is the view before, None for a member that was added.
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
    """Another live node keeps this node's name; this node is no longer a member."""

    holder: Address


class MembershipPhase(enum.Enum):
    """Lifecycle of this node in its cluster."""

    NEW = "not started"
    JOINING = "joining"
    MEMBER = "member"
    LEFT = "left"
    NAME_LOST = "name lost"

    @property
    def is_running(self) -> bool:
        """Whether the node processes packets and timers."""
        return self in (MembershipPhase.JOINING, MembershipPhase.MEMBER)


class MemberState(enum.IntEnum):
    """State of a member. At one incarnation, a later state overrides an earlier one."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_active(self) -> bool:
        """Whether the member counts as part of the cluster."""
        return self <= MemberState.SUSPECT


class StateChangeCause(enum.Enum):
    """Input of the state table. Gossip counts only if it is newer than what is known."""

    REPLIED = "it replied to this node"
    GOSSIP_ALIVE = "gossip: alive"
    GOSSIP_SUSPECT = "gossip: suspect"
    GOSSIP_DEAD = "gossip: dead"
    GOSSIP_LEFT = "gossip: left"
    PROBE_FAILED = "probe failed"
    TIMED_OUT = "suspicion timed out"
    REPLACED = "replaced by a new process"
    REAPED = "tombstone expired"


GOSSIP_CAUSES = {state: StateChangeCause[f"GOSSIP_{state.name}"] for state in MemberState}

TRANSITIONS: dict[tuple[MemberState | None, StateChangeCause], MemberState | None] = {
    (None, StateChangeCause.REPLIED): MemberState.ALIVE,
    (MemberState.ALIVE, StateChangeCause.REPLIED): MemberState.ALIVE,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_ALIVE): MemberState.ALIVE,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_SUSPECT): MemberState.SUSPECT,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_DEAD): MemberState.SUSPECT,
    (MemberState.ALIVE, StateChangeCause.GOSSIP_LEFT): MemberState.LEFT,
    (MemberState.ALIVE, StateChangeCause.PROBE_FAILED): MemberState.SUSPECT,
    (MemberState.ALIVE, StateChangeCause.REPLACED): None,
    (MemberState.SUSPECT, StateChangeCause.REPLIED): MemberState.ALIVE,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_ALIVE): MemberState.ALIVE,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_SUSPECT): MemberState.SUSPECT,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_DEAD): MemberState.SUSPECT,
    (MemberState.SUSPECT, StateChangeCause.GOSSIP_LEFT): MemberState.LEFT,
    (MemberState.SUSPECT, StateChangeCause.TIMED_OUT): MemberState.DEAD,
    (MemberState.SUSPECT, StateChangeCause.REPLACED): None,
    (MemberState.DEAD, StateChangeCause.REPLIED): MemberState.ALIVE,
    (MemberState.DEAD, StateChangeCause.GOSSIP_DEAD): MemberState.DEAD,
    (MemberState.DEAD, StateChangeCause.GOSSIP_LEFT): MemberState.LEFT,
    (MemberState.DEAD, StateChangeCause.REPLACED): None,
    (MemberState.DEAD, StateChangeCause.REAPED): None,
    (MemberState.LEFT, StateChangeCause.REPLACED): None,
    (MemberState.LEFT, StateChangeCause.REAPED): None,
}
"""Next state by current state and cause; None stands for a member that is not in the table.

Nothing changes a process that has left, except replacement and reaping. Gossip that an unknown or
dead member is alive makes it a candidate, which is probed first.
"""


Properties: TypeAlias = dict[str, str]

LEAVE_DIGEST_BYTES = 16
_HOST_BYTES_MAX = 255
_SECRET_BYTES_MAX = 64
# The highest numbers that another node may claim for a member, and that a member may use to outrank
# such a claim.
CLAIM_MAX = 1 << 62
NUMBER_MAX = (1 << 63) - 1


class MemberRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One member as it is gossiped."""

    name: str
    instance: int
    """Process number: a process that started later has a higher one."""
    host: str
    port: int
    incarnation: int
    """Raised only by the member itself, to override what others report of it."""
    state: MemberState
    version: int
    """Version of the properties, raised by each change."""
    leave_digest: bytes
    """Digest of the leave secret; only its owner can prove that this process leaves."""
    properties: Properties | None = None
    """None if they were omitted; a node with an older version requests them."""
    reported_by: str = ""
    """Name of the node that reported the member suspected or dead."""
    leave_secret: bytes = b""
    """The secret whose digest proves that the member left."""

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    @property
    def identity(self) -> tuple[int, str, int, bytes]:
        """Fields that one process never changes."""
        return (self.instance, self.host, self.port, self.leave_digest)

    @property
    def precedence(self) -> tuple[int, int]:
        """Sort key: of two records of one process, the higher one is newer."""
        if self.state is MemberState.LEFT:
            return (NUMBER_MAX, MemberState.LEFT)
        return (self.incarnation, self.state)

    def supersedes(self, other: MemberRecord) -> bool:
        """Return whether this process is later than another process of the same name."""
        return (self.incarnation, self.instance) > (other.incarnation, other.instance)

    def without_properties(self) -> MemberRecord:
        return msgspec.structs.replace(self, properties=None)


class Member(msgspec.Struct, frozen=True):
    """A member of the cluster as a node sees it at one moment."""

    name: str
    address: Address
    state: MemberState
    incarnation: int
    instance: int
    properties: Mapping[str, str]
    version: int
    """Version of the properties."""

    @property
    def is_reachable(self) -> bool:
        """Whether the member is alive; a suspected one stays a member until declared dead."""
        return self.state is MemberState.ALIVE

    def __str__(self) -> str:
        return f"{self.name} at {self.address}, {self.state.name.lower()}"


def to_member(record: MemberRecord) -> Member:
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
    """Return the digest of a leave secret, which every node may know."""
    return hashlib.sha256(secret).digest()[:LEAVE_DIGEST_BYTES]


def is_authentic_leave(record: MemberRecord, digest: bytes) -> bool:
    """Return whether the secret of a leave record matches the member's digest."""
    return leave_digest(record.leave_secret) == digest


def properties_size(properties: Mapping[str, str]) -> int:
    """Return the approximate encoded size of properties in bytes."""
    return sum(len(key.encode()) + len(value.encode()) + 4 for key, value in properties.items())


def check_record(record: MemberRecord, *, properties_bytes_max: int) -> None:
    """Raise MalformedPayloadError if a correct node would not send the record."""
    try:
        validate_node_name(record.name)
    except ConfigError as error:
        raise MalformedPayloadError(str(error)) from None
    if not 0 < len(record.host.encode()) <= _HOST_BYTES_MAX or not 0 < record.port < 65536:
        raise MalformedPayloadError(
            f"member {record.name!r} has an invalid address {record.host!r}:{record.port}"
        )
    numbers = (record.incarnation, record.instance, record.version)
    if not all(0 <= number < NUMBER_MAX for number in numbers):
        raise MalformedPayloadError(
            f"member {record.name!r} has a number out of range: {max(numbers)}"
        )
    # A record that fits no datagram would block the head of the gossip queue for ever.
    if (
        len(record.reported_by.encode()) > NODE_NAME_BYTES_MAX
        or len(record.leave_secret) > _SECRET_BYTES_MAX
    ):
        raise MalformedPayloadError(
            f"member {record.name!r} has a reporter or leave secret that is too long"
        )
    if len(record.leave_digest) != LEAVE_DIGEST_BYTES:
        raise MalformedPayloadError(
            f"member {record.name!r} has a leave digest of {len(record.leave_digest)} bytes"
        )
    if record.properties and properties_size(record.properties) > properties_bytes_max:
        raise MalformedPayloadError(
            f"member {record.name!r} has more than {properties_bytes_max} bytes of properties"
        )
