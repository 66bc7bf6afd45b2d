"""What a consumer has done with messages, as one change of the store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from postroad.core.errors import PostroadError, TransactionAbortedError

from .posting import Post, append_posts, check_posts
from .shelf import Entry
from .store.ledger import Ledger
from .store.queries import held_keys
from .store.rows import AsideLetter, InPage
from .store.units import Unit, tell

_next_number = itertools.count().__next__


class Failure(NamedTuple):
    """A message whose handler failed, and why."""

    entry: Entry
    error: BaseException
    pause_s: float | None = None


class Burial:
    """A message that becomes a dead letter."""

    __slots__ = ("detail", "entry", "failures", "reason")

    def __init__(self, entry: Entry, reason: str, detail: str, failures: int) -> None:
        self.entry = entry
        self.reason = reason
        self.detail = detail
        self.failures = failures


class Handling(Unit):
    """Messages that are done with, with all that follows from it."""

    __slots__ = (
        "burials",
        "failure",
        "finished",
        "is_external",
        "lost",
        "number",
        "on_settled",
        "postponed",
        "posts",
        "set_aside",
        "waiter",
    )

    def __init__(
        self,
        on_settled: Callable[[Handling, Exception | None], None],
        finished: Sequence[Entry] = (),
        posts: Sequence[Post] = (),
    ) -> None:
        super().__init__()
        # The order in which they were made.
        self.number = _next_number()
        self.on_settled = on_settled
        self.finished = finished
        self.posts = posts
        # Whoever waits to hear what came of it.
        self.waiter: asyncio.Future[None] | None = None
        # Whether it is committed by somebody else, with what only that one can repeat.
        self.is_external = False
        # Those that could not be committed, unlike the others.
        self.lost: Sequence[Entry] = ()
        # Those that leave their page to have their turn by themselves.
        self.set_aside: list[tuple[Entry, AsideLetter]] = []
        # Those that are set aside already, as they shall be.
        self.postponed: list[tuple[Entry, AsideLetter]] = []
        self.burials: list[Burial] = []
        # The message and the error all this is about, if it is about one that failed.
        self.failure: Failure | None = None

    @property
    def is_lost(self) -> bool:
        """Whether some of it cannot be committed, because something before it was not."""
        for entry in self.entries():
            # Not by `entry.is_lost`, which takes twice as long.
            if entry.is_void or ((lane := entry.lane) is not None and lane.is_broken):
                return True
        return False

    def results(self) -> Sequence[Entry]:
        """Those that a handler has done something with, unlike those that had to wait or expire."""
        return self.finished if self.failure is None else (self.failure.entry,)

    def held_by(self, entry: Entry) -> int:
        """By how much more or less the key of one of its messages is held because of this."""
        if any(entry is it for it, _ in self.set_aside):
            return 1
        if any(entry is it for it, _ in self.postponed):
            return 0 if entry.holds_key else 1
        return -1 if entry.holds_key else 0

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be committed later as well, with nobody having done anything again."""
        return not self.is_external and self.waiter is None

    def hold_back(
        self, entry: Entry, *, due_ms: int, failures: int, error: str | None = None
    ) -> None:
        """Have a message wait until it is due; later ones of its key wait for it."""
        holds_key = entry.key is not None or entry.holds_key
        if (before := entry.aside) is not None:
            aside = msgspec.structs.replace(
                before,
                due_ms=due_ms,
                holds_key=holds_key,
                failures=failures,
                error=error or before.error,
            )
            self.postponed.append((entry, aside))
            return
        home = entry.home
        aside = AsideLetter(
            id=0,
            queue=home.queue,
            sender=home.sender,
            letter=entry.letter,
            due_ms=due_ms,
            holds_key=holds_key,
            failures=failures,
            ahead_ms=home.ahead_ms,
            received_ms=home.received_ms,
            error=error,
        )
        self.set_aside.append((entry, aside))

    def bury(self, entry: Entry, reason: str, detail: str, failures: int) -> None:
        """Make a dead letter of a message."""
        self.burials.append(Burial(entry, reason, detail, failures))

    def entries(self) -> Sequence[Entry]:
        """All messages this is about."""
        if not (self.set_aside or self.postponed or self.burials):
            return self.finished
        return [
            *self.finished,
            *(entry for entry, _ in self.set_aside),
            *(entry for entry, _ in self.postponed),
            *(burial.entry for burial in self.burials),
        ]

    def apply(self, ledger: Ledger) -> None:
        entries = self.entries()
        # Not by `is_lost`, which takes twice as long.
        lost = [
            entry
            for entry in entries
            if entry.is_void or ((lane := entry.lane) is not None and lane.is_broken)
        ]
        if lost and len(lost) == len(entries):
            raise TransactionAbortedError("a message before this one could not be committed")
        self.lost = lost
        self.write(ledger)

    def write(self, ledger: Ledger) -> None:
        """Make the change whatever became of others, except with what is lost."""
        earlier = self._check(ledger) if self.posts else ()
        lost = self.lost and set(self.lost)
        finished = self.finished
        _finish(ledger, [it for it in finished if it not in lost] if lost else finished)
        for entry, aside in self.set_aside:
            if entry not in lost:
                _finish(ledger, (entry,))
                ledger.queues.set_aside(aside)
        for entry, aside in self.postponed:
            if entry not in lost:
                ledger.queues.postpone(aside)
        for burial in self.burials:
            if burial.entry not in lost:
                self._bury(ledger, burial)
        append_posts(ledger, self.posts, earlier)

    def refuse(self, error: Exception) -> None:
        self.fence()
        super().refuse(error)

    def _check(self, ledger: Ledger) -> Sequence[int | None]:
        try:
            return check_posts(ledger, self.posts)
        except PostroadError:
            self.fence()
            raise

    def fence(self) -> None:
        """Have nothing committed that was done behind this, from now on: it fails."""
        for entry in self.entries():
            if entry.lane is not None:
                entry.lane.is_broken = True

    def _bury(self, ledger: Ledger, burial: Burial) -> None:
        entry = burial.entry
        ledger.dead.add_inbound(
            entry.home.sender,
            entry.letter,
            burial.reason,
            burial.detail,
            burial.failures,
            ledger.now_ms,
        )
        _finish(ledger, (entry,))

    def settle(self, error: Exception | None) -> None:
        self.on_settled(self, error)
        if self.waiter is not None:
            tell(self.waiter, error)


def _finish(ledger: Ledger, entries: Sequence[Entry]) -> None:
    """Messages are done with; most come in the order of their pages, and are written so."""
    page: InPage | None = None
    letters = 0
    for entry in entries:
        if entry.page is not page:
            if page is not None:
                ledger.queues.finish(page, letters)
            page, letters = entry.page, 0
        if page is not None:
            letters |= 1 << entry.index
        elif entry.aside is not None:
            ledger.queues.finish_aside(entry.aside, ledger.now_ms)
    if page is not None:
        ledger.queues.finish(page, letters)


class Confirmation(Unit):
    """What the store has of a queue, compared with what is in somebody's hands.

    It is a change like any other: what was submitted before it is part of it, and what was not
    is not.

    Attributes:
        held: the keys that are held by messages set aside, with the number of those.
    """

    __slots__ = ("_asides", "_on_settled", "_pages", "_queue", "held")

    def __init__(
        self,
        queue: str,
        entries: Sequence[Entry],
        on_settled: Callable[[Confirmation, Exception | None], None],
    ) -> None:
        super().__init__()
        self._queue = queue
        self._on_settled = on_settled
        self.held: dict[str, int] = {}
        # With the bits of the letters that are done with; None if the store does not have it.
        self._pages: dict[int, tuple[InPage, int | None]] = {}
        self._asides: dict[int, tuple[AsideLetter, bool]] = {}
        for entry in entries:
            if entry.page is not None:
                self._pages[entry.page.id] = (entry.page, None)
            elif entry.aside is not None:
                self._asides[entry.aside.id] = (entry.aside, False)

    def apply(self, ledger: Ledger) -> None:
        queues = ledger.queues
        queues.release_forgotten(self._queue)
        self.held = held_keys(ledger.database, queues.queue_id(self._queue))
        for page, _ in self._pages.values():
            self._pages[page.id] = (page, queues.confirm(page))
        for aside, _ in self._asides.values():
            self._asides[aside.id] = (aside, queues.confirm_aside(aside))

    def confirms(self, entry: Entry) -> bool:
        """Whether a message waits in the store to be handled."""
        if entry.page is not None:
            _, done = self._pages.get(entry.page.id, (None, None))
            return done is not None and not done >> entry.index & 1
        return entry.aside is not None and self._asides.get(entry.aside.id, (None, False))[1]

    def settle(self, error: Exception | None) -> None:
        self._on_settled(self, error)
