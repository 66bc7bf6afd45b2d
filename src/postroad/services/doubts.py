"""What somebody said in the name of a node, until the node itself was asked.

Over a server in between, and over TCP, a packet proves nothing of its sender. What would take
something away (a goodbye, a new life, services that are gone) therefore only begins a doubt: the
node is asked for its INFO and pinged, twice with a pause so that what it said before has come.

- A node that says what it said before refutes whoever said otherwise, however often that was.
- A node that answers has not left.
- A node that answers, and says again what was said, has said it.
- Of a node that does not answer everything is believed, as if it had not been asked.
"""

from __future__ import annotations

import enum

import msgspec

from .info_form import ReadInfo
from .schema import NodeInfo, ServiceInfo

RESTART_S = 0.3
"""A new life ends all calls, so its claim stands for so long before it is believed: longer than a
node takes to answer whom it has just answered."""


class Verdict(enum.Enum):
    """What becomes of a node."""

    KEPT = "kept"
    UPDATED = "updated"
    LOST = "lost"


class Doubt(msgspec.Struct):
    """A node that is being asked."""

    since: float
    deadline: float
    """When it is too late for an answer."""
    claim: ReadInfo | None = None
    """What it is said to be now."""
    is_agreed: bool = False
    """Whether the claim came again after the node was asked."""
    is_goodbye: bool = False
    """Whether it is said to be gone."""
    is_other_life: bool = False
    """Whether somebody in its name does not know what it said before."""
    offline_seq: int = 0
    """The seq that it is said to be gone with."""
    is_alive: bool = False
    """Whether it has answered."""
    is_same_life: bool = False
    """Whether the answer was that of the life that is known."""

    def is_refuted_by(self, info: NodeInfo, known: NodeInfo, seq: int) -> bool:
        """Whether an INFO shows that the claim is wrong; `seq` is that of the known life."""
        if self.claim is None or info.instance_id != known.instance_id or info.seq < seq:
            return False
        claimed = self.claim.info
        return info.instance_id != claimed.instance_id or not info.seq >= claimed.seq > seq

    def hear(self, read: ReadInfo, known: NodeInfo, seq: int) -> bool:
        """An INFO came that refutes nothing: it agrees with the claim, is another, or is late.

        Returns whether it is another, which the node has not been asked about.
        """
        info, claimed = read.info, self.claim.info if self.claim else None
        is_older = info.instance_id == known.instance_id and info.seq < seq
        if claimed and is_older and (claimed.instance_id != info.instance_id or claimed.seq > seq):
            return False
        self.claim = read
        self.is_agreed = (
            claimed is not None
            and info.instance_id == claimed.instance_id
            and info.seq >= claimed.seq
        )
        return not self.is_agreed

    def due(self, known: NodeInfo) -> float:
        """When there will be a verdict at the latest, unless something comes."""
        is_decided = self.is_alive and self.is_agreed
        return min(self.deadline, self._believed_at(known)) if is_decided else self.deadline

    def _believed_at(self, known: NodeInfo) -> float:
        is_restart = self.claim is not None and self.claim.info.instance_id != known.instance_id
        return self.since + RESTART_S if is_restart else self.since

    def verdict(self, known: NodeInfo, now: float) -> Verdict | None:
        """What is known by now; None to wait on."""
        if not self.is_alive:
            if now < self.deadline:
                return None
            return Verdict.LOST if self.is_goodbye or self.is_other_life else Verdict.UPDATED
        if self.claim is None:
            is_lost = self.is_other_life and not self.is_same_life
            return Verdict.LOST if is_lost else Verdict.KEPT
        if self.is_same_life and self.claim.info.instance_id != known.instance_id:
            return Verdict.KEPT
        if now < self.due(known):
            return None
        return Verdict.UPDATED if self.is_agreed else Verdict.KEPT


def is_other(known: NodeInfo, info: NodeInfo, seq: int) -> bool:
    """Whether an INFO would make a node another than the known one, which has that seq."""
    if info.instance_id != known.instance_id or info.seq < seq:
        return True
    if _nature(info) != _nature(known):
        return True
    return info.seq > seq and _takes_away(known, info)


def _nature(info: NodeInfo) -> tuple[object, ...]:
    return info.hostname, info.ip_list, info.port, info.client


def _takes_away(known: NodeInfo, info: NodeInfo) -> bool:
    after = {service.full_name: service for service in info.services}
    return any(_is_less(service, after.get(service.full_name)) for service in known.services)


def _is_less(before: ServiceInfo, after: ServiceInfo | None) -> bool:
    if after is None:
        return True
    actions = {it.name: it for it in after.actions}
    events = {(after.group_of(it), it.name): it for it in after.events}
    return any(actions.get(it.name) != it for it in before.actions) or any(
        events.get((before.group_of(it), it.name)) != it for it in before.events
    )
