"""Who is alive: a SWIM state machine without I/O, run by `postroad.cluster.ClusterAgent`."""

from .changes import MembershipEvent, MembershipEventType, NameConflictDetected, NameConflictLost
from .config import MembershipConfig
from .machine import NEVER, Membership, MembershipPhase, MembershipUpdate
from .own import validate_properties
from .records import Member, MemberRecord
from .states import TRANSITIONS, MemberState, StateChangeCause
from .voice import MembershipCounters, OutgoingPacket, RandomSource

__all__ = [
    "NEVER",
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
    "RandomSource",
    "StateChangeCause",
    "validate_properties",
]
