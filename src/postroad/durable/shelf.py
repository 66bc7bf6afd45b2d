"""Which message of a queue is handled next. Pure: time comes in as an argument.

Messages of one key are handled one after the other. A message that failed holds its key: those
that come after it are set aside in the store until it was handled or given up, so that a key in
trouble neither loses its order nor keeps the other keys waiting.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import msgspec

from .letters import Letter
from .store.rows import AsideLetter, InPage


class Entry(msgspec.Struct, eq=False, gc=False):
    """One message in memory."""

    letter: Letter
    page: InPage | None
    """Where it is, unless it is set aside."""
    index: int
    """Its place in the page."""
    aside: AsideLetter | None
    key: str | None
    """What it must wait for others of; None where order does not matter."""

    @property
    def home(self) -> InPage | AsideLetter:
        """The page or row it is in."""
        home = self.page or self.aside
        assert home is not None
        return home

    @property
    def failures(self) -> int:
        return 0 if self.aside is None else self.aside.failures

    @property
    def holds_key(self) -> bool:
        """Whether it was set aside and others of its key wait for it."""
        return self.aside is not None and self.aside.holds_key

    def is_expired(self, now_ms: int) -> bool:
        """Whether it may not be handled any more."""
        expires_ms = self.letter.expires_ms
        return expires_ms > 0 and expires_ms + self.home.ahead_ms <= now_ms

    def __repr__(self) -> str:
        return f"<Entry {self.letter.id} of {self.home.queue!r} key={self.key!r}>"


class Shelf:
    """The messages of one queue that are in memory, and what may be done with them.

    Attributes:
        displaced: messages that must be set aside, because an earlier one holds their key.
        expired: messages that came to their turn too late.
    """

    def __init__(self, *, is_ordered: bool, held: dict[str, int]) -> None:
        self._is_ordered = is_ordered
        # Keys that are held by messages set aside, and how many there are of each.
        self._held = held if is_ordered else {}
        self._ready: deque[Entry] = deque()
        # Those that have been given their key already.
        self._resumed: deque[Entry] = deque()
        self._urgent: list[tuple[int, int, Entry]] = []
        # Keys of messages that are being handled, with those that wait for them.
        self._busy: dict[str, deque[Entry]] = {}
        self.displaced: list[Entry] = []
        self.expired: list[Entry] = []
        self.size = 0

    # Filling.

    def add_page(self, page: InPage) -> None:
        """Put the letters of a page behind all others."""
        done, is_ordered = page.done, self._is_ordered
        entries = [
            Entry(letter, page, index, None, letter.key if is_ordered else None)
            for index, letter in enumerate(page.letters)
            if not done or not done >> index & 1
        ]
        self._ready.extend(entries)
        self.size += len(entries)

    def add_aside(self, aside: AsideLetter) -> None:
        """Put a letter where its priority wants it."""
        letter = aside.letter
        entry = Entry(letter, None, 0, aside, letter.key if self._is_ordered else None)
        heapq.heappush(self._urgent, (-letter.priority, aside.id, entry))
        self.size += 1

    # Handling.

    def take(self, now_ms: Callable[[], int]) -> Entry | None:
        """The next message to handle; its key is taken with it.

        Args:
            now_ms: tells the time, which only messages that expire need.
        """
        while True:
            if self._urgent and self._urgent[0][0] <= 0:
                entry = heapq.heappop(self._urgent)[2]
            elif self._resumed:
                entry = self._resumed.popleft()
                if not entry.letter.expires_ms or not self._expire(entry, now_ms()):
                    return entry
                continue
            elif self._ready:
                entry = self._ready.popleft()
            elif self._urgent:
                entry = heapq.heappop(self._urgent)[2]
            else:
                return None
            if (entry.key is None or self._may_go(entry, entry.key)) and (
                not entry.letter.expires_ms or not self._expire(entry, now_ms())
            ):
                return entry

    def _may_go(self, entry: Entry, key: str) -> bool:
        """Take the key of a message; otherwise it waits, or is displaced."""
        waiting = self._busy.get(key)
        if waiting is not None:
            waiting.append(entry)
        elif key in self._held and not entry.holds_key:
            self._displace(entry)
        else:
            self._busy[key] = deque()
            return True
        return False

    def _expire(self, entry: Entry, now_ms: int) -> bool:
        if not entry.is_expired(now_ms):
            return False
        self.expired.append(entry)
        self.finish(entry)
        return True

    def _displace(self, entry: Entry) -> None:
        assert entry.key is not None
        if not entry.holds_key:
            self._held[entry.key] += 1
        self.size -= 1
        self.displaced.append(entry)

    def finish(self, entry: Entry) -> None:
        """A message was handled or given up: the next one of its key may go."""
        self.size -= 1
        if entry.key is None:
            return
        if entry.holds_key:
            self._release(entry.key)
        self._pass_on(entry.key)

    def _pass_on(self, key: str) -> None:
        """Give a key to the first message that waits for it."""
        waiting = self._busy[key]
        if not waiting:
            del self._busy[key]
        elif key in self._held:
            # Older ones were set aside and come first.
            del self._busy[key]
            for entry in waiting:
                self._displace(entry)
        else:
            self._resumed.append(waiting.popleft())

    def _release(self, key: str) -> None:
        count = self._held[key] - 1
        if count:
            self._held[key] = count
        else:
            del self._held[key]

    def fail(self, entry: Entry) -> None:
        """A message will be tried again later: its key is held, and those behind it displaced."""
        self.size -= 1
        key = entry.key
        if key is None:
            return
        if not entry.holds_key:
            self._held[key] = self._held.get(key, 0) + 1
        for follower in self._busy.pop(key):
            self._displace(follower)

    def give_back(self, entry: Entry) -> None:
        """A message was not handled: it is the next one, and keeps its key."""
        self._resumed.appendleft(entry)

    @property
    def held_keys(self) -> int:
        """How many keys wait for a message that is tried again."""
        return len(self._held)
