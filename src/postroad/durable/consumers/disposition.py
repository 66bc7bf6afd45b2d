"""What a consumer has done with messages, as one change of the store."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from postroad.core.errors import PostroadError, TransactionAbortedError
from postroad.durable.consumers.prefetch import QueuedMessage
from postroad.durable.producer import EncodedMessage, append_sends, check_sends
from postroad.durable.store.ledger import Ledger
from postroad.durable.store.queries import held_keys
from postroad.durable.store.rows import AsideLetter, InPage
from postroad.durable.store.units import Unit, tell

_next_number = itertools.count().__next__


class FailedDelivery(NamedTuple):
    """A message whose handler failed, and why."""

    entry: QueuedMessage
    error: BaseException
    delay_s: float | None = None


class DeadLettering:
    """A message that becomes a dead letter."""

    __slots__ = ("detail", "entry", "failures", "reason")

    def __init__(self, entry: QueuedMessage, reason: str, detail: str, failures: int) -> None:
        self.entry = entry
        self.reason = reason
        self.detail = detail
        self.failures = failures


class DispositionMutation(Unit):
    """Messages that are done with, with all that follows from it."""

    __slots__ = (
        "dead_letterings",
        "deferred",
        "failure",
        "finished",
        "is_external",
        "lost",
        "number",
        "on_committed",
        "rescheduled",
        "sends",
        "waiter",
    )

    def __init__(
        self,
        on_settled: Callable[[DispositionMutation, Exception | None], None],
        finished: Sequence[QueuedMessage] = (),
        sends: Sequence[EncodedMessage] = (),
    ) -> None:
        super().__init__()
        # The order in which they were made.
        self.number = _next_number()
        self.on_committed = on_settled
        self.finished = finished
        self.sends = sends
        # Whoever waits to hear what came of it.
        self.waiter: asyncio.Future[None] | None = None
        # Whether it is committed by somebody else, with what only that one can repeat.
        self.is_external = False
        # Those that could not be committed, unlike the others.
        self.lost: Sequence[QueuedMessage] = ()
        # Those that leave their page to have their turn by themselves.
        self.deferred: list[tuple[QueuedMessage, AsideLetter]] = []
        # Those that are set aside already, as they shall be.
        self.rescheduled: list[tuple[QueuedMessage, AsideLetter]] = []
        self.dead_letterings: list[DeadLettering] = []
        # The message and the error all this is about, if it is about one that failed.
        self.failure: FailedDelivery | None = None

    @property
    def is_lost(self) -> bool:
        """Whether some of it cannot be committed, because something before it was not."""
        for entry in self.entries():
            # Not by `entry.is_lost`, which takes twice as long.
            if entry.is_void or ((lane := entry.key_sequence) is not None and lane.is_broken):
                return True
        return False

    def results(self) -> Sequence[QueuedMessage]:
        """Those that a handler has done something with, unlike those that had to wait or expire."""
        return self.finished if self.failure is None else (self.failure.entry,)

    def is_key_blocked_by(self, entry: QueuedMessage) -> int:
        """By how much more or less the key of one of its messages is held because of this."""
        if any(entry is other for other, _ in self.deferred):
            return 1
        if any(entry is other for other, _ in self.rescheduled):
            return 0 if entry.blocks_key else 1
        return -1 if entry.blocks_key else 0

    @property
    def is_repeatable(self) -> bool:
        """Whether it can be committed later as well, with nobody having done anything again."""
        return not self.is_external and self.waiter is None

    def defer(
        self, entry: QueuedMessage, *, due_ms: int, failures: int, error: str | None = None
    ) -> None:
        """Have a message wait until it is due; later ones of its key wait for it."""
        holds_key = entry.key is not None or entry.blocks_key
        if (before := entry.deferred) is not None:
            aside = msgspec.structs.replace(
                before,
                due_ms=due_ms,
                holds_key=holds_key,
                failures=failures,
                error=error or before.error,
            )
            self.rescheduled.append((entry, aside))
            return
        home = entry.location
        aside = AsideLetter(
            id=0,
            queue=home.queue,
            sender=home.sender,
            letter=entry.message,
            due_ms=due_ms,
            holds_key=holds_key,
            failures=failures,
            ahead_ms=home.ahead_ms,
            received_ms=home.received_ms,
            error=error,
        )
        self.deferred.append((entry, aside))

    def dead_letter(self, entry: QueuedMessage, reason: str, detail: str, failures: int) -> None:
        """Make a dead letter of a message."""
        self.dead_letterings.append(DeadLettering(entry, reason, detail, failures))

    def entries(self) -> Sequence[QueuedMessage]:
        """All messages this is about."""
        if not (self.deferred or self.rescheduled or self.dead_letterings):
            return self.finished
        return [
            *self.finished,
            *(entry for entry, _ in self.deferred),
            *(entry for entry, _ in self.rescheduled),
            *(burial.entry for burial in self.dead_letterings),
        ]

    def apply(self, ledger: Ledger) -> None:
        entries = self.entries()
        # Not by `is_lost`, which takes twice as long.
        lost = [
            entry
            for entry in entries
            if entry.is_void or ((lane := entry.key_sequence) is not None and lane.is_broken)
        ]
        if lost and len(lost) == len(entries):
            raise TransactionAbortedError("a message before this one could not be committed")
        self.lost = lost
        self.write(ledger)

    def write(self, ledger: Ledger) -> None:
        """Make the change whatever became of others, except with what is lost."""
        earlier = self._check(ledger) if self.sends else ()
        lost = self.lost and set(self.lost)
        finished = self.finished
        _finish(ledger, [entry for entry in finished if entry not in lost] if lost else finished)
        for entry, aside in self.deferred:
            if entry not in lost:
                _finish(ledger, (entry,))
                ledger.queues.set_aside(aside)
        for entry, aside in self.rescheduled:
            if entry not in lost:
                ledger.queues.postpone(aside)
        for burial in self.dead_letterings:
            if burial.entry not in lost:
                self._dead_letter(ledger, burial)
        append_sends(ledger, self.sends, earlier)

    def refuse(self, error: Exception) -> None:
        self.abort_successors()
        super().refuse(error)

    def _check(self, ledger: Ledger) -> Sequence[int | None]:
        try:
            return check_sends(ledger, self.sends)
        except PostroadError:
            self.abort_successors()
            raise

    def abort_successors(self) -> None:
        """Have nothing committed that was done behind this, from now on: it fails."""
        for entry in self.entries():
            if entry.key_sequence is not None:
                entry.key_sequence.is_broken = True

    def _dead_letter(self, ledger: Ledger, burial: DeadLettering) -> None:
        entry = burial.entry
        ledger.dead.add_inbound(
            entry.location.sender,
            entry.message,
            burial.reason,
            burial.detail,
            burial.failures,
            ledger.now_ms,
        )
        _finish(ledger, (entry,))

    def settle(self, error: Exception | None) -> None:
        self.on_committed(self, error)
        if self.waiter is not None:
            tell(self.waiter, error)


def _finish(ledger: Ledger, entries: Sequence[QueuedMessage]) -> None:
    """Messages are done with; most come in the order of their pages, and are written so."""
    page: InPage | None = None
    letters = 0
    for entry in entries:
        if entry.batch is not page:
            if page is not None:
                ledger.queues.finish(page, letters)
            page, letters = entry.batch, 0
        if page is not None:
            letters |= 1 << entry.index
        elif entry.deferred is not None:
            ledger.queues.finish_aside(entry.deferred, ledger.now_ms)
    if page is not None:
        ledger.queues.finish(page, letters)


class ConfirmationMutation(Unit):
    """What the store has of a queue, compared with what is in somebody's hands.

    It is a change like any other: what was submitted before it is part of it, and what was not
    is not.

    Attributes:
        held: the keys that are held by messages set aside, with the number of those.
    """

    __slots__ = ("_batches", "_deferred", "_on_committed", "_queue", "blocked_keys")

    def __init__(
        self,
        queue: str,
        entries: Sequence[QueuedMessage],
        on_settled: Callable[[ConfirmationMutation, Exception | None], None],
    ) -> None:
        super().__init__()
        self._queue = queue
        self._on_committed = on_settled
        self.blocked_keys: dict[str, int] = {}
        # With the bits of the letters that are done with; None if the store does not have it.
        self._batches: dict[int, tuple[InPage, int | None]] = {}
        self._deferred: dict[int, tuple[AsideLetter, bool]] = {}
        for entry in entries:
            if entry.batch is not None:
                self._batches[entry.batch.id] = (entry.batch, None)
            elif entry.deferred is not None:
                self._deferred[entry.deferred.id] = (entry.deferred, False)

    def apply(self, ledger: Ledger) -> None:
        queues = ledger.queues
        queues.release_forgotten(self._queue)
        self.blocked_keys = held_keys(ledger.database, queues.queue_id(self._queue))
        for page, _ in self._batches.values():
            self._batches[page.id] = (page, queues.confirm(page))
        for aside, _ in self._deferred.values():
            self._deferred[aside.id] = (aside, queues.confirm_aside(aside))

    def confirms(self, entry: QueuedMessage) -> bool:
        """Whether a message waits in the store to be handled."""
        if entry.batch is not None:
            _, done = self._batches.get(entry.batch.id, (None, None))
            return done is not None and not done >> entry.index & 1
        return (
            entry.deferred is not None and self._deferred.get(entry.deferred.id, (None, False))[1]
        )

    def settle(self, error: Exception | None) -> None:
        self._on_committed(self, error)
