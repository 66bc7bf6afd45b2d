"""Counters of a domain and of its tunnels."""

from __future__ import annotations

import msgspec

from postroad.cells.addresses import DomainInfo


class DomainStatistics(msgspec.Struct):
    """Counters of a domain since it started."""

    delivered: int = 0
    """Messages delivered to cells of this domain."""
    forwarded: int = 0
    """Messages sent or queued to tunnels."""
    undelivered: int = 0
    """Messages without a route; the sender gets an error reply if it can get one."""
    refused: int = 0
    """Messages rejected because a mailbox or the queue of a tunnel was full."""
    expired: int = 0
    """Messages whose TTL was over."""
    failed: int = 0
    """Messages whose handler raised."""
    resent: int = 0
    """Messages rerouted after their route failed."""
    replies_late: int = 0
    """Replies and error replies that arrived after their call had ended."""
    malformed: int = 0
    """Messages of peers that could not be decoded, or whose source path is forged.

    A domain that forwards a message decodes its route only, so the rest counts at the receiver.
    """

    def copy(self) -> DomainStatistics:
        """Return a copy of the counters."""
        return msgspec.structs.replace(self)


class LinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Counters and gauges of a tunnel."""

    domain: DomainInfo
    incarnation: int
    round_trip_s: float | None
    sent: int
    received: int
    waiting: int
    waiting_bytes: int
    refused: int
    malformed: int
