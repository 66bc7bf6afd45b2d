"""Which message of a queue is handled next. Pure: time comes in as an argument.

Messages of one key are handled one after the other. A message that failed blocks its key: later
messages of the key are deferred in the store until it was handled or dead-lettered, so that a key
with a failing message keeps its order and does not delay other keys.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable

import msgspec

from postroad.durable.store.tables.rows import DeferredMessage, InboxBatch
from postroad.durable.stored_messages import StoredMessage

_NO_MESSAGES: deque[QueuedMessage] = deque()


class KeySequence(msgspec.Struct, eq=False, gc=False):
    """Messages of one key that are being handled, in order: after a failed one, none is committed.

    The store's thread may be the first to notice the failure, so that not even messages of the
    same commit overtake it.

    Attributes:
        first: the first message of the chain: the messages that have acquired the key or were
            deferred, in order, until their commit.
        followers: the other messages of the chain.
        aborted: messages of an aborted chain whose handlers have ended.
        waiting: messages that wait for the key.
        is_acquired: whether a message of the chain has the key: it is handled, or is the next.
        is_aborted: whether nothing of the chain may be committed any more.
    """

    first: QueuedMessage | None = None
    # Most keys never have followers.
    followers: deque[QueuedMessage] = _NO_MESSAGES
    aborted: deque[QueuedMessage] = _NO_MESSAGES
    waiting: deque[QueuedMessage] = _NO_MESSAGES
    is_acquired: bool = True
    is_aborted: bool = False

    @property
    def chain(self) -> list[QueuedMessage]:
        return [] if self.first is None else [self.first, *self.followers]

    def add(self, entry: QueuedMessage) -> None:
        """Append a message to the chain."""
        entry.key_sequence = self
        if self.first is None:
            self.first = entry
            return
        if self.followers is _NO_MESSAGES:
            self.followers = deque()
        self.followers.append(entry)

    def remove(self, entry: QueuedMessage) -> None:
        """Remove a message from the chain, if it is in it."""
        if self.first is entry:
            self.first = self.followers.popleft() if self.followers else None
        elif entry in self.followers:
            self.followers.remove(entry)

    def queue_up(self, entry: QueuedMessage) -> None:
        """Append a message to those that wait for the key."""
        if self.waiting is _NO_MESSAGES:
            self.waiting = deque()
        self.waiting.append(entry)

    def add_aborted(self, entry: QueuedMessage) -> None:
        """Record that the handler of a message of an aborted chain has ended."""
        if self.aborted is _NO_MESSAGES:
            self.aborted = deque()
        self.aborted.append(entry)


class QueuedMessage(msgspec.Struct, eq=False, gc=False):
    """A message of a queue in memory."""

    message: StoredMessage
    batch: InboxBatch | None
    """The batch that it is part of; None if it is deferred."""
    index: int
    """Position in the batch."""
    deferred: DeferredMessage | None
    key: str | None
    """Messages of equal keys are handled in order; None: no order."""
    key_sequence: KeySequence | None = None
    """Set since it acquired its key."""
    is_aborted: bool = False
    """Whether its result is discarded, because it must be handled again."""
    is_superseded: bool = False
    """Whether it is read again from the store, so that this copy is dropped after its handler."""

    @property
    def is_lost(self) -> bool:
        """Whether it cannot be committed, because a message before it failed to commit."""
        return self.is_aborted or (self.key_sequence is not None and self.key_sequence.is_aborted)

    @property
    def location(self) -> InboxBatch | DeferredMessage:
        """The batch or the row that it is stored in."""
        location = self.batch or self.deferred
        assert location is not None
        return location

    @property
    def failures(self) -> int:
        return 0 if self.deferred is None else self.deferred.failures

    @property
    def blocks_key(self) -> bool:
        """Whether it was deferred and others of its key wait for it."""
        return self.deferred is not None and self.deferred.blocks_key

    def is_expired(self, now_ms: int) -> bool:
        """Whether its time to live is over."""
        expires_ms = self.message.expires_ms
        return expires_ms > 0 and expires_ms + self.location.clock_skew_ms <= now_ms

    def __repr__(self) -> str:
        return f"<QueuedMessage {self.message.id} of {self.location.queue!r} key={self.key!r}>"


class PrefetchBuffer:
    """The messages of one queue that are in memory; hands them out in the order of their keys.

    Attributes:
        to_defer: messages to be deferred, because an earlier one blocks their key.
        expired: messages whose time to live ended before they were handed out.
    """

    def __init__(self, *, is_ordered: bool, blocked: dict[str, int]) -> None:
        self._is_ordered = is_ordered
        # Keys blocked by deferred messages, with the number of those.
        self._blocked = blocked if is_ordered else {}
        self._ready: deque[QueuedMessage] = deque()
        # Messages that have acquired their key already.
        self._resumed: deque[QueuedMessage] = deque()
        self._prioritized: list[tuple[int, int, QueuedMessage]] = []
        # Of keys whose messages are being handled, or whose dispositions are not committed.
        self._key_sequences: dict[str, KeySequence] = {}
        # Bits of messages that have an entry although their batch is not loaded.
        self._claimed: dict[int, int] = {}
        self.to_defer: list[QueuedMessage] = []
        self.expired: list[QueuedMessage] = []
        self.size = 0

    # Filling.

    def add_batch(self, batch: InboxBatch) -> None:
        """Append the messages of a batch."""
        done, is_ordered = batch.done_bits | self._claimed.pop(batch.id, 0), self._is_ordered
        entries = [
            QueuedMessage(message, batch, index, None, message.key if is_ordered else None)
            for index, message in enumerate(batch.messages)
            if not done or not done >> index & 1
        ]
        self._ready.extend(entries)
        self.size += len(entries)

    def add_deferred(self, deferred: DeferredMessage) -> None:
        """Add a deferred message at the place of its priority."""
        message = deferred.message
        entry = QueuedMessage(message, None, 0, deferred, message.key if self._is_ordered else None)
        heapq.heappush(self._prioritized, (-message.priority, deferred.id, entry))
        self.size += 1

    # Handling.

    def pop_next(self, now_ms: Callable[[], int]) -> QueuedMessage | None:
        """Pop the next message to handle, with its key acquired; None if there is none.

        Args:
            now_ms: the clock; only read for messages that can expire.
        """
        while True:
            if self._prioritized and self._prioritized[0][0] <= 0:
                entry = heapq.heappop(self._prioritized)[2]
            elif self._resumed:
                entry = self._resumed.popleft()
                if entry.key_sequence is not None and entry.key_sequence.is_aborted:
                    entry.key_sequence.add_aborted(entry)
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
        """Acquire the key of a message; otherwise the message waits or is deferred."""
        sequence = self._key_sequences.get(key)
        if sequence is not None and (sequence.is_acquired or sequence.is_aborted):
            sequence.queue_up(entry)
        elif self._blocked and key in self._blocked and not entry.blocks_key:
            self._defer(entry)
        elif sequence is None:
            # `_assign_key` inlined: most messages take this path.
            entry.key_sequence = self._key_sequences[key] = KeySequence(entry)
            return True
        else:
            self._assign_key(entry, key, sequence)
            return True
        return False

    def _assign_key(self, entry: QueuedMessage, key: str, sequence: KeySequence | None) -> None:
        if sequence is None:
            entry.key_sequence = self._key_sequences[key] = KeySequence(entry)
        else:
            sequence.is_acquired = True
            sequence.add(entry)

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
        sequence = self._key_sequences.get(entry.key)
        if sequence is not None:
            # It is deferred only if the chain before it is committed.
            sequence.add(entry)

    def finish(self, entry: QueuedMessage) -> None:
        """Remove a message that was handled or dead-lettered, and pass its key on."""
        self.size -= 1
        if entry.key is None:
            return
        if entry.blocks_key:
            self._count_blocked(entry.key, -1)
        assert entry.key_sequence is not None
        self._pass_key(entry.key, entry.key_sequence)

    def _pass_key(self, key: str, sequence: KeySequence) -> None:
        """Pass a key on to the first message that waits for it."""
        waiting = sequence.waiting
        sequence.is_acquired = False
        if waiting and key in self._blocked:
            # Older messages of the key are deferred and come first.
            self._defer_all(sequence)
        elif waiting:
            entry = waiting.popleft()
            self._assign_key(entry, key, sequence)
            self._resumed.append(entry)

    def _defer_all(self, sequence: KeySequence) -> None:
        followers, sequence.waiting = sequence.waiting, _NO_MESSAGES
        for follower in followers:
            self._defer(follower)

    def _count_blocked(self, key: str, change: int) -> None:
        count = self._blocked.get(key, 0) + change
        if count:
            self._blocked[key] = count
        else:
            self._blocked.pop(key, None)

    def block_key(self, entry: QueuedMessage) -> None:
        """Block the key of a message that is retried later, and defer those that wait for it."""
        self.size -= 1
        key, sequence = entry.key, entry.key_sequence
        if key is None or sequence is None:
            return
        if not entry.blocks_key:
            self._count_blocked(key, 1)
        sequence.is_acquired = False
        self._defer_all(sequence)

    def requeue(self, entry: QueuedMessage) -> None:
        """Put an unhandled message back to the front; it keeps its key."""
        self._resumed.appendleft(entry)

    # After commits.

    def remove_committed(self, entry: QueuedMessage, sequence: KeySequence) -> None:
        """Remove a message from its chain after its disposition was committed."""
        if sequence.first is entry and sequence.followers is _NO_MESSAGES:
            sequence.first = None
        else:
            sequence.remove(entry)
        key = entry.key
        if sequence.first is not None or sequence.is_acquired or sequence.waiting or key is None:
            return
        # A newer buffer may have created another sequence for the key.
        if self._key_sequences.get(key) is sequence:
            del self._key_sequences[key]

    def revert(self, entry: QueuedMessage, blocked: int) -> None:
        """Undo the disposition of a message that was not committed.

        Args:
            blocked: the change that the disposition made to the blocks of its key.
        """
        self.size += 1
        if entry.key is not None and blocked:
            self._count_blocked(entry.key, -blocked)

    def return_to_buffer(self, entry: QueuedMessage) -> QueuedMessage | None:
        """Return a message that must be handled again to the buffer, after its handler has ended.

        Once all messages of its chain are back, returns the first of them, which has its key
        while the others wait.
        """
        key, sequence = entry.key, entry.key_sequence
        if key is None or sequence is None:
            entry.is_aborted = False
            return None if entry.is_superseded else entry
        if not sequence.is_aborted:
            # It only holds its place in the order: see `occupy`.
            self._pass_key(key, sequence)
            self.remove_committed(entry, sequence)
            return None
        sequence.add_aborted(entry)
        chain = sequence.chain
        if chain[-1] in self._resumed:
            self._resumed.remove(chain[-1])
            sequence.add_aborted(chain[-1])
        return self._restore(key, sequence) if len(sequence.aborted) == len(chain) else None

    def _restore(self, key: str, aborted: KeySequence) -> QueuedMessage | None:
        entries = deque(entry for entry in aborted.chain if not entry.is_superseded)
        for entry in entries:
            entry.key_sequence, entry.is_aborted = None, False
        entries += aborted.waiting
        del self._key_sequences[key]
        if not entries:
            return None
        first = entries.popleft()
        self._assign_key(first, key, None)
        self._key_sequences[key].waiting = entries
        return first

    # Messages in flight, which outlive a buffer.

    def adopt(self, entry: QueuedMessage) -> None:
        """Add a message in flight that was popped from the previous buffer."""
        self.size += 1
        if entry.batch is not None:
            bits = self._claimed.get(entry.batch.id, 0)
            self._claimed[entry.batch.id] = bits | 1 << entry.index
        if entry.key is not None:
            self._assign_key(entry, entry.key, self._key_sequences.get(entry.key))

    def occupy(self, entry: QueuedMessage) -> None:
        """Acquire the key of a message that is still being handled and is loaded again."""
        entry.is_aborted = entry.is_superseded = True
        if entry.key is not None:
            self._assign_key(entry, entry.key, self._key_sequences.get(entry.key))

    def dissolve(self) -> None:
        """Release all messages, once another buffer has replaced this one.

        Messages and their sequences refer to each other and are not tracked by the garbage
        collector. Holders of a message can still see whether its sequence was aborted.
        """
        for sequence in self._key_sequences.values():
            sequence.first = None
            sequence.followers = sequence.aborted = sequence.waiting = _NO_MESSAGES

    @property
    def blocked_keys(self) -> int:
        """The number of keys that are blocked by a retry."""
        return len(self._blocked)
