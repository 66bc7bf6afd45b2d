"""Reads the messages of one queue from the store, as many as are wanted in memory."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from postroad.core.errors import StoreError
from postroad.core.timing import backoff

from .config import MailConfig, Retry
from .frontier import Frontier
from .shelf import Entry, Shelf
from .store import Store
from .store import queries as query
from .store.ledger import News
from .store.rows import AsideLetter, InPage

logger = logging.getLogger("postroad.durable")

_PAGES_AT_ONCE = 8
_ASIDE_AT_ONCE = 256
# A wall clock may jump; looking from time to time makes up for it.
_LOOK_AGAIN_S = 30.0
_REPAIR_FIRST_S = 0.05
_REPAIR_MAX_S = 5.0
# With more keys in trouble than this, nothing new is read until some are out of it.
_HELD_KEYS_MAX = 10_000


class QueueReading(ABC):
    """Keeps the shelf of a queue filled.

    Attributes:
        changed: set when there may be something to take.
    """

    def __init__(
        self,
        store: Store,
        config: MailConfig,
        queue: str,
        queue_id: int,
        *,
        is_ordered: bool,
        retry: Retry,
    ) -> None:
        self.queue = queue
        self.retry = retry
        self._store = store
        self._config = config
        self._id = queue_id
        # With fewer in memory, more are read.
        self._low_letters = config.ahead_letters // 2
        self._is_ordered = is_ordered
        self._loop = asyncio.get_running_loop()
        self._shelf = Shelf(is_ordered=is_ordered, held={})
        # One object for each page and letter that is in memory, whatever is read again.
        self._pages: dict[int, InPage] = {}
        self._asides: dict[int, AsideLetter] = {}
        self._frontier = Frontier()
        self._is_aside_due = True
        self._has_more_aside = False
        # Letters and pages that left while the table was being read, and may have been seen there.
        self._left_meanwhile: dict[int, None] = {}
        self._pages_left_meanwhile: dict[int, None] = {}
        self._aside_timer: asyncio.TimerHandle | None = None
        # Whether everything is to be read again; until then nothing is taken.
        self._is_broken = True
        self._is_closed = False
        self.changed = asyncio.Event()
        self._loading = self._loop.create_task(self._load(), name=f"postroad queue {queue}")
        self._load_wanted = asyncio.Event()
        self._load_wanted.set()

    @abstractmethod
    async def _repair(self) -> None:
        """Make ready to read everything again."""

    def on_news(self, news: News) -> None:
        """Take up what a commit brought."""
        for page in news.arrived:
            if page.queue == self.queue:
                if self._frontier.on_committed(page.id, has_room=self._has_room):
                    self._add_page(page)
                elif self._frontier.has_more:
                    self._want_more()
        if self.queue in news.set_aside_in:
            self._is_aside_due = True
            self._want_more()

    def on_arriving(self, page: InPage) -> None:
        """A page is being committed, and may be handled already."""
        if self._frontier.on_arriving(page.id, has_room=self._has_room):
            self._add_page(page)

    def reload(self) -> None:
        """What is in the store may be something else than before: read it again."""
        self._is_broken = True
        self._want_more()

    def _forget(self, entries: Sequence[Entry]) -> None:
        last: InPage | None = None
        for entry in entries:
            if (lane := entry.lane) is not None:
                self._shelf.settle(entry, lane)
            if (page := entry.page) is not None:
                if page is not last and not page.pending:
                    self._pages.pop(page.id, None)
                    self._pages_left_meanwhile[page.id] = None
                last = page
            elif entry.aside is not None:
                self._asides.pop(entry.aside.id, None)
                self._left_meanwhile[entry.aside.id] = None
                self._is_aside_due |= self._has_more_aside
        if self._shelf.size < self._low_letters:
            self._want_more()

    @property
    def _has_room(self) -> bool:
        return not self._is_broken and self._shelf.size < self._config.ahead_letters

    def _add_page(self, page: InPage) -> None:
        self._pages[page.id] = page
        self._shelf.add_page(page)
        self.changed.set()

    def _want_more(self) -> None:
        if not self._load_wanted.is_set() and (
            self._is_broken or self._is_aside_due or self._frontier.has_more
        ):
            self._load_wanted.set()

    async def _load(self) -> None:
        """Keep the shelf filled, until closed."""
        failures = 0
        while not self._is_closed:
            await self._load_wanted.wait()
            self._load_wanted.clear()
            try:
                await self._load_once()
                failures = 0
            except Exception as error:
                failures += 1
                if isinstance(error, StoreError):
                    logger.warning("queue %r cannot be read: %s", self.queue, error)
                else:
                    logger.exception("queue %r cannot be read", self.queue)
                await self._pause(failures)
                self._load_wanted.set()

    async def _load_once(self) -> None:
        if self._is_broken:
            await self._repair()
        if self._is_aside_due:
            await self._load_aside()
        while self._has_room and self._frontier.has_more and self._shelf.held_keys < _HELD_KEYS_MAX:
            await self._load_pages()
        self.changed.set()

    async def _load_pages(self) -> None:
        self._pages_left_meanwhile.clear()
        pages = await self._store.read(
            query.read_inbox, self.queue, self._id, self._frontier.upto, _PAGES_AT_ONCE
        )
        if self._is_broken:
            return
        self._frontier.on_read([page.id for page in pages], is_end=len(pages) < _PAGES_AT_ONCE)
        for page in pages:
            if page.id not in self._pages_left_meanwhile:
                self._add_page(self._pages.get(page.id, page))

    async def _load_aside(self) -> None:
        self._is_aside_due = False
        self._left_meanwhile.clear()
        limit = _ASIDE_AT_ONCE + len(self._asides)
        now = now_ms()
        asides = await self._store.read(
            query.read_aside, self.queue, self._id, now, self._latest_ms(now), limit
        )
        next_ms = await self._store.read(query.next_due_ms, self._id, now)
        if self._is_broken:
            return
        self._has_more_aside = len(asides) == limit
        for aside in asides:
            if aside.id not in self._asides and aside.id not in self._left_meanwhile:
                self._asides[aside.id] = aside
                self._shelf.add_aside(aside)
        self._plan_look(next_ms, now)

    def _latest_ms(self, now: int) -> int:
        """A retry that is due after this was planned by a clock that has been set back since."""
        return now + round(self.retry.max_s * 1000) + 1_000

    def _plan_look(self, next_ms: int | None, now: int) -> None:
        if self._aside_timer is not None:
            self._aside_timer.cancel()
            self._aside_timer = None
        if next_ms is not None:
            pause_s = min((next_ms - now) / 1000, _LOOK_AGAIN_S)
            self._aside_timer = self._loop.call_later(max(pause_s, 0.001), self._look_aside)

    def _look_aside(self) -> None:
        self._is_aside_due = True
        self._want_more()

    async def _pause(self, attempt: int) -> None:
        pause_s = backoff(
            attempt,
            initial_delay_s=_REPAIR_FIRST_S,
            max_delay_s=_REPAIR_MAX_S,
            jitter=random.random(),
        )
        await asyncio.sleep(pause_s)

    async def _stop_reading(self) -> None:
        if self._aside_timer is not None:
            self._aside_timer.cancel()
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)


def now_ms() -> int:
    """The time, as letters tell it."""
    return time.time_ns() // 1_000_000
