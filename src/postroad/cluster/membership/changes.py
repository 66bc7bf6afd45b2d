"""What a node learns about its cluster, for whoever wants to know."""

from __future__ import annotations

import enum

import msgspec

from postroad.core import Address

from .records import Member


class MembershipEventType(enum.Enum):
    """What changed."""

    ADDED = "added"
    METADATA = "metadata"
    REACHABILITY = "reachability"
    REMOVED = "removed"


_WORDS = {
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
        return f"{_WORDS[self.kind]} {self.member}"


class NameConflictDetected(msgspec.Struct, frozen=True):
    """Another live node claims this node's name; this node keeps it."""

    rival: Address


class NameConflictLost(msgspec.Struct, frozen=True):
    """Another live node has this node's name and keeps it; this node is no member any more."""

    holder: Address
