"""Background discovery: a task that watches a source until it is stopped.

Invariant: after `stop` has been called, no callback is called.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

import msgspec

from postroad.core import Address, ThrottledLogger, to_address, validate_node_name
from postroad.core.errors import ConfigError, UsageError
from postroad.core.timing import backoff

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


logger = logging.getLogger("postroad.cluster.discovery")

Result = TypeVar("Result", bound=Collection[Any])

# Backoff after failures.
RETRY_INITIAL_S = 0.25
RETRY_MAX_S = 5.0


class _DiscoveryState(enum.Enum):
    NEW = "not started"
    RUNNING = "running"
    STOPPED = "stopped"


class BackgroundDiscovery(ABC, Generic[Result]):
    """Runs `_discover` in a task and publishes its results."""

    def __init__(
        self,
        report: DiscoveryReporter,
        subject_plural: str,
        empty: Result,
        *,
        first_result_s: float,
    ) -> None:
        self._report = report
        self._subject_plural = subject_plural
        self._empty = empty
        self._first_result_s = first_result_s
        self._state = _DiscoveryState.NEW
        # Set once the source has replied or failed, and when the discovery stops.
        self._has_result = asyncio.Event()
        # The result that was published last.
        self._published: Result | None = None
        # Set by `_start`.
        self._on_result: Callable[[Result], None]
        self._loop: asyncio.AbstractEventLoop
        self._worker: asyncio.Task[None]
        # The task that stops the discovery, once that has started.
        self._stop_task: asyncio.Task[None] | None = None

    # Lifecycle.

    def _require_new(self) -> None:
        if self._state is not _DiscoveryState.NEW:
            raise UsageError(f"cannot start {self!r} twice; create a new one")

    async def _start(self, on_result: Callable[[Result], None]) -> None:
        """Start the task; return once a result was published, which may be the empty one."""
        self._require_new()
        self._on_result = on_result
        self._loop = asyncio.get_running_loop()
        self._state = _DiscoveryState.RUNNING
        self._worker = self._loop.create_task(self._run())
        try:
            async with asyncio.timeout(self._first_result_s):
                await self._has_result.wait()
        except TimeoutError:
            self._report.report_failure("result", "no result within %g s", self._first_result_s)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self._published is None:
            self._publish(self._empty)

    async def stop(self) -> None:
        """Deregister this node, within bounded time. No callback is called from then on."""
        was_running = self._state is _DiscoveryState.RUNNING
        self._state = _DiscoveryState.STOPPED
        self._has_result.set()
        if was_running:
            self._stop_task = self._loop.create_task(self._stop())
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

    async def _stop(self) -> None:
        """Stop in a separate task, which ends even if the caller is cancelled."""
        self._worker.cancel()
        await asyncio.wait({self._worker})
        await self._deregister()
        self._report.counts.is_connected = False
        self._report.counts.is_registered = False

    async def _run(self) -> None:
        """Run `_discover`, again after every error: a defect must not end the discovery."""
        attempt = 0
        while True:
            try:
                return await self._discover()
            except Exception as error:
                attempt += 1
                self._report.logger.exception(
                    "%s: discovery of %s failed, retrying",
                    self._report.source,
                    self._subject_plural,
                )
                self._report.count_failure(str(error) or type(error).__name__)
                await asyncio.sleep(retry_delay_s(attempt))

    # Implemented by each kind of discovery.

    @abstractmethod
    async def _discover(self) -> None:
        """Discover and publish results for as long as they can change."""

    @abstractmethod
    async def _deregister(self) -> None:
        """Remove what was registered, within bounded time."""

    # Results and reports.

    def _publish(self, result: Result) -> None:
        """Publish a result if it differs from the last one."""
        if self._state is not _DiscoveryState.RUNNING:
            return
        self._has_result.set()
        if result == self._published:
            return
        self._published = result
        self._report.counts.changes += 1
        try:
            self._on_result(result)
        except Exception:
            self._report.logger.exception(
                "%s: callback for %s failed", self._report.source, self._subject_plural
            )

    # Representation.

    def __repr__(self) -> str:
        count = f", {len(self._published or ())} {self._subject_plural}"
        state = self._state.value + (count if self._state is _DiscoveryState.RUNNING else "")
        return f"<{type(self).__name__} {self._report.source} [{state}]>"


class SeedDiscovery(BackgroundDiscovery[frozenset[Address]]):
    """Base of the discoveries of seed addresses."""

    def __init__(self, source: str, *, first_result_s: float) -> None:
        self._counts = DiscoveryStatistics()
        report = DiscoveryReporter(logger, source, self._counts)
        super().__init__(report, "seeds", frozenset(), first_result_s=first_result_s)
        # Set by `start`.
        self._name: str
        self._address: Address
        # All known addresses of this node itself.
        self._local_addresses: frozenset[Address]

    async def start(self, name: str, address: Address, on_seeds: SeedsCallback) -> None:
        """Start the discovery; see `Discovery.start`."""
        self._require_new()
        self._name = validate_node_name(name)
        self._address = validate_port(address)
        self._local_addresses = frozenset({address})
        await self._start(on_seeds)

    def _publish_addresses(self, result: Iterable[Address]) -> None:
        """Publish the seed addresses, without this node's own, if they have changed."""
        self._publish(frozenset(result) - self._local_addresses)

    def statistics(self) -> DiscoveryStatistics:
        return msgspec.structs.replace(self._counts, seeds=len(self._published or ()))


def retry_delay_s(attempt: int, max_delay_s: float = RETRY_MAX_S) -> float:
    """Return the delay in seconds before the given retry."""
    initial_delay_s = min(RETRY_INITIAL_S, max_delay_s)
    return backoff(
        attempt, initial_delay_s=initial_delay_s, max_delay_s=max_delay_s, jitter=random.random()
    )


class StaticDiscovery(SeedDiscovery):
    """A fixed list of seeds.

    Args:
        addresses: `host:port` of nodes. This node's own address may be among them, in the same
            spelling, so that all nodes can share one list. May be empty, for the first node.
    """

    def __init__(self, addresses: Iterable[Address | str] = ()) -> None:
        listed = validate_list("addresses", addresses)
        self._addresses = frozenset(validate_port(to_address(address)) for address in listed)
        super().__init__(_describe(self._addresses), first_result_s=1.0)

    async def _discover(self) -> None:
        self._report.set_connected(True)
        self._publish_addresses(self._addresses)

    async def _deregister(self) -> None:
        """Do nothing: nothing is registered."""


def _describe(addresses: Iterable[Address]) -> str:
    return ",".join(sorted(map(str, addresses))) or "no addresses"
