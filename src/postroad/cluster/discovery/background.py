"""The life of a search: one task that looks for something until it is stopped.

Invariant: from the moment `stop` is called, nobody is told anything.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from postroad.cluster.discovery.discovery import (
    DiscoveryReporter,
    DiscoveryStatistics,
    SeedsCallback,
    validate_list,
    validate_port,
)
from postroad.core import Address, to_address, validate_node_name
from postroad.core.errors import UsageError
from postroad.core.timing import backoff

logger = logging.getLogger("postroad.cluster.discovery")

Found = TypeVar("Found", bound=Collection[Any])

# Pauses after something went wrong.
RETRY_FIRST_S = 0.25
RETRY_MAX_S = 5.0


class _DiscoveryState(enum.Enum):
    NEW = "not started"
    RUNNING = "running"
    STOPPED = "stopped"


class BackgroundDiscovery(ABC, Generic[Found]):
    """Runs `_search` in a task and passes on what it finds.

    Args:
        report: counts and logs, and names the source.
        sought: what is looked for, in the plural.
        nothing: what is told if nothing is known in time.
        first_answer_s: how long the start waits for something to tell.
    """

    def __init__(
        self, report: DiscoveryReporter, sought: str, nothing: Found, *, first_answer_s: float
    ) -> None:
        self._report = report
        self._sought = sought
        self._nothing = nothing
        self._first_answer_s = first_answer_s
        self._state = _DiscoveryState.NEW
        # Set when the source has answered or refused, and when nobody needs an answer any more.
        self._answered = asyncio.Event()
        # What was told last.
        self._found: Found | None = None
        # Set by the start.
        self._on_found: Callable[[Found], None]
        self._loop: asyncio.AbstractEventLoop
        self._worker: asyncio.Task[None]
        # The task that stops everything, once somebody wants that.
        self._stopping: asyncio.Task[None] | None = None

    # Life.

    def _require_new(self) -> None:
        if self._state is not _DiscoveryState.NEW:
            raise UsageError(f"{self!r} was started before; make a new one")

    async def _start(self, on_found: Callable[[Found], None]) -> None:
        """Begin to look; returns once something was told, be it that nothing is known yet."""
        self._require_new()
        self._on_found = on_found
        self._loop = asyncio.get_running_loop()
        self._state = _DiscoveryState.RUNNING
        self._worker = self._loop.create_task(self._run())
        try:
            async with asyncio.timeout(self._first_answer_s):
                await self._answered.wait()
        except TimeoutError:
            self._warn("answer", "no answer within %g s", self._first_answer_s)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if self._found is None:
            self._publish(self._nothing)

    async def stop(self) -> None:
        """Withdraw what was registered, within bounded time. Nothing is called from then on."""
        was_running = self._state is _DiscoveryState.RUNNING
        self._state = _DiscoveryState.STOPPED
        self._answered.set()
        if was_running:
            self._stopping = self._loop.create_task(self._stop())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        """A task of its own, so that it ends even if its caller is cancelled."""
        self._worker.cancel()
        await asyncio.wait({self._worker})
        await self._deregister()
        self._report.counts.is_connected = False
        self._report.counts.is_registered = False

    async def _run(self) -> None:
        """Search on, whatever happens: a defect here must not cost the node what it looks for."""
        attempt = 0
        while True:
            try:
                return await self._discover()
            except Exception as error:
                attempt += 1
                self._report.logger.exception(
                    "%s: looking for %s failed, trying again", self._report.source, self._sought
                )
                self._report.count_failure(str(error) or type(error).__name__)
                await asyncio.sleep(retry_delay_s(attempt))

    # What each kind of search does.

    @abstractmethod
    async def _discover(self) -> None:
        """Find something and pass it on, for as long as it can change."""

    @abstractmethod
    async def _deregister(self) -> None:
        """Undo what the search left behind, within bounded time."""

    # What a search reports.

    def _publish(self, found: Found) -> None:
        """Tell what is known now, if it differs from what was told last."""
        if self._state is not _DiscoveryState.RUNNING:
            return
        self._answered.set()
        if found == self._found:
            return
        self._found = found
        self._report.counts.changes += 1
        try:
            self._on_found(found)
        except Exception:
            self._report.logger.exception(
                "%s: the listener of %s failed", self._report.source, self._sought
            )

    def _set_connected(self, is_connected: bool) -> None:
        self._report.set_connected(is_connected)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._report.report_failure(key, text, *args)

    # What others see.

    def __repr__(self) -> str:
        known = f", {len(self._found or ())} {self._sought}"
        state = self._state.value + (known if self._state is _DiscoveryState.RUNNING else "")
        return f"<{type(self).__name__} {self._report.source} [{state}]>"


class SeedDiscovery(BackgroundDiscovery[frozenset[Address]]):
    """Looks for contacts."""

    def __init__(self, source: str, *, first_answer_s: float) -> None:
        self._counts = DiscoveryStatistics()
        report = DiscoveryReporter(logger, source, self._counts)
        super().__init__(report, "contacts", frozenset(), first_answer_s=first_answer_s)
        # Set by start.
        self._name: str
        self._address: Address
        # Every address known to be the own one.
        self._own: frozenset[Address]

    async def start(self, name: str, address: Address, on_contacts: SeedsCallback) -> None:
        """Begin to look; see `Discovery.start`."""
        self._require_new()
        self._name = validate_node_name(name)
        self._address = validate_port(address)
        self._own = frozenset({address})
        await self._start(on_contacts)

    def _publish_addresses(self, found: Iterable[Address]) -> None:
        """Pass on the addresses known now, if they differ from those told last."""
        self._publish(frozenset(found) - self._own)

    def statistics(self) -> DiscoveryStatistics:
        """A copy of the numbers as they are now."""
        return msgspec.structs.replace(self._counts, contacts=len(self._found or ()))


def retry_delay_s(attempt: int, max_s: float = RETRY_MAX_S) -> float:
    """Seconds to wait before the given repeat."""
    first_s = min(RETRY_FIRST_S, max_s)
    return backoff(attempt, initial_delay_s=first_s, max_delay_s=max_s, jitter=random.random())


class StaticDiscovery(SeedDiscovery):
    """Knows the addresses it is given, and no others.

    Args:
        addresses: where nodes may be found, `host:port`; the own one may be among them in the
            same spelling, so that all nodes can share one list. May be empty, for the first node.
    """

    def __init__(self, addresses: Iterable[Address | str] = ()) -> None:
        listed = validate_list("addresses", addresses)
        self._addresses = frozenset(validate_port(to_address(address)) for address in listed)
        super().__init__(_describe(self._addresses), first_answer_s=1.0)

    async def _discover(self) -> None:
        self._set_connected(True)
        self._publish_addresses(self._addresses)

    async def _deregister(self) -> None:
        """Nothing is registered anywhere."""


def _describe(addresses: Iterable[Address]) -> str:
    return ",".join(sorted(map(str, addresses))) or "nobody"
