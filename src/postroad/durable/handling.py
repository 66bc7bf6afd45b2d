"""What a consumer has done with messages, as one change of the store."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from postroad.core.errors import PostroadError, StoreError, TransactionLost

from .posting import Post, append_posts, check_posts
from .shelf import Entry
from .store.ledger import Ledger
from .store.rows import AsideLetter, InPage
from .store.units import Unit


class Lane:
    """The order in which units of one queue are committed: after one that failed, none is."""

    __slots__ = ("is_broken",)

    def __init__(self) -> None:
        self.is_broken = False


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
        "_lane",
        "burials",
        "failure",
        "finished",
        "on_settled",
        "postponed",
        "posts",
        "set_aside",
    )

    def __init__(
        self,
        lane: Lane,
        on_settled: Callable[[Handling, Exception | None], None],
        finished: Sequence[Entry] = (),
        posts: Sequence[Post] = (),
    ) -> None:
        super().__init__()
        self._lane = lane
        self.on_settled = on_settled
        self.finished = finished
        self.posts = posts
        # Those that leave their page to have their turn by themselves.
        self.set_aside: list[tuple[Entry, AsideLetter]] = []
        # Those that are set aside already, as they shall be.
        self.postponed: list[tuple[Entry, AsideLetter]] = []
        self.burials: list[Burial] = []
        # The message and the error all this is about, if it is about one that failed.
        self.failure: tuple[Entry, BaseException] | None = None

    @property
    def is_void(self) -> bool:
        """Whether it cannot be committed, because something before it was not."""
        return self._lane.is_broken

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
        if self._lane.is_broken:
            raise TransactionLost("a message before this one could not be committed")
        earlier = self._check(ledger) if self.posts else ()
        for entry in self.finished:
            _finish(ledger, entry)
        for entry, aside in self.set_aside:
            _finish(ledger, entry)
            ledger.queues.set_aside(aside)
        for _, aside in self.postponed:
            ledger.queues.postpone(aside)
        for burial in self.burials:
            self._bury(ledger, burial)
        append_posts(ledger, self.posts, earlier)

    def refuse(self, error: Exception) -> None:
        self._lane.is_broken = True
        super().refuse(error)

    def _check(self, ledger: Ledger) -> Sequence[int | None]:
        try:
            return check_posts(ledger, self.posts)
        except PostroadError:
            self._lane.is_broken = True
            raise

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
        _finish(ledger, entry)

    def settle(self, error: Exception | None) -> None:
        self.on_settled(self, error)


def _finish(ledger: Ledger, entry: Entry) -> None:
    if entry.page is not None:
        ledger.queues.finish(entry.page, entry.index)
    elif entry.aside is not None:
        ledger.queues.finish_aside(entry.aside, ledger.now_ms)


class Undone:
    """What could not be committed of one queue, while it waits to be read again."""

    def __init__(self) -> None:
        # Failures of handlers, in order. They must be counted, or a message would be tried again
        # without end.
        self._failures: deque[tuple[Entry, BaseException]] = deque()
        self._first_of_key: dict[str, Entry] = {}
        # Pages that were told of while they were being committed, and then were not.
        self._withdrawn: set[int] = set()

    def add(self, unit: Handling, error: Exception) -> None:
        """A unit was not committed."""
        for entry in unit.entries():
            if entry.key is not None:
                self._first_of_key.setdefault(entry.key, entry)
        if unit.failure is not None:
            self._failures.append(unit.failure)
        elif len(unit.finished) == 1 and not isinstance(error, StoreError | TransactionLost):
            self._failures.append((unit.finished[0], error))

    def withdraw(self, page: InPage) -> None:
        """A page is not in the store after all."""
        self._withdrawn.add(page.id)

    def next_failure(self) -> tuple[Entry, BaseException] | None:
        """The next failure to count."""
        while self._failures and not self._counts(self._failures[0][0]):
            self._failures.popleft()
        return self._failures[0] if self._failures else None

    def _counts(self, entry: Entry) -> bool:
        if entry.page is not None and entry.page.id in self._withdrawn:
            # It comes again by itself.
            return False
        # Behind another one of its key that is handled again it waits, and is not set aside.
        return entry.key is None or self._first_of_key[entry.key] is entry

    def on_counted(self) -> None:
        """The failure is in the store."""
        self._failures.popleft()

    def clear(self) -> None:
        """The queue is read again."""
        self._failures.clear()
        self._first_of_key.clear()
        self._withdrawn.clear()
