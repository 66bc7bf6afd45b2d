"""Statistics of the durable queues of a node, and the spans of their messages."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from postroad.core import tracing
from postroad.core.tracing import SpanKind, SpanLike
from postroad.durable.bridges.control import BridgeStatus
from postroad.durable.consumers.dispatch_order import QueuedMessage

_MEMORY_S = 10.0


class QueueStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One queue of this node."""

    depth: int
    """Messages that are not handled."""
    in_flight: int
    """Those of them that are being handled."""
    oldest_age_s: float | None
    """Age of the oldest message that waits, also for another try; None if there is none.

    Of messages that came together it is that of the first, until all of them are handled.
    """
    is_paused: bool
    has_consumer: bool
    handled: int
    """Since this process started."""
    failed: int


class PeerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of the outbox for one peer."""

    depth: int
    """Messages the peer is not known to have, without those that were purged."""
    oldest_age_s: float | None
    sent: int
    """In this epoch."""
    epoch: int
    is_paused: bool
    """Whether an operator has paused delivery to it."""
    bridge: BridgeStatus | None
    """None if there is no bridge in this process."""


class DurableQueuesStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of all queues and peers of a node."""

    queues: dict[str, QueueStatistics]
    peers: dict[str, PeerStatistics]
    dead_letters: int
    blocked_senders: list[str] = []
    """Senders that must wait because they have too many dead letters here."""
    commits: int
    """Since this process started."""
    unclaimed_replies: int
    """Replies that arrived after their request had timed out."""
    sent: int
    """Messages stored in the outbox since this process started."""
    sent_per_s: float
    """Over about the last ten seconds."""
    handled_per_s: float
    failed_per_s: float
    """Failed attempts."""

    @property
    def waiting(self) -> int:
        """Messages that wait, in queues or for peers."""
        in_queues = sum(queue.depth for queue in self.queues.values())
        return in_queues + sum(peer.depth for peer in self.peers.values())


class RateEstimator:
    """The rate of an event, over about the last ten seconds."""

    __slots__ = ("_at", "_rate", "total")

    def __init__(self) -> None:
        self._at = 0.0
        self._rate = 0.0
        self.total = 0

    def add(self, count: int, now: float) -> None:
        """So many have happened."""
        self._rate = self.per_s(now) + count / _MEMORY_S
        self._at = now
        self.total += count

    def per_s(self, now: float) -> float:
        """The rate now."""
        return self._rate * math.exp((self._at - now) / _MEMORY_S)


class RateTotals:
    """Rates that are measured while a node runs."""

    __slots__ = ("failed", "handled", "sent", "unclaimed_replies")

    def __init__(self) -> None:
        self.sent = RateEstimator()
        self.handled = RateEstimator()
        self.failed = RateEstimator()
        self.unclaimed_replies = 0


def start_send_span(
    node: str, peer: str, queue: str, headers: Mapping[str, str] | None = None
) -> SpanLike:
    """The span of a message that is sent."""
    return tracing.start_outgoing_span(
        "durable", f"post {queue}", SpanKind.PRODUCER, node=node, peer=peer, headers=headers
    )


def start_handle_span(node: str, entry: QueuedMessage) -> SpanLike:
    """The span of the handling of a message: a child of its sending, whenever that was."""
    message = entry.message
    span = tracing.start_incoming_span(
        "durable",
        f"handle {message.queue}",
        tracing.extract_context(message.headers),
        SpanKind.CONSUMER,
        node=node,
        peer=entry.location.sender,
    )
    span.set_attribute("attempt", entry.failures + 1)
    return span
