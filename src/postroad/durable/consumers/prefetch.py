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

from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.stored_messages import StoredMessage

_NOBODY: deque[QueuedMessage] = deque()


class KeySequence(msgspec.Struct, eq=False, gc=False):
    """Messages of one key on their way: behind one that fails, none is committed.

    The first one that fails may be noticed in the thread of the store, so that not even those of
    the same commit get past it.

    Attributes:
        first: the first of its chain: those that were given the key or set aside, in order, until
            that is committed.
        behind: the others of it.
        undone: those of a broken chain that nobody works on any more.
        waiting: those that come after them.
        is_taken: whether one of the chain has the key: it is being handled, or is the next.
        is_broken: whether nothing of the chain may be committed any more.
    """

    first: QueuedMessage | None = None
    # Most keys never have any.
    behind: deque[QueuedMessage] = _NOBODY
    undone: deque[QueuedMessage] = _NOBODY
    waiting: deque[QueuedMessage] = _NOBODY
    is_taken: bool = True
    is_broken: bool = False

    @property
    def chain(self) -> list[QueuedMessage]:
        return [] if self.first is None else [self.first, *self.behind]

    def add(self, entry: QueuedMessage) -> None:
        """Make a message the last one of the chain."""
        entry.key_sequence = self
        if self.first is None:
            self.first = entry
            return
        if self.behind is _NOBODY:
            self.behind = deque()
        self.behind.append(entry)

    def remove(self, entry: QueuedMessage) -> None:
        """Take a message out of the chain, if it is there."""
        if self.first is entry:
            self.first = self.behind.popleft() if self.behind else None
        elif entry in self.behind:
            self.behind.remove(entry)

    def queue_up(self, entry: QueuedMessage) -> None:
        """Have a message wait behind all others."""
        if self.waiting is _NOBODY:
            self.waiting = deque()
        self.waiting.append(entry)

    def give_up(self, entry: QueuedMessage) -> None:
        """Nobody works any more on a message of a broken chain."""
        if self.undone is _NOBODY:
            self.undone = deque()
        self.undone.append(entry)


class QueuedMessage(msgspec.Struct, eq=False, gc=False):
    """One message in memory."""

    message: StoredMessage
    batch: InboxBatch | None
    """Where it is, unless it is set aside."""
    index: int
    """Its place in the page."""
    deferred: DeferredMessage | None
    key: str | None
    """What it must wait for others of; None where order does not matter."""
    key_sequence: KeySequence | None = None
    """Since it was given its key."""
    is_void: bool = False
    """Whether what is done with it does not count, because it must be handled again."""
    is_gone: bool = False
    """Whether it is read again from the store; this one is of no use when its handler ends."""

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be committed, because something before it was not."""
        return self.is_void or (self.key_sequence is not None and self.key_sequence.is_broken)

    @property
    def location(self) -> InboxBatch | DeferredMessage:
        """The page or row it is in."""
        home = self.batch or self.deferred
        assert home is not None
        return home

    @property
    def failures(self) -> int:
        return 0 if self.deferred is None else self.deferred.failures

    @property
    def blocks_key(self) -> bool:
        """Whether it was set aside and others of its key wait for it."""
        return self.deferred is not None and self.deferred.blocks_key

    def is_expired(self, now_ms: int) -> bool:
        """Whether it may not be handled any more."""
        expires_ms = self.message.expires_ms
        return expires_ms > 0 and expires_ms + self.location.clock_skew_ms <= now_ms

    def __repr__(self) -> str:
        return f"<Entry {self.message.id} of {self.location.queue!r} key={self.key!r}>"


class PrefetchBuffer:
    """The messages of one queue that are in memory, and what may be done with them.

    Attributes:
        displaced: messages that must be set aside, because an earlier one holds their key.
        expired: messages that came to their turn too late.
    """

    def __init__(self, *, is_ordered: bool, held: dict[str, int]) -> None:
        self._is_ordered = is_ordered
        # Keys that are held by messages set aside, and how many there are of each.
        self._blocked = held if is_ordered else {}
        self._ready: deque[QueuedMessage] = deque()
        # Those that have been given their key already.
        self._resumed: deque[QueuedMessage] = deque()
        self._prioritized: list[tuple[int, int, QueuedMessage]] = []
        # The keys of messages that are being handled, or whose handling is not committed.
        self._key_sequences: dict[str, KeySequence] = {}
        # Letters of pages that are not here yet and have an entry already.
        self._claimed: dict[int, int] = {}
        self.to_defer: list[QueuedMessage] = []
        self.expired: list[QueuedMessage] = []
        self.size = 0

    # Filling.

    def add_batch(self, batch: InboxBatch) -> None:
        """Put the letters of a page behind all others."""
        done, is_ordered = batch.done_bits | self._claimed.pop(batch.id, 0), self._is_ordered
        entries = [
            QueuedMessage(message, batch, index, None, message.key if is_ordered else None)
            for index, message in enumerate(batch.messages)
            if not done or not done >> index & 1
        ]
        self._ready.extend(entries)
        self.size += len(entries)

    def add_deferred(self, deferred: DeferredMessage) -> None:
        """Put a letter where its priority wants it."""
        message = deferred.message
        entry = QueuedMessage(message, None, 0, deferred, message.key if self._is_ordered else None)
        heapq.heappush(self._prioritized, (-message.priority, deferred.id, entry))
        self.size += 1

    # Handling.

    def pop_next(self, now_ms: Callable[[], int]) -> QueuedMessage | None:
        """The next message to handle; its key is taken with it.

        Args:
            now_ms: tells the time, which only messages that expire need.
        """
        while True:
            if self._prioritized and self._prioritized[0][0] <= 0:
                entry = heapq.heappop(self._prioritized)[2]
            elif self._resumed:
                entry = self._resumed.popleft()
                if entry.key_sequence is not None and entry.key_sequence.is_broken:
                    entry.key_sequence.give_up(entry)
                    continue
                if not entry.message.expires_ms or not self._expire(entry, now_ms()):
                    return entry
                continue
            elif self._ready:
                entry = self._ready.popleft()
            elif self._prioritized:
                entry = heapq.heappop(self._prioritized)[2]
            else:
                return None
            if (entry.key is None or self._acquire_key(entry, entry.key)) and (
                not entry.message.expires_ms or not self._expire(entry, now_ms())
            ):
                return entry

    def _acquire_key(self, entry: QueuedMessage, key: str) -> bool:
        """Take the key of a message; otherwise it waits, or is displaced."""
        lane = self._key_sequences.get(key)
        if lane is not None and (lane.is_taken or lane.is_broken):
            lane.queue_up(entry)
        elif self._blocked and key in self._blocked and not entry.blocks_key:
            self._defer(entry)
        elif lane is None:
            # As `_give_key` does, which most messages save the call of.
            entry.key_sequence = self._key_sequences[key] = KeySequence(entry)
            return True
        else:
            self._give_key(entry, key, lane)
            return True
        return False

    def _give_key(self, entry: QueuedMessage, key: str, lane: KeySequence | None) -> None:
        if lane is None:
            entry.key_sequence = self._key_sequences[key] = KeySequence(entry)
        else:
            lane.is_taken = True
            lane.add(entry)

    def _expire(self, entry: QueuedMessage, now_ms: int) -> bool:
        if not entry.is_expired(now_ms):
            return False
        self.expired.append(entry)
        self.finish(entry)
        return True

    def _defer(self, entry: QueuedMessage) -> None:
        assert entry.key is not None
        if not entry.blocks_key:
            self._blocked[entry.key] = self._blocked.get(entry.key, 0) + 1
        self.size -= 1
        self.to_defer.append(entry)
        lane = self._key_sequences.get(entry.key)
        if lane is not None:
            # It is set aside behind what the chain leads to, or not at all.
            lane.add(entry)

    def finish(self, entry: QueuedMessage) -> None:
        """A message was handled or given up: the next one of its key may go."""
        self.size -= 1
        if entry.key is None:
            return
        if entry.blocks_key:
            self._count_blocked(entry.key, -1)
        assert entry.key_sequence is not None
        self._pass_key(entry.key, entry.key_sequence)

    def _pass_key(self, key: str, lane: KeySequence) -> None:
        """Give a key to the first message that waits for it."""
        waiting = lane.waiting
        lane.is_taken = False
        if waiting and key in self._blocked:
            # Older ones were set aside and come first.
            self._defer_all(lane)
        elif waiting:
            entry = waiting.popleft()
            self._give_key(entry, key, lane)
            self._resumed.append(entry)

    def _defer_all(self, lane: KeySequence) -> None:
        followers, lane.waiting = lane.waiting, _NOBODY
        for follower in followers:
            self._defer(follower)

    def _count_blocked(self, key: str, change: int) -> None:
        count = self._blocked.get(key, 0) + change
        if count:
            self._blocked[key] = count
        else:
            self._blocked.pop(key, None)

    def block_key(self, entry: QueuedMessage) -> None:
        """A message will be tried again later: its key is held, and those behind it displaced."""
        self.size -= 1
        key, lane = entry.key, entry.key_sequence
        if key is None or lane is None:
            return
        if not entry.blocks_key:
            self._count_blocked(key, 1)
        lane.is_taken = False
        self._defer_all(lane)

    def requeue(self, entry: QueuedMessage) -> None:
        """A message was not handled: it is the next one, and keeps its key."""
        self._resumed.appendleft(entry)

    # What came of the commits.

    def settle(self, entry: QueuedMessage, lane: KeySequence) -> None:
        """What was done with a message of a key is committed."""
        if lane.first is entry and lane.behind is _NOBODY:
            lane.first = None
        else:
            lane.remove(entry)
        key = entry.key
        if lane.first is not None or lane.is_taken or lane.waiting or key is None:
            return
        # There may be another one since, of another shelf.
        if self._key_sequences.get(key) is lane:
            del self._key_sequences[key]

    def revert(self, entry: QueuedMessage, held: int) -> None:
        """What was done with a message was not committed.

        Args:
            held: by how much more or less its key was held because of it.
        """
        self.size += 1
        if entry.key is not None and held:
            self._count_blocked(entry.key, -held)

    def return_to_buffer(self, entry: QueuedMessage) -> QueuedMessage | None:
        """Nobody works any more on a message that must be handled again.

        Returns the first one of its chain as soon as this is so for all of them: it has its key,
        and the others wait behind it.
        """
        key, lane = entry.key, entry.key_sequence
        if key is None or lane is None:
            entry.is_void = False
            return None if entry.is_gone else entry
        if not lane.is_broken:
            # Only its own place is at stake: see `occupy`.
            self._pass_key(key, lane)
            self.settle(entry, lane)
            return None
        lane.give_up(entry)
        chain = lane.chain
        if chain[-1] in self._resumed:
            self._resumed.remove(chain[-1])
            lane.give_up(chain[-1])
        return self._restore(key, lane) if len(lane.undone) == len(chain) else None

    def _restore(self, key: str, broken: KeySequence) -> QueuedMessage | None:
        entries = deque(entry for entry in broken.chain if not entry.is_gone)
        for entry in entries:
            entry.key_sequence, entry.is_void = None, False
        entries += broken.waiting
        del self._key_sequences[key]
        if not entries:
            return None
        first = entries.popleft()
        self._give_key(first, key, None)
        self._key_sequences[key].waiting = entries
        return first

    # What outlives a shelf: messages in somebody's hands.

    def claim(self, entry: QueuedMessage) -> None:
        """Have a message here that was taken from the shelf before this one."""
        self.size += 1
        if entry.batch is not None:
            bits = self._claimed.get(entry.batch.id, 0)
            self._claimed[entry.batch.id] = bits | 1 << entry.index
        if entry.key is not None:
            self._give_key(entry, entry.key, self._key_sequences.get(entry.key))

    def occupy(self, entry: QueuedMessage) -> None:
        """Have the key of a message taken that is being handled and is read again all the same."""
        entry.is_void = entry.is_gone = True
        if entry.key is not None:
            self._give_key(entry, entry.key, self._key_sequences.get(entry.key))

    def dissolve(self) -> None:
        """Let go of all messages, once another shelf has taken this one's place.

        A message and its lane refer to each other, and are not looked for by the collector. What
        became of a lane can still be seen by whoever has one of its messages.
        """
        for lane in self._key_sequences.values():
            lane.first = None
            lane.behind = lane.undone = lane.waiting = _NOBODY

    @property
    def blocked_keys(self) -> int:
        """How many keys wait for a message that is tried again."""
        return len(self._blocked)
