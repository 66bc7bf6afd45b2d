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

Result = TypeVar("Found", bound=Collection[Any])

# Pauses after something went wrong.
RETRY_INITIAL_S = 0.25
RETRY_MAX_S = 5.0


class _DiscoveryState(enum.Enum):
    NEW = "not started"
    RUNNING = "running"
    STOPPED = "stopped"


class BackgroundDiscovery(ABC, Generic[Result]):
    """Runs `_search` in a task and passes on what it finds.

    Args:
        report: counts and logs, and names the source.
        sought: what is looked for, in the plural.
        nothing: what is told if nothing is known in time.
        first_answer_s: how long the start waits for something to tell.
    """

    def __init__(
        self,
        report: DiscoveryReporter,
        subject_plural: str,
        empty: Result,
        *,
        first_answer_s: float,
    ) -> None:
        self._report = report
        self._subject_plural = subject_plural
        self._empty = empty
        self._first_answer_s = first_answer_s
        self._state = _DiscoveryState.NEW
        # Set when the source has answered or refused, and when nobody needs an answer any more.
        self._answered = asyncio.Event()
        # What was told last.
        self._published: Result | None = None
        # Set by the start.
        self._on_result: Callable[[Result], None]
        self._loop: asyncio.AbstractEventLoop
        self._worker: asyncio.Task[None]
        # The task that stops everything, once somebody wants that.
        self._stop_task: asyncio.Task[None] | None = None

    # Life.

    def _require_new(self) -> None:
        if self._state is not _DiscoveryState.NEW:
            raise UsageError(f"{self!r} was started before; make a new one")

    async def _start(self, on_result: Callable[[Result], None]) -> None:
        """Begin to look; returns once something was told, be it that nothing is known yet."""
        self._require_new()
        self._on_result = on_result
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
        if self._published is None:
            self._publish(self._empty)

    async def stop(self) -> None:
        """Withdraw what was registered, within bounded time. Nothing is called from then on."""
        was_running = self._state is _DiscoveryState.RUNNING
        self._state = _DiscoveryState.STOPPED
        self._answered.set()
        if was_running:
            self._stop_task = self._loop.create_task(self._stop())
        if self._stop_task is not None:
            await asyncio.shield(self._stop_task)

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
                    "%s: looking for %s failed, trying again",
                    self._report.source,
                    self._subject_plural,
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

    def _publish(self, result: Result) -> None:
        """Tell what is known now, if it differs from what was told last."""
        if self._state is not _DiscoveryState.RUNNING:
            return
        self._answered.set()
        if result == self._published:
            return
        self._published = result
        self._report.counts.changes += 1
        try:
            self._on_result(result)
        except Exception:
            self._report.logger.exception(
                "%s: the listener of %s failed", self._report.source, self._subject_plural
            )

    def _set_connected(self, is_connected: bool) -> None:
        self._report.set_connected(is_connected)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._report.report_failure(key, text, *args)

    # What others see.

    def __repr__(self) -> str:
        count = f", {len(self._published or ())} {self._subject_plural}"
        state = self._state.value + (count if self._state is _DiscoveryState.RUNNING else "")
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
        self._local_addresses: frozenset[Address]

    async def start(self, name: str, address: Address, on_seeds: SeedsCallback) -> None:
        """Begin to look; see `Discovery.start`."""
        self._require_new()
        self._name = validate_node_name(name)
        self._address = validate_port(address)
        self._local_addresses = frozenset({address})
        await self._start(on_seeds)

    def _publish_addresses(self, result: Iterable[Address]) -> None:
        """Pass on the addresses known now, if they differ from those told last."""
        self._publish(frozenset(result) - self._local_addresses)

    def statistics(self) -> DiscoveryStatistics:
        """A copy of the numbers as they are now."""
        return msgspec.structs.replace(self._counts, contacts=len(self._published or ()))


def retry_delay_s(attempt: int, max_s: float = RETRY_MAX_S) -> float:
    """Seconds to wait before the given repeat."""
    first_s = min(RETRY_INITIAL_S, max_s)
    return backoff(attempt, first_s=first_s, max_s=max_s, chance=random.random())


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
