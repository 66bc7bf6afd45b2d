"""Who is alive: a machine without I/O that follows SWIM. `postroad.cluster.Agent` runs it."""

from .changes import ChangeKind, MemberChange, NameContested, NameLost
from .config import MembershipConfig
from .machine import NEVER, Change, Membership, Phase
from .own import check_properties
from .records import Member, Record
from .states import TRANSITIONS, Cause, State
from .voice import Chance, Counters, Send

__all__ = [
    "NEVER",
    "TRANSITIONS",
    "Cause",
    "Chance",
    "Change",
    "ChangeKind",
    "Counters",
    "Member",
    "MemberChange",
    "Membership",
    "MembershipConfig",
    "NameContested",
    "NameLost",
    "Phase",
    "Record",
    "Send",
    "State",
    "check_properties",
]
