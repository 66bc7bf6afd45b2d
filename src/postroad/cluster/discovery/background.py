"""The life of a discovery: one task that looks for contacts until it is stopped.

Invariant: from the moment `stop` is called, nobody is told anything.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from postroad.core import Address, ThrottledLog, validate_node_name
from postroad.core.backoff import backoff
from postroad.core.errors import ConfigError, UsageError

from .contacts import DiscoveryStatistics, OnContacts

logger = logging.getLogger("postroad.cluster.discovery")

T = TypeVar("T")

# Similar warnings are told once in so many seconds.
_WARN_INTERVAL_S = 60.0
# Pauses after something went wrong.
RETRY_FIRST_S = 0.25
RETRY_MAX_S = 5.0


class _State(enum.Enum):
    NEW = "not started"
    RUNNING = "running"
    STOPPED = "stopped"


class BackgroundDiscovery(ABC):
    """Runs `_search` in a task and passes on what it finds."""

    def __init__(self, source: str, *, first_answer_s: float) -> None:
        self._source = source
        self._first_answer_s = first_answer_s
        self._counts = DiscoveryStatistics()
        self._log = ThrottledLog(logger, _WARN_INTERVAL_S)
        self._state = _State.NEW
        # Set when the source has answered or refused, and when nobody needs an answer any more.
        self._answered = asyncio.Event()
        self._contacts: frozenset[Address] | None = None
        # Set by start.
        self._name: str
        self._address: Address
        # Every address known to be the own one.
        self._own: frozenset[Address]
        self._on_contacts: OnContacts
        self._loop: asyncio.AbstractEventLoop
        self._worker: asyncio.Task[None]
        # The task that stops everything, once somebody wants that.
        self._stopping: asyncio.Task[None] | None = None

    # Life.

    async def start(self, name: str, address: Address, on_contacts: OnContacts) -> None:
        """Begin to look; see `Discovery.start`."""
        if self._state is not _State.NEW:
            raise UsageError(f"{self!r} was started before; make a new one")
        self._name = validate_node_name(name)
        self._address = check_port(address)
        self._own = frozenset({address})
        self._on_contacts = on_contacts
        self._loop = asyncio.get_running_loop()
        self._state = _State.RUNNING
        self._worker = self._loop.create_task(self._work())
        try:
            async with asyncio.timeout(self._first_answer_s):
                await self._answered.wait()
        except TimeoutError:
            self._complain("answer", "no answer within %g s", self._first_answer_s)
        except asyncio.CancelledError:
            await self.stop()
            raise
        self._tell(self._contacts or ())

    async def stop(self) -> None:
        """Withdraw what was registered; see `Discovery.stop`."""
        was_running = self._state is _State.RUNNING
        self._state = _State.STOPPED
        self._answered.set()
        if was_running:
            self._stopping = self._loop.create_task(self._stop())
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        """A task of its own, so that it ends even if its caller is cancelled."""
        self._worker.cancel()
        await asyncio.wait({self._worker})
        await self._withdraw()
        self._counts.is_connected = False

    async def _work(self) -> None:
        """Search on, whatever happens: a defect here must not cost the node its contacts."""
        attempt = 0
        while True:
            try:
                return await self._search()
            except Exception as error:
                attempt += 1
                logger.exception("%s: looking for contacts failed, trying again", self._source)
                self._count_failure(str(error) or type(error).__name__)
                await asyncio.sleep(retry_pause(attempt))

    # What each kind of discovery does.

    @abstractmethod
    async def _search(self) -> None:
        """Find contacts and tell them, for as long as they can change."""

    @abstractmethod
    async def _withdraw(self) -> None:
        """Undo what the search left behind, within bounded time."""

    # What a search reports.

    def _tell(self, found: Iterable[Address]) -> None:
        """Pass on the addresses known now, if they differ from those told last."""
        if self._state is not _State.RUNNING:
            return
        contacts = frozenset(found) - self._own
        self._answered.set()
        if contacts == self._contacts:
            return
        self._contacts = contacts
        self._counts.contacts = len(contacts)
        self._counts.changes += 1
        try:
            self._on_contacts(contacts)
        except Exception:
            logger.exception("%s: the listener of contacts failed", self._source)

    def _set_connected(self, is_connected: bool) -> None:
        """Remember whether the source answers, and say so when it does again."""
        if is_connected and not self._counts.is_connected and self._counts.failures:
            logger.info("%s: answers again", self._source)
        self._counts.is_connected = is_connected

    def _complain(self, key: str, text: str, *args: object) -> None:
        """Count a failure; log it, but not more often than makes sense for its key."""
        self._count_failure(text % args)
        self._warn(key, text, *args)

    def _warn(self, key: str, text: str, *args: object, level: int = logging.WARNING) -> None:
        now = self._loop.time()
        self._log.warn(key, now, f"%s: {text}", self._source, *args, level=level)

    def _count_failure(self, error: str) -> None:
        self._counts.failures += 1
        self._counts.last_error = error

    # What others see.

    def statistics(self) -> DiscoveryStatistics:
        """A copy of the numbers as they are now."""
        return msgspec.structs.replace(self._counts)

    def __repr__(self) -> str:
        known = f", {self._counts.contacts} contacts" if self._state is _State.RUNNING else ""
        return f"<{type(self).__name__} {self._source} [{self._state.value}{known}]>"


def retry_pause(attempt: int, max_s: float = RETRY_MAX_S) -> float:
    """Seconds to wait before the given repeat."""
    first_s = min(RETRY_FIRST_S, max_s)
    return backoff(attempt, first_s=first_s, max_s=max_s, chance=random.random())


def check_port(address: Address) -> Address:
    """Return the address if somebody can be reached there, else raise ConfigError."""
    if not 0 < address.port < 65536:
        raise ConfigError(f"address {address}: the port of a contact must be 1 to 65535")
    return address


def check_list(name: str, values: Iterable[T]) -> list[T]:
    """Return several values as a list; a single text, whose letters would be taken, is an error."""
    if isinstance(values, str):
        raise ConfigError(f"{name} must be a list, such as [{values!r}], not a single text")
    return list(values)


def check_seconds(name: str, value: float) -> float:
    """Return a duration if it is above zero and has an end, else raise ConfigError."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value!r}; it must be a number of seconds above 0")
    return value
