"""What a search says of itself: numbers, and log lines that do not flood."""

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
    """Return the address if somebody can be reached there, else raise ConfigError."""
    if not 0 < address.port < 65536:
        raise ConfigError(f"address {address}: the port of a contact must be 1 to 65535")
    return address


def validate_list(name: str, values: Iterable[T]) -> list[T]:
    """Return several values as a list; a single text, whose letters would be taken, is an error."""
    if isinstance(values, str):
        raise ConfigError(f"{name} must be a list, such as [{values!r}], not a single text")
    return list(values)


def validate_seconds(name: str, value: float) -> float:
    """Return a duration if it is above zero and has an end, else raise ConfigError."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r}; it must be a number of seconds above 0")
    return value


# Similar warnings are told once in so many seconds.
_WARN_INTERVAL_S = 60.0


class BackgroundDiscoveryStatistics(msgspec.Struct):
    """What is known now, and totals since the start."""

    is_connected: bool = False
    """The source answered when it was last asked."""
    is_registered: bool = False
    """This node was entered in the source when that was last looked at."""
    changes: int = 0
    """Times what is known was told."""
    failures: int = 0
    """Times the source did not answer or refused."""
    registrations: int = 0
    """Times this node was entered in the source; more than one after a lost session."""
    conflicts: int = 0
    """Times another node held this node's name in the source."""
    skipped: int = 0
    """Entries of others that could not be read."""
    last_error: str = ""
    """What went wrong last, also when it is over by now."""


class DiscoveryReporter:
    """Counts and logs what a search meets with."""

    def __init__(
        self, logger: logging.Logger, source: str, counts: BackgroundDiscoveryStatistics
    ) -> None:
        self.logger = logger
        self.source = source
        self.counts = counts
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)

    def set_connected(self, is_connected: bool) -> None:
        """Remember whether the source answers, and say so when it does again."""
        if is_connected and not self.counts.is_connected and self.counts.failures:
            self.logger.info("%s: answers again", self.source)
        self.counts.is_connected = is_connected

    def report_failure(self, key: str, text: str, *args: object) -> None:
        """Count a failure; log it, but not more often than makes sense for its key."""
        self.count_failure(text % args)
        self.warn(key, text, *args)

    def warn(self, key: str, text: str, *args: object, level: int = logging.WARNING) -> None:
        """Log something, but not more often than makes sense for its key."""
        now = asyncio.get_running_loop().time()
        self._log.log(key, now, f"%s: {text}", self.source, *args, level=level)

    def count_failure(self, error: str) -> None:
        """Remember what went wrong."""
        self.counts.failures += 1
        self.counts.last_error = error


SeedsCallback: TypeAlias = Callable[[frozenset[Address]], None]
"""Told all addresses known now, the own one never among them."""


class DiscoveryStatistics(BackgroundDiscoveryStatistics):
    """What is known of contacts now, and totals since the start."""

    contacts: int = 0
    """Addresses known now."""


@runtime_checkable
class Discovery(Protocol):
    """Tells where nodes of the cluster may be found; never who is alive."""

    async def start(self, name: str, address: Address, on_seeds: SeedsCallback) -> None:
        """Begin to look; `on_contacts` is called on the loop now and at every change.

        A source that is away delays this by a few seconds at most and is asked again in the
        background: the first call then has nobody in it.

        Raises:
            ConfigError: a setting is wrong.
            UsageError: it was started before; make a new one.
        """

    async def stop(self) -> None:
        """Withdraw what was registered, within bounded time. Nothing is called from then on."""

    def statistics(self) -> DiscoveryStatistics:
        """A copy of the numbers as they are now."""
