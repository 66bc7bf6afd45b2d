"""What a domain counts."""

from __future__ import annotations

import msgspec

from postroad.cells.addresses import DomainInfo


class DomainStatistics(msgspec.Struct):
    """Totals since the start."""

    delivered: int = 0
    """Messages handed to cells of this domain."""
    forwarded: int = 0
    """Messages handed to tunnels."""
    undelivered: int = 0
    """Messages that nobody took, and whose sender was told or could not be."""
    refused: int = 0
    """Messages refused because a mailbox or the queue of a tunnel was full."""
    expired: int = 0
    """Messages whose time was over."""
    failed: int = 0
    """Messages whose handler raised."""
    resent: int = 0
    """Messages that went another way after one had failed."""
    replies_late: int = 0
    """Replies and errors that nobody waited for any more."""
    malformed: int = 0
    """Messages of peers that could not be read, or that pretend to come from somebody else.

    What only passes through is not read beyond its route, so it counts where it is delivered.
    """

    def copy(self) -> DomainStatistics:
        """The counters as they are now."""
        return msgspec.structs.replace(self)


class LinkStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A tunnel at one moment."""

    domain: DomainInfo
    incarnation: int
    round_trip_s: float | None
    sent: int
    received: int
    waiting: int
    waiting_bytes: int
    refused: int
    malformed: int
