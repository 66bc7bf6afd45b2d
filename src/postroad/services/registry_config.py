"""The settings of a registry."""

from __future__ import annotations

import math

import msgspec

from postroad.core.errors import ConfigError


class RegistryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Times and limits of a registry."""

    heartbeat_timeout_s: float = 30.0
    """A node that was not heard for so long is lost; 0 if heartbeats are not used."""
    clean_offline_s: float = 600.0
    """A node that is offline for so long is forgotten; 0 to keep it."""
    verify_interval_s: float = 120.0
    """How often a node whose heartbeats do not tell its state is asked for it."""
    verify_timeout_s: float = 0.0
    """How long a node may take to answer before it is believed that it left, began a new life or
    offers less; 0 believes it at once."""
    nodes_max: int = 10_000
    """Nodes that are known; more are refused, unless others are offline or never answered."""
    unproven_max: int = 64
    """Nodes that are known and never answered, while nodes are asked at all; more must answer
    before they are known."""
    prefers_local: bool = True
    """Whether an endpoint at this node wins."""

    def __post_init__(self) -> None:
        for name in (
            *("heartbeat_timeout_s", "clean_offline_s"),
            *("verify_interval_s", "verify_timeout_s"),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name}={value!r} must be a finite number, 0 or more")
        for name in ("nodes_max", "unproven_max"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} must be at least 1")
