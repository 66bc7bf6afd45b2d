"""SWIM membership as a state machine without I/O, driven by `postroad.cluster.ClusterAgent`."""

from postroad.cluster.membership.config import MembershipConfig
from postroad.cluster.membership.context import MembershipCounters, OutgoingPacket
from postroad.cluster.membership.local_member import validate_properties
from postroad.cluster.membership.members import (
    TRANSITIONS,
    Member,
    MemberRecord,
    MembershipEvent,
    MembershipEventType,
    MembershipPhase,
    MemberState,
    NameConflictDetected,
    NameConflictLost,
    StateChangeCause,
)
from postroad.cluster.membership.membership import Membership, MembershipUpdate

__all__ = [
    "TRANSITIONS",
    "Member",
    "MemberRecord",
    "MemberState",
    "Membership",
    "MembershipConfig",
    "MembershipCounters",
    "MembershipEvent",
    "MembershipEventType",
    "MembershipPhase",
    "MembershipUpdate",
    "NameConflictDetected",
    "NameConflictLost",
    "OutgoingPacket",
    "StateChangeCause",
    "validate_properties",
]
