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


class State(enum.IntEnum):
    """What a node thinks of a member. A later state prevails over an earlier one of its kind."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3

    @property
    def is_active(self) -> bool:
        """Whether it counts as a member."""
        return self <= State.SUSPECT


class Cause(enum.Enum):
    """Why a node changes its mind. Rumours count only if they are news."""

    ANSWERED = "it answered this node"
    HEARD_ALIVE = "heard that it is alive"
    HEARD_SUSPECT = "heard that it is suspected"
    HEARD_DEAD = "heard that it is dead"
    HEARD_LEFT = "it said goodbye"
    PROBE_FAILED = "it did not answer"
    TIMED_OUT = "it did not speak up in time"
    REPLACED = "a new process has its name"
    FORGOTTEN = "long ago"


HEARD = {
    State.ALIVE: Cause.HEARD_ALIVE,
    State.SUSPECT: Cause.HEARD_SUSPECT,
    State.DEAD: Cause.HEARD_DEAD,
    State.LEFT: Cause.HEARD_LEFT,
}

TRANSITIONS: dict[tuple[State | None, Cause], State | None] = {
    (None, Cause.ANSWERED): State.ALIVE,
    (State.ALIVE, Cause.ANSWERED): State.ALIVE,
    (State.ALIVE, Cause.HEARD_ALIVE): State.ALIVE,
    (State.ALIVE, Cause.HEARD_SUSPECT): State.SUSPECT,
    (State.ALIVE, Cause.HEARD_DEAD): State.SUSPECT,
    (State.ALIVE, Cause.HEARD_LEFT): State.LEFT,
    (State.ALIVE, Cause.PROBE_FAILED): State.SUSPECT,
    (State.ALIVE, Cause.REPLACED): None,
    (State.SUSPECT, Cause.ANSWERED): State.ALIVE,
    (State.SUSPECT, Cause.HEARD_ALIVE): State.ALIVE,
    (State.SUSPECT, Cause.HEARD_SUSPECT): State.SUSPECT,
    (State.SUSPECT, Cause.HEARD_DEAD): State.SUSPECT,
    (State.SUSPECT, Cause.HEARD_LEFT): State.LEFT,
    (State.SUSPECT, Cause.TIMED_OUT): State.DEAD,
    (State.SUSPECT, Cause.REPLACED): None,
    (State.DEAD, Cause.ANSWERED): State.ALIVE,
    (State.DEAD, Cause.HEARD_DEAD): State.DEAD,
    (State.DEAD, Cause.HEARD_LEFT): State.LEFT,
    (State.DEAD, Cause.REPLACED): None,
    (State.DEAD, Cause.FORGOTTEN): None,
    (State.LEFT, Cause.REPLACED): None,
    (State.LEFT, Cause.FORGOTTEN): None,
}
"""None stands for a member that is not known. Of a process that has left nothing is news.

That a node lives which is not known, or thought dead, is a reason to ask it, and no more.
"""
