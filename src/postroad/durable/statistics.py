"""Numbers about a node's mail at one moment."""

from __future__ import annotations

import math

import msgspec

from .control import BridgeHealth

_MEMORY_S = 10.0


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of this node."""

    depth: int
    """Messages that are not handled."""
    in_hand: int
    """Those of them that are being handled."""
    oldest_s: float | None
    """Age of the oldest message that waits, also for another try; None if there is none.

    Of messages that came together it is that of the first, until all of them are handled.
    """
    is_paused: bool
    has_consumer: bool
    handled: int
    """Since this process started."""
    failed: int


class PeerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What waits for one peer."""

    depth: int
    """Messages the peer is not known to have, without those that were purged."""
    oldest_s: float | None
    posted: int
    """In this epoch."""
    epoch: int
    is_paused: bool
    """Whether an operator wants nothing to be sent for now."""
    bridge: BridgeHealth | None
    """None if there is no bridge in this process."""


class MailStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A node's mail."""

    queues: dict[str, QueueStatistics]
    peers: dict[str, PeerStatistics]
    dead: int
    blocked_senders: list[str] = []
    """Those whose mail is not taken, because there are too many dead letters of it."""
    commits: int
    """Since this process started."""
    unclaimed_replies: int
    """Replies that came when nobody waited for them any more."""
    posted_per_s: float
    """Over about the last ten seconds."""
    handled_per_s: float
    failed_per_s: float
    """Attempts that came to nothing."""

    @property
    def waiting(self) -> int:
        """Messages that wait, in queues or for peers."""
        in_queues = sum(it.depth for it in self.queues.values())
        return in_queues + sum(it.depth for it in self.peers.values())


class Meter:
    """How often something happens, over about the last ten seconds."""

    __slots__ = ("_at", "_rate")

    def __init__(self) -> None:
        self._at = 0.0
        self._rate = 0.0

    def add(self, count: int, now: float) -> None:
        """So many have happened."""
        self._rate = self.per_s(now) + count / _MEMORY_S
        self._at = now

    def per_s(self, now: float) -> float:
        """The rate now."""
        return self._rate * math.exp((self._at - now) / _MEMORY_S)


class Totals:
    """What is counted while a node runs."""

    __slots__ = ("failed", "handled", "posted", "unclaimed_replies")

    def __init__(self) -> None:
        self.posted = Meter()
        self.handled = Meter()
        self.failed = Meter()
        self.unclaimed_replies = 0
