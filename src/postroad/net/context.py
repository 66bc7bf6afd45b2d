"""State shared by all connections of a service: configuration, counters, log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from postroad.core import Address, Limits, ThrottledLogger, tracing
from postroad.net.statistics import NetworkCounters
from postroad.wire import UnfinishedFrames, WireConfig

if TYPE_CHECKING:
    from postroad.net.connections.tunnel import TunnelAcceptor

logger = logging.getLogger("postroad.net")

# Warnings with the same key are logged once in so many seconds.
_WARN_INTERVAL_S = 5.0


class ConnectionContext:
    """Configuration, counters and callbacks that all connections of a service share."""

    def __init__(self, config: WireConfig, next_id: Callable[[], int]) -> None:
        self.config = config
        self.limits: Limits = config.limits
        self.next_id = next_id
        self.counters = NetworkCounters()
        self.unfinished = UnfinishedFrames(self.limits.unfinished_bytes_max)
        # Set when the service stops; connections established after that are not served.
        self.is_stopped = False
        self.protocol_errors_by_kind: dict[str, int] = {}
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        # Called with address and incarnation of a peer that connected with this node's name.
        self.on_duplicate_name: Callable[[Address, int], None] | None = None
        # Returns the handlers of tunnels that peers open; None rejects them.
        self.accept_tunnel: TunnelAcceptor | None = None

    def wire_config(self) -> WireConfig:
        """Return the configuration of a new connection; it accepts traces if they are recorded."""
        if tracing.tracer is None:
            return self.config
        hello = msgspec.structs.replace(self.config.hello, accepts_traces=True)
        return msgspec.structs.replace(self.config, hello=hello)

    def replace_hello(self, **changes: object) -> None:
        """Change fields of the hello that new connections send."""
        hello = msgspec.structs.replace(self.config.hello, **changes)
        self.config = msgspec.structs.replace(self.config, hello=hello)

    def warn(self, key: str, now: float, text: str, *args: object) -> None:
        """Log a warning, at most once per interval for its key."""
        self._log.log(key, now, text, *args)
