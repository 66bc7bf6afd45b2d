"""Gets the messages of one queue from the store to whoever handles them, and back.

The store knows what is not finished; everything in here is a cache of it. When a commit fails, all
of it is dropped and read again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence

from postroad.core import faults
from postroad.core.backoff import backoff
from postroad.core.errors import Reject, StoreError

from .config import MailConfig, Retry
from .exchange import Reason
from .frontier import Frontier
from .handling import Handling, Lane, Undone
from .letters import NEVER_MS
from .posting import Post
from .shelf import Entry, Shelf
from .statistics import Totals
from .store import Store
from .store import queries as query
from .store.ledger import News
from .store.rows import AsideLetter, InPage

logger = logging.getLogger("postroad.durable")

TAKEN = faults.declare("durable.consumer.taken")
HANDLED = faults.declare("durable.consumer.handled")

_PAGES_AT_ONCE = 8
_ASIDE_AT_ONCE = 256
# A wall clock may jump; looking from time to time makes up for it.
_LOOK_AGAIN_S = 30.0
_REPAIR_FIRST_S = 0.05
_REPAIR_MAX_S = 5.0
_DETAIL_CHARS_MAX = 2_000
# With more keys in trouble than this, nothing new is read until some are out of it.
_HELD_KEYS_MAX = 10_000


class Consumption:
    """The messages of one queue, on their way through this process."""

    def __init__(
        self,
        store: Store,
        config: MailConfig,
        queue: str,
        queue_id: int,
        *,
        is_ordered: bool,
        retry: Retry,
        totals: Totals,
    ) -> None:
        self.queue = queue
        self.retry = retry
        self._store = store
        self._config = config
        self._id = queue_id
        # With fewer in memory, more are read.
        self._low_letters = config.ahead_letters // 2
        self._totals = totals
        self._is_ordered = is_ordered
        self._loop = asyncio.get_running_loop()
        self._shelf = Shelf(is_ordered=is_ordered, held={})
        # One object for each page and letter that is in memory, whatever is read again.
        self._pages: dict[int, InPage] = {}
        self._asides: dict[int, AsideLetter] = {}
        self._in_hand: dict[Entry, None] = {}
        self._frontier = Frontier()
        self._is_aside_due = True
        self._has_more_aside = False
        # Letters that left while the table was being read, and may have been seen there.
        self._left_meanwhile: dict[int, None] = {}
        self._aside_timer: asyncio.TimerHandle | None = None
        self._acks: list[Entry] = []
        self.uncommitted = 0
        self._is_broken = True
        self._lane = Lane()
        self._undone = Undone()
        self._repairs = 0
        self.is_paused = False
        self._is_closed = False
        self.handled = self.failed = 0
        self.changed = asyncio.Event()
        self._loading = self._loop.create_task(self._load(), name=f"postroad queue {queue}")
        self._load_wanted = asyncio.Event()
        self._load_wanted.set()

    # Taking.

    def take(self) -> Entry | None:
        """The next message to handle; None if there is none at the moment."""
        if self._is_broken or self._is_closed or self.is_paused:
            return None
        if self.uncommitted >= self._config.uncommitted_max:
            return None
        shelf = self._shelf
        entry = shelf.take(_now_ms)
        if shelf.displaced or shelf.expired:
            self._clear_shelf()
        if entry is not None:
            self._in_hand[entry] = None
            if TAKEN.is_armed:
                TAKEN.reach(entry=entry)
        if shelf.size < self._low_letters:
            self._want_more()
        return entry

    async def wait(self) -> None:
        """Wait until there may be something to take."""
        self.changed.clear()
        await self.changed.wait()

    def _clear_shelf(self) -> None:
        """Write down what the shelf does not keep any more."""
        displaced, self._shelf.displaced = self._shelf.displaced, []
        expired, self._shelf.expired = self._shelf.expired, []
        unit = Handling(self._lane, self._on_settled)
        for entry in displaced:
            unit.hold_back(entry, due_ms=NEVER_MS, failures=entry.failures)
        for entry in expired:
            unit.bury(entry, Reason.EXPIRED, "it expired before it was handled", entry.failures)
        self._submit(unit)

    # What came of a message.

    def finish(self, entry: Entry, posts: Sequence[Post] = ()) -> Handling | None:
        """A message was handled; returns the unit to commit with the handler's statements."""
        if not self._put_down(entry):
            return None
        HANDLED.reach(entry=entry)
        self.handled += 1
        self._shelf.finish(entry)
        return Handling(self._lane, self._on_settled, finished=(entry,), posts=posts)

    def acknowledge(self, entry: Entry) -> None:
        """A message was handled, and nothing else follows from it."""
        if not self._put_down(entry):
            return
        if HANDLED.is_armed:
            HANDLED.reach(entry=entry)
        self.handled += 1
        self._shelf.finish(entry)
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks.append(entry)
        self.uncommitted += 1

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, []
        if acks:
            self.uncommitted -= len(acks)
            self._submit(Handling(self._lane, self._on_settled, finished=acks))

    def submit(self, unit: Handling) -> None:
        """Have a unit committed that `finish` made."""
        self._flush_acks()
        self._submit(unit)

    def expect(self, unit: Handling) -> None:
        """A unit that `finish` made is committed by a transaction."""
        self._flush_acks()
        self.uncommitted += len(unit.entries())

    def _submit(self, unit: Handling) -> None:
        self.uncommitted += len(unit.entries())
        self._store.submit(unit)

    def fail(self, entry: Entry, error: BaseException, pause_s: float | None = None) -> None:
        """A handler failed: try again later, or give the message up."""
        if not self._put_down(entry):
            return
        self.failed += 1
        self._totals.failed.add(1, self._loop.time())
        self._flush_acks()
        if self.is_hopeless(entry, error):
            self._shelf.finish(entry)
        else:
            self._shelf.fail(entry)
        unit = self._judge(entry, error, pause_s)
        unit.failure = (entry, error)
        followers, self._shelf.displaced = self._shelf.displaced, []
        for follower in followers:
            unit.hold_back(follower, due_ms=NEVER_MS, failures=follower.failures)
        self._submit(unit)

    def is_hopeless(self, entry: Entry, error: BaseException) -> bool:
        """Whether a message is given up after this failure."""
        return isinstance(error, Reject) or entry.failures + 1 >= self.retry.attempts

    def _judge(self, entry: Entry, error: BaseException, pause_s: float | None = None) -> Handling:
        """What becomes of a message whose handler failed: another attempt, or a dead letter."""
        unit = Handling(self._lane, self._on_settled)
        failures = entry.failures + 1
        detail = f"{type(error).__name__}: {error}"[:_DETAIL_CHARS_MAX]
        if self.is_hopeless(entry, error):
            reason = Reason.REJECTED if isinstance(error, Reject) else Reason.FAILED
            unit.bury(entry, reason, detail, failures)
        else:
            if pause_s is None:
                pause_s = self.retry.pause_s(failures, random.random())
            due_ms = _now_ms() + round(pause_s * 1000)
            unit.hold_back(entry, due_ms=due_ms, failures=failures, error=detail)
        return unit

    def give_back(self, entry: Entry) -> None:
        """A message was not handled after all."""
        if self._put_down(entry):
            self._shelf.give_back(entry)
            self.changed.set()

    def _put_down(self, entry: Entry) -> bool:
        """Whether what was done with a message counts: not while everything is read again."""
        del self._in_hand[entry]
        if self._is_broken:
            self._want_more()
        return not self._is_broken and not self._is_closed

    # What came of a commit.

    def _on_settled(self, unit: Handling, error: Exception | None) -> None:
        entries = unit.entries()
        self.uncommitted -= len(entries)
        if error is None:
            self._repairs = 0
            self._totals.handled.add(len(unit.finished), self._loop.time())
            self._forget(entries)
        else:
            self._break(unit, error)
        if self._is_broken:
            self._want_more()
        self.changed.set()

    def _forget(self, entries: Sequence[Entry]) -> None:
        last: InPage | None = None
        for entry in entries:
            if (page := entry.page) is not None:
                if page is not last and not page.pending:
                    self._pages.pop(page.id, None)
                last = page
            elif entry.aside is not None:
                self._asides.pop(entry.aside.id, None)
                self._left_meanwhile[entry.aside.id] = None
                self._is_aside_due |= self._has_more_aside
        if self._shelf.size < self._low_letters:
            self._want_more()

    def _break(self, unit: Handling, error: Exception) -> None:
        if not self._is_broken:
            logger.warning("queue %r is read again: %s", self.queue, error)
        self._is_broken = self._lane.is_broken = True
        self._undone.add(unit, error)

    # Loading.

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

    def on_withdrawn(self, page: InPage) -> None:
        """The commit of a page that was arriving failed."""
        if self._pages.pop(page.id, None) is not None:
            self._undone.withdraw(page)
            self.reload()

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
        if self._is_broken and not await self._repair():
            return
        if self._is_aside_due:
            await self._load_aside()
        while self._has_room and self._frontier.has_more and self._shelf.held_keys < _HELD_KEYS_MAX:
            await self._load_pages()
        self.changed.set()

    async def _load_pages(self) -> None:
        pages = await self._store.read(
            query.read_inbox, self.queue, self._id, self._frontier.upto, _PAGES_AT_ONCE
        )
        if self._is_broken:
            return
        self._frontier.on_read([page.id for page in pages], is_end=len(pages) < _PAGES_AT_ONCE)
        for page in pages:
            self._add_page(self._pages.get(page.id, page))

    async def _load_aside(self) -> None:
        self._is_aside_due = False
        self._left_meanwhile.clear()
        limit = _ASIDE_AT_ONCE + len(self._asides)
        now_ms = _now_ms()
        asides = await self._store.read(
            query.read_aside, self.queue, self._id, now_ms, self._latest_ms(now_ms), limit
        )
        next_ms = await self._store.read(query.next_due_ms, self._id, now_ms)
        if self._is_broken:
            return
        self._has_more_aside = len(asides) == limit
        for aside in asides:
            if aside.id not in self._asides and aside.id not in self._left_meanwhile:
                self._asides[aside.id] = aside
                self._shelf.add_aside(aside)
        self._plan_look(next_ms, now_ms)

    def _latest_ms(self, now_ms: int) -> int:
        """A retry that is due after this was planned by a clock that has been set back since."""
        return now_ms + round(self.retry.max_s * 1000) + 1_000

    def _plan_look(self, next_ms: int | None, now_ms: int) -> None:
        if self._aside_timer is not None:
            self._aside_timer.cancel()
            self._aside_timer = None
        if next_ms is not None:
            pause_s = min((next_ms - now_ms) / 1000, _LOOK_AGAIN_S)
            self._aside_timer = self._loop.call_later(max(pause_s, 0.001), self._look_aside)

    def _look_aside(self) -> None:
        self._is_aside_due = True
        self._want_more()

    async def _repair(self) -> bool:
        """Drop everything and read it again, once nobody works on it; False if somebody does."""
        if self._in_hand or self.uncommitted:
            return False
        if self._repairs:
            await self._pause(self._repairs)
        self._repairs += 1
        while (failure := self._undone.next_failure()) is not None:
            self._lane = Lane()
            await self._store.write(self._judge(*failure).apply)
            self._undone.on_counted()
        self._undone.clear()
        await self._store.write(lambda ledger: ledger.queues.release_forgotten(self.queue))
        held = await self._store.read(query.held_keys, self._id)
        self._shelf = Shelf(is_ordered=self._is_ordered, held=held)
        self._asides.clear()
        self._acks.clear()
        self._frontier.start_again()
        self._is_aside_due = True
        self._is_broken = False
        self._lane = Lane()
        return True

    def reload(self) -> None:
        """The queue was changed in the store: read it again."""
        self._is_broken = self._lane.is_broken = True
        self._want_more()

    async def _pause(self, attempt: int) -> None:
        pause_s = backoff(
            attempt, first_s=_REPAIR_FIRST_S, max_s=_REPAIR_MAX_S, chance=random.random()
        )
        await asyncio.sleep(pause_s)

    # Life and looks.

    async def close(self) -> None:
        """Take nothing more; what was handled is committed by the store."""
        self._flush_acks()
        self._is_closed = True
        self.changed.set()
        if self._aside_timer is not None:
            self._aside_timer.cancel()
        self._loading.cancel()
        await asyncio.gather(self._loading, return_exceptions=True)
        while self.uncommitted:
            # Whoever reads the queue next must see what came of them.
            await self.wait()

    def is_like(self, is_ordered: bool, retry: Retry | None) -> bool:
        """Whether it is used in that way; None stands for any."""
        return self._is_ordered == is_ordered and retry in (None, self.retry)

    @property
    def in_hand(self) -> int:
        """Messages that are being handled."""
        return len(self._in_hand)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
