"""What a node can think of a member, and every way in which that changes.

Everything that changes a state is in the table below: the machine looks up the state it has and the
cause it has learnt of, and a pair that is not listed changes nothing. The diagram in the
documentation is drawn from the same table.

Nobody is a member because somebody says so: each node counts those who have answered it.

A member is declared dead by each node for itself, when its own suspicion has run out. News that
somebody else thinks it dead make it suspected, or hasten the suspicion; they never remove it. So a
false or a forged rumour always leaves the member time to speak up.
"""

from __future__ import annotations

import enum


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
