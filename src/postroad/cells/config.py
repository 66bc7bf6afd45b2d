"""Every maximum and time of a domain."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import msgspec

from postroad.cells.routing.advertiser import RouteAdvertiserConfig
from postroad.cells.routing.route_learner import RouteLearnerConfig
from postroad.core.errors import ConfigError
from postroad.core.limits import MIB

RemoteCommands: TypeAlias = Literal["off", "read", "change"]
"""Which commands of other domains are answered: none, those that only look, or all."""


class CellsConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a domain; the defaults suit most."""

    call_timeout_s: float = 30.0
    """How long a call may take that names no time of its own."""
    mailbox_messages_max: int = 1_000
    """Messages that wait for one cell; more are refused."""
    mailbox_bytes_max: int = 16 * MIB
    """What they may weigh together, heads and paths included."""
    link_messages_max: int = 10_000
    """Messages that wait for one tunnel; more are refused."""
    link_bytes_max: int = 32 * MIB
    """What they may weigh together."""
    resend_messages_max: int = 1_024
    """Messages sent without a call that are kept a while, to be sent another way if one fails."""
    resend_bytes_max: int = 4 * MIB
    """What they may weigh together."""
    redial_first_s: float = 0.2
    """The pause before a core is dialed again, the first time."""
    redial_max_s: float = 10.0
    """The longest pause; it doubles until then."""
    forget_core_s: float = 60.0
    """How long a core is dialed that nobody tells of any more."""
    route_retry_s: float = 1.0
    """How long a call waits for a route before it looks again by itself."""
    stop_grace_s: float = 5.0
    """How long messages that were taken in may be worked on when the domain stops."""
    announcing: RouteAdvertiserConfig = RouteAdvertiserConfig()
    """How others are told what this domain offers."""
    learning: RouteLearnerConfig = RouteLearnerConfig()
    """How this domain learns from others."""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if isinstance(value, int | float) and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{field}={value!r} must be a finite number above 0")
        if self.redial_first_s > self.redial_max_s:
            raise ConfigError(
                f"redial_first_s={self.redial_first_s} is above redial_max_s={self.redial_max_s}"
            )
