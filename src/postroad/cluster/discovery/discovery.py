"""The `Discovery` protocol, with statistics, reporter and checks of settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from postroad.core import Address, ThrottledLogger
from postroad.core.errors import ConfigError

T = TypeVar("T")


def validate_port(address: Address) -> Address:
    """Return the address if its port can be dialed, else raise ConfigError."""
    if not 0 < address.port < 65536:
        raise ConfigError(f"cannot use seed address {address}: its port must be 1 to 65535")
    return address


def validate_list(name: str, values: Iterable[T]) -> list[T]:
    """Return the values as a list; raise ConfigError for a single string."""
    if isinstance(values, str):
        raise ConfigError(f"{name} must be a list, such as [{values!r}], not a single string")
    return list(values)


def validate_seconds(name: str, value: float) -> float:
    """Return the duration if it is finite and above 0, else raise ConfigError."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name}={value!r} must be a number of seconds above 0")
    return value


# Similar warnings are logged once in this many seconds.
_WARN_INTERVAL_S = 60.0


class BackgroundDiscoveryStatistics(msgspec.Struct):
    """State and totals of a discovery."""

    is_connected: bool = False
    """Whether the source replied to the last request."""
    is_registered: bool = False
    """Whether this node was registered as of the last check."""
    changes: int = 0
    """Results published."""
    failures: int = 0
    """Requests that failed or that the source rejected."""
    registrations: int = 0
    """Registrations of this node; more than one after a lost session."""
    conflicts: int = 0
    """Times another node had registered this node's name."""
    skipped: int = 0
    """Registrations of others that could not be decoded."""
    last_error: str = ""
    """The last failure, even if the source works again."""


class DiscoveryReporter:
    """Counts and logs the events of a discovery."""

    def __init__(
        self, logger: logging.Logger, source: str, counts: BackgroundDiscoveryStatistics
    ) -> None:
        self.logger = logger
        self.source = source
        self.counts = counts
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)

    def set_connected(self, is_connected: bool) -> None:
        """Record whether the source is reachable; log when it is again."""
        if is_connected and not self.counts.is_connected and self.counts.failures:
            self.logger.info("%s: reachable again", self.source)
        self.counts.is_connected = is_connected

    def report_failure(self, key: str, text: str, *args: object) -> None:
        """Count a failure, and log it at most once per interval and key."""
        self.count_failure(text % args)
        self.warn(key, text, *args)

    def warn(self, key: str, text: str, *args: object, level: int = logging.WARNING) -> None:
        """Log a message at most once per interval and key."""
        now = asyncio.get_running_loop().time()
        self._log.log(key, now, f"%s: {text}", self.source, *args, level=level)

    def count_failure(self, error: str) -> None:
        """Count a failure without logging it."""
        self.counts.failures += 1
        self.counts.last_error = error


SeedsCallback: TypeAlias = Callable[[frozenset[Address]], None]
"""Called with all known seed addresses, this node's own excluded."""


class DiscoveryStatistics(BackgroundDiscoveryStatistics):
    """State and totals of a discovery of seeds."""

    seeds: int = 0
    """Seed addresses known now."""


@runtime_checkable
class Discovery(Protocol):
    """Source of seed addresses; it says where nodes may be, never which are alive."""

    async def start(self, name: str, address: Address, on_seeds: SeedsCallback) -> None:
        """Start; `on_seeds` is called on the event loop once now and after every change.

        An unreachable source delays this by a few seconds at most and is retried in the background:
        the first call then gets an empty set.

        Raises:
            ConfigError: a setting is invalid.
            UsageError: the discovery was started before; create a new one.
        """

    async def stop(self) -> None:
        """Deregister this node, within bounded time. No callback is called from then on."""

    def statistics(self) -> DiscoveryStatistics:
        """Return a copy of the current statistics."""
