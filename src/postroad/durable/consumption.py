"""Gets the messages of one queue from the store to whoever handles them, and back.

The store knows what is not finished; everything in here is a cache of it. What one message wants is
refused: it has failed, and those of its key that were handled behind it are handled again. A commit
fails: everything is read again, except what is in somebody's hands and is still there; what was
handled meanwhile is committed then.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Sequence

from postroad.core import fault_points as faults
from postroad.core.errors import Reject, StoreError, TransactionAbortedError
from postroad.core.log_throttle import ThrottledLogger

from .config import MailConfig, Retry
from .exchange import Reason
from .handling import Confirmation, Failure, Handling
from .letters import NEVER_MS
from .posting import Post
from .reading import QueueReading, now_ms
from .shelf import Entry, Shelf
from .statistics import Totals
from .store import Store
from .store.rows import InPage
from .store.units import tell

logger = logging.getLogger("postroad.durable")

TAKEN = faults.declare_fault_point("durable.consumer.taken")
HANDLED = faults.declare_fault_point("durable.consumer.handled")

_DETAIL_CHARS_MAX = 2_000
_WARN_INTERVAL_S = 5.0


class Consumption(QueueReading):
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
        super().__init__(store, config, queue, queue_id, is_ordered=is_ordered, retry=retry)
        self._totals = totals
        self._in_hand: dict[Entry, None] = {}
        self._acks: list[Entry] = []
        self.uncommitted = 0
        self._uncommitted_max = config.uncommitted_max
        # Units that are being committed, and those that are once the queue was read again.
        self._submitted: dict[Handling, None] = {}
        self._parked: list[Handling] = []
        # Messages that want what the store refuses, until all behind them are put down, and those
        # before them are handled again.
        self._refused: dict[Entry, Exception] = {}
        self._failed_in_a_row = 0
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self.is_paused = False
        self.handled = self.failed = 0

    # Taking.

    def take(self) -> Entry | None:
        """The next message to handle; None if there is none at the moment."""
        if self._is_broken or self._is_closed or self.is_paused:
            return None
        if self.uncommitted >= self._uncommitted_max:
            return None
        shelf = self._shelf
        entry = shelf.take(now_ms)
        while self._refused and entry is not None and entry in self._refused:
            # Those before it had to be handled again first.
            self._fail(Failure(entry, self._refused.pop(entry)))
            entry = shelf.take(now_ms)
        if shelf.displaced or shelf.expired:
            self._clear_shelf()
        if entry is not None:
            self._in_hand[entry] = None
            if TAKEN.is_armed:
                TAKEN.hit(entry=entry)
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
        unit = Handling(self._on_settled)
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
        HANDLED.hit(entry=entry)
        self.handled += 1
        if not self._is_broken:
            self._shelf.finish(entry)
        return Handling(self._on_settled, finished=(entry,), posts=posts)

    def acknowledge(self, entry: Entry) -> None:
        """A message was handled, and nothing else follows from it."""
        lane = entry.lane
        if (
            entry.is_void
            or self._is_broken
            or self._is_closed
            or (lane is not None and (lane.is_broken or lane.waiting or entry.aside is not None))
        ):
            if not self._put_down(entry):
                return
            if not self._is_broken:
                self._shelf.finish(entry)
        else:
            # The same where nobody waits for its key, which most messages save the calls of.
            del self._in_hand[entry]
            self._shelf.size -= 1
            if lane is not None:
                lane.is_taken = False
        if HANDLED.is_armed:
            HANDLED.hit(entry=entry)
        self.handled += 1
        if not self._acks:
            self._loop.call_soon(self._flush_acks)
        self._acks.append(entry)
        self.uncommitted += 1

    def _flush_acks(self) -> None:
        acks, self._acks = self._acks, []
        if acks:
            self.uncommitted -= len(acks)
            self._submit(Handling(self._on_settled, finished=acks))

    def submit(self, unit: Handling) -> None:
        """Have a unit committed that `finish` made."""
        self._flush_acks()
        self._submit(unit)

    def expect(self, unit: Handling) -> None:
        """A unit that `finish` made is committed by somebody else: a transaction, or a flow."""
        self._flush_acks()
        unit.is_external = True
        self._submitted[unit] = None
        self.uncommitted += len(unit.entries())

    def _submit(self, unit: Handling) -> None:
        self.uncommitted += len(unit.entries())
        if self._is_broken:
            self._park(unit)
        else:
            self._submitted[unit] = None
            self._store.submit(unit)

    def _park(self, unit: Handling) -> None:
        """Have a unit committed when the queue was read again, and before it nothing behind it."""
        unit.fence()
        self._parked.append(unit)

    def fail(self, entry: Entry, error: BaseException, pause_s: float | None = None) -> None:
        """A handler failed: try again later, or give the message up."""
        if self._put_down(entry):
            self._flush_acks()
            self._count_failure()
            self._fail(Failure(entry, error, pause_s))

    def _count_failure(self) -> None:
        self.failed += 1
        self._totals.failed.add(1, self._loop.time())

    def _fail(self, failure: Failure) -> None:
        entry, error, _ = failure
        unit = self._judge(failure)
        if not self._is_broken:
            if self.is_hopeless(entry, error):
                self._shelf.finish(entry)
            else:
                self._shelf.fail(entry)
            followers, self._shelf.displaced = self._shelf.displaced, []
            for follower in followers:
                unit.hold_back(follower, due_ms=NEVER_MS, failures=follower.failures)
        self._submit(unit)

    def is_hopeless(self, entry: Entry, error: BaseException) -> bool:
        """Whether a message is given up after this failure."""
        return isinstance(error, Reject) or entry.failures + 1 >= self.retry.attempts

    def _judge(self, failure: Failure) -> Handling:
        """What becomes of a message whose handler failed: another attempt, or a dead letter."""
        entry, error, pause_s = failure
        unit = Handling(self._on_settled)
        unit.failure = failure
        failures = entry.failures + 1
        detail = f"{type(error).__name__}: {error}"[:_DETAIL_CHARS_MAX]
        if self.is_hopeless(entry, error):
            reason = Reason.REJECTED if isinstance(error, Reject) else Reason.FAILED
            unit.bury(entry, reason, detail, failures)
        else:
            if pause_s is None:
                pause_s = self.retry.pause_s(failures, random.random())
            due_ms = now_ms() + round(pause_s * 1000)
            unit.hold_back(entry, due_ms=due_ms, failures=failures, error=detail)
        return unit

    def give_back(self, entry: Entry) -> None:
        """A message was not handled after all."""
        if self._put_down(entry) and not self._is_broken:
            self._shelf.give_back(entry)
            self.changed.set()

    def _put_down(self, entry: Entry) -> bool:
        """Whether what was done with a message counts: not if one before it failed."""
        del self._in_hand[entry]
        if self._is_closed or entry.is_void:
            is_lost = True
        else:
            # If all is read again it may be committed once those before it are.
            lane = entry.lane
            is_lost = lane is not None and lane.is_broken and not self._is_broken
        if is_lost and not self._is_broken and not self._is_closed:
            self._put_back(entry)
        return not is_lost

    def _put_back(self, entry: Entry) -> None:
        """Nobody works any more on a message that is handled again, like those of its key."""
        first = self._shelf.put_back(entry)
        if first is not None:
            error = self._refused.pop(first, None)
            if error is None:
                self._shelf.give_back(first)
            else:
                self._fail(Failure(first, error))
        if self._shelf.displaced:
            self._clear_shelf()
        self.changed.set()

    def _complain(self, entry: Entry, error: Exception) -> None:
        self._log.log(
            "refused",
            self._loop.time(),
            "queue %r: what a handler did cannot be committed, attempt %d of %d: %s: %s; %s",
            self.queue,
            entry.failures + 1,
            self.retry.attempts,
            type(error).__name__,
            error,
            "the message is a dead letter"
            if self.is_hopeless(entry, error)
            else "the message comes again",
        )

    # What came of a commit.

    def _on_settled(self, unit: Handling, error: Exception | None) -> None:
        self._submitted.pop(unit, None)
        entries = unit.entries()
        if error is None:
            self._failed_in_a_row = 0
            self._totals.handled.add(len(unit.finished), self._loop.time())
            self.uncommitted -= len(entries)
            if lost := unit.lost:
                entries = [entry for entry in entries if entry not in lost]
            self._forget(entries)
            if lost:
                self._undo(unit, lost)
        else:
            self._on_failed(unit, error)
        self.changed.set()

    def _on_failed(self, unit: Handling, error: Exception) -> None:
        """Nothing of a unit is in the store."""
        is_store_error = isinstance(error, StoreError)
        is_refused = not is_store_error and not isinstance(error, TransactionAbortedError)
        if is_store_error or (is_refused and len(unit.finished) != 1):
            self.suspend(error)
        if self._is_broken and unit.is_repeatable and not is_refused and not self._is_closed:
            self._park(unit)
            return
        self.uncommitted -= len(unit.entries())
        if is_refused and len(unit.finished) == 1:
            self._refuse(unit.finished[0], error)
        unit.fence()
        self._undo(unit, unit.entries())

    def _refuse(self, entry: Entry, error: Exception) -> None:
        """What came of a message is refused: that has failed, as if its handler had."""
        if not entry.is_gone:
            self._refused[entry] = error
            self._count_failure()
            self._complain(entry, error)

    def _undo(self, unit: Handling, entries: Sequence[Entry]) -> None:
        """Have messages handled again, and with them those that were handled behind them."""
        if self._is_closed:
            return
        for entry in entries:
            if not entry.is_gone:
                _void_behind(entry)
                if self._is_broken:
                    # Void it stays: what was refused behind another one comes after that again.
                    entry.is_void |= entry not in self._refused
                else:
                    self._shelf.undo(entry, unit.held_by(entry))
                    self._put_back(entry)

    def suspend(self, error: Exception) -> None:
        """Nothing can be committed: take nothing more until that is over."""
        if not self._is_broken:
            logger.warning("queue %r is read again: %s", self.queue, error)
            self._failed_in_a_row += 1
        self.reload()

    # Reading again.

    def on_withdrawn(self, page: InPage) -> None:
        """The commit of a page that was arriving failed."""
        if self._pages.pop(page.id, None) is not None:
            for entry in self._beyond_shelf():
                if entry.page is page:
                    entry.is_void = True
                    _void_behind(entry)
            self.reload()

    def _beyond_shelf(self) -> list[Entry]:
        """All messages that were taken and are not known to be committed."""
        units = [*self._submitted, *self._parked]
        handled = [entry for unit in units for entry in unit.entries()]
        return [*self._in_hand, *handled, *self._acks, *self._refused]

    async def _repair(self) -> None:
        """Read everything again; what is in hand goes on if the store has it as it was."""
        if self._failed_in_a_row > 1:
            await self._pause(self._failed_in_a_row - 1)
        done: asyncio.Future[None] = self._loop.create_future()

        def on_settled(confirmation: Confirmation, error: Exception | None) -> None:
            # At once, before more is committed.
            if error is None and not self._is_closed:
                self._start_again(confirmation)
            tell(done, error)

        self._store.submit(Confirmation(self.queue, self._beyond_shelf(), on_settled))
        await done

    def _start_again(self, confirmation: Confirmation) -> None:
        """Forget everything but what is in hand, or handled, and confirmed by the store."""
        self._flush_acks()
        before, self._shelf = (
            self._shelf,
            Shelf(is_ordered=self._is_ordered, held=confirmation.held),
        )
        self._pages.clear()
        self._asides.clear()
        self._frontier.start_again()
        self._is_aside_due = True
        self._is_broken = False
        parked, self._parked = sorted(self._parked, key=lambda unit: unit.number), []
        refused, self._refused = self._refused, {}
        for unit in self._submitted:
            for entry in unit.results():
                if self._keep(entry, confirmation, is_intact=not entry.is_lost):
                    self._shelf.finish(entry)
        for entry, error in refused.items():
            if self._keep(entry, confirmation, is_intact=not entry.is_void):
                self._fail(Failure(entry, error))
        for unit in parked:
            self._submit_again(unit, confirmation)
        for entry in self._in_hand:
            if not self._keep(entry, confirmation, is_intact=not entry.is_void):
                self._shelf.occupy(entry)
        before.dissolve()

    def _keep(self, entry: Entry, confirmation: Confirmation, *, is_intact: bool) -> bool:
        """Have a message on the new shelf; False if it is handled again, or is not there."""
        if not is_intact or not confirmation.confirms(entry):
            entry.is_void = entry.is_gone = True
            return False
        if entry.page is not None:
            self._pages[entry.page.id] = entry.page
        elif entry.aside is not None:
            self._asides[entry.aside.id] = entry.aside
        self._shelf.claim(entry)
        return True

    def _submit_again(self, unit: Handling, confirmation: Confirmation) -> None:
        self.uncommitted -= len(unit.entries())
        kept = [
            entry
            for entry in unit.results()
            if self._keep(entry, confirmation, is_intact=not entry.is_void)
        ]
        if not kept:
            if unit.waiter is not None:
                tell(
                    unit.waiter,
                    TransactionAbortedError("its queue was changed; the message is not done"),
                )
        elif unit.failure is not None:
            self._fail(unit.failure)
        else:
            for entry in kept:
                self._shelf.finish(entry)
            unit.finished, unit.error = kept, None
            self._submit(unit)

    # Life and looks.

    async def close(self) -> None:
        """Take nothing more; what was handled is committed by the store."""
        self._flush_acks()
        self._is_closed = True
        self.changed.set()
        await self._stop_reading()
        parked, self._parked = self._parked, []
        for unit in parked:
            self.uncommitted -= len(unit.entries())
            if unit.waiter is not None:
                tell(
                    unit.waiter,
                    TransactionAbortedError("the queue is closed; the message comes again"),
                )
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


def _void_behind(entry: Entry) -> None:
    """Have all handled again that were handled after a message, and because of it."""
    if entry.lane is not None:
        chain = entry.lane.chain
        for other in chain[chain.index(entry) + 1 :] if entry in chain else ():
            other.is_void = True
