"""Settings of a domain, and the counters of a domain and of its tunnels."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from postroad.cells.addresses import DomainInfo
from postroad.cells.routing.advertiser import RouteAdvertiserConfig
from postroad.cells.routing.route_learner import RouteLearnerConfig
from postroad.core.errors import ConfigError
from postroad.core.limits import MIB, check_positive

RemoteCommands: TypeAlias = Literal["off", "read", "change"]
"""Commands that other domains may run here: none, read-only ones, or all."""


class CellsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and times of a domain; the defaults suit most clusters."""

    call_timeout_s: float = 30.0
    """Timeout of calls that are made without `timeout`."""
    mailbox_messages_max: int = 1_000
    """Messages in the mailbox of one cell; further ones are rejected with CellBusyError."""
    mailbox_bytes_max: int = 16 * MIB
    """Memory of these messages, headers and paths included."""
    link_messages_max: int = 10_000
    """Messages queued for one tunnel; further ones are rejected with CellBusyError."""
    link_bytes_max: int = 32 * MIB
    """Memory of these messages."""
    resend_messages_max: int = 1_024
    """One-way messages buffered for a while, to be rerouted if the selected route fails."""
    resend_bytes_max: int = 4 * MIB
    """Memory of these messages."""
    redial_initial_delay_s: float = 0.2
    """Delay before the first redial of a core."""
    redial_max_delay_s: float = 10.0
    """Longest delay between two dials; the delay doubles up to this value."""
    core_expiry_s: float = 60.0
    """How long a core is still dialed after core discovery stopped listing it."""
    route_retry_s: float = 1.0
    """How long a call without a route waits for a route change before it retries."""
    stop_grace_s: float = 5.0
    """How long accepted messages may still be handled when the domain stops."""
    advertiser: RouteAdvertiserConfig = RouteAdvertiserConfig()
    """Times of the route advertiser."""
    route_learner: RouteLearnerConfig = RouteLearnerConfig()
    """Times of the route learner."""

    def __post_init__(self) -> None:
        check_positive(self)
        if self.redial_initial_delay_s > self.redial_max_delay_s:
            raise ConfigError(
                f"redial_initial_delay_s={self.redial_initial_delay_s} is above "
                f"redial_max_delay_s={self.redial_max_delay_s}"
            )


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
