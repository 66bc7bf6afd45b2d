"""One writer with group commit: whatever waits when the disk is ready goes in one commit.

A round is one commit. Its statements run in the one thread of the store, so the event loop never
waits for the disk, and no two statements overlap.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Sequence

from postroad.core import fault_points as faults
from postroad.core.errors import (
    NotRunningError,
    PostroadError,
    StoreError,
    StoreUnavailableError,
    TransactionAbortedError,
)
from postroad.core.timing import backoff
from postroad.durable.config import DurableQueuesConfig

from .audience import Audience
from .database import Backend, close_quietly
from .early_pages import EarlyPages
from .ledger import Displaced, Ledger, News
from .threads import Thread
from .turn import Turn
from .units import Unit, settle

logger = logging.getLogger("postroad.durable")

BEFORE_COMMIT = faults.declare_fault_point("durable.commit.before")
AFTER_COMMIT = faults.declare_fault_point("durable.commit.after")
AFTER_REPORT = faults.declare_fault_point("durable.commit.reported")

# Work that nobody waits for is written this much later, all of it at once.
_LAZY_S = 0.05
# A round is committed after so many transactions or so much time, however many more there are.
_TURNS_MAX = 256
_ROUND_S = 0.02
# Iterations of the event loop from the end of a transaction to the start of the next handler: two.
_YIELDS = 4
_RECONNECT_FIRST_S = 0.05
_RECONNECT_MAX_S = 2.0


class Writer:
    """Commits units in the order they were submitted."""

    def __init__(
        self,
        backend: Backend,
        thread: Thread,
        ledger: Ledger,
        audience: Audience,
        config: DurableQueuesConfig,
    ) -> None:
        self._backend = backend
        self._thread = thread
        self._ledger = ledger
        self._audience = audience
        self._bytes_max = config.write_queue_bytes_max
        self._lock_s = config.lock_timeout_s
        self._transaction_s = config.transaction_timeout_s
        self._loop = asyncio.get_running_loop()
        self.create_future = self._loop.create_future
        # Whether more may be submitted.
        self.has_room = True
        self._waiting: list[Unit] = []
        # Units that nobody waits for, and whether it is time for them.
        self._lazy: list[Unit] = []
        self._is_lazy_time = False
        self._waiting_bytes = 0
        self._turns: deque[Turn] = deque()
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        # Whether the round has come so far that only the database knows how it ends.
        self._is_committing = False
        self.early = EarlyPages(audience, self._loop)
        ledger.queues.on_arriving = self.early.announce
        self.commits = 0
        # Resolved when nothing can be committed any more, with the reason.
        self.ended: asyncio.Future[StoreError] = self._loop.create_future()
        # The same, for those who ask often.
        self._is_over = False
        # Held while a transaction is open: whoever shares the connection waits for it.
        self.round = asyncio.Lock()
        self._task = self._loop.create_task(self._run(), name="postroad store writer")

    # Submitting.

    def submit(self, unit: Unit, *, lazy: bool = False) -> None:
        """Have a unit committed after all that were submitted before.

        Lazy ones, which nobody waits for, are committed a moment later, in order among themselves.
        """
        if self._is_over:
            # Whoever submits expects to be told, not to be raised at.
            self._loop.call_soon(settle, (unit,), self.ended.result())
            return
        if self._is_closing:
            raise NotRunningError("the store is closed")
        if lazy:
            self._lazy.append(unit)
            if self._lazy_timer is None:
                self._lazy_timer = self._loop.call_later(_LAZY_S, self._on_lazy_time)
            return
        page = unit.prepare(self._ledger) if self._is_idle else None
        self._waiting.append(unit)
        self.grow(unit.size)
        if page is None:
            self._work.set()
        else:
            # The commit begins when what follows from it at once was submitted too.
            self.early.announce_at_once(page)
            self._loop.call_soon(self._work.set)

    @property
    def _is_idle(self) -> bool:
        """Whether nothing comes before what is submitted now, nor uses the ledger until then."""
        is_free = not self._waiting and not self._turns and not self.round.locked()
        return is_free and self.early.is_trusted

    def check(self) -> None:
        """Raise the reason if the store has ended for good."""
        if self.ended.done():
            raise self.ended.result()

    def _on_lazy_time(self) -> None:
        self._lazy_timer = None
        self._is_lazy_time = True
        self._work.set()

    @property
    def newest(self) -> Unit | None:
        """What was submitted last and is not being committed yet: it may still take up more."""
        return self._waiting[-1] if self._waiting else None

    def grow(self, size: int) -> None:
        """Note that the newest unit takes more memory now."""
        self._waiting_bytes += size
        if self._waiting_bytes > self._bytes_max:
            self.has_room = False
            self._room.clear()

    async def wait_for_room(self) -> None:
        """Wait until the disk has caught up."""
        await self._room.wait()

    async def begin(self) -> Turn:
        """Wait for a transaction of one's own."""
        self.check()
        if self._is_closing:
            raise NotRunningError("the store is closed")
        turn = Turn(self._thread, self._ledger, self._lock_s, self._transaction_s)
        self._turns.append(turn)
        self._work.set()
        try:
            await turn.granted
        except asyncio.CancelledError:
            turn.end(None)
            raise
        return turn

    async def close(self) -> None:
        """Commit what was submitted, and stop."""
        self._is_closing = True
        self._work.set()
        await asyncio.shield(self._task)

    # Rounds.

    async def _run(self) -> None:
        idle_s = self._backend.look_after_s
        while True:
            if not idle_s or self._work.is_set():
                await self._work.wait()
            elif not await self._has_work(idle_s):
                await self._look()
                if self._is_over:
                    return
                continue
            self._work.clear()
            if self._is_lazy_time or self._is_closing:
                self._wake_lazy()
            if self._waiting or self._turns:
                async with self.round:
                    await self._round()
                if self._is_over:
                    return
            elif self._is_closing:
                return
            if self._waiting or self._turns or self._is_closing:
                self._work.set()

    async def _has_work(self, idle_s: float) -> bool:
        """Wait for work; False if there has been none for so long that the database is asked."""
        try:
            async with asyncio.timeout(idle_s):
                await self._work.wait()
        except TimeoutError:
            return False
        return True

    async def _look(self) -> None:
        """Find out whether the database is still as this process left it, though it is idle."""
        async with self.round:
            try:
                await self._thread.run(self._ledger.has_happened)
            except Displaced as displaced:
                await self._end(displaced.failure)
            except StoreError as error:
                logger.warning("an idle store looks for its database: %s", error)
                await self._roll_back_or_reconnect()

    def _wake_lazy(self) -> None:
        self._is_lazy_time = False
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        lazy, self._lazy = self._lazy, []
        self._waiting += lazy

    async def _round(self) -> None:
        units = self._take()
        try:
            if self._turns or self._backend.sync_s:
                news = await self._commit_slowly(units)
            else:
                news = await self._commit_quickly(units)
        except Displaced as displaced:
            self.early.withdraw()
            await self._end(displaced.failure)
            settle(units, displaced.failure)
        except StoreError as error:
            self.early.withdraw()
            await self._clear_up(units, error)
        except TransactionAbortedError as error:
            # Of a turn: what has no statements is done again, the others are told to begin again.
            logger.warning("transactions that share a commit begin again: %s", error)
            self.early.withdraw()
            await self._isolate(units, error)
        except Exception as error:
            logger.exception("a commit failed, but not for a reason of the database")
            self.early.withdraw()
            await self._isolate(units, error)
        else:
            self.early.confirm()
            self._report(units, news)

    def _take(self) -> list[Unit]:
        units, self._waiting = self._waiting, []
        self._waiting_bytes = 0
        self.has_room = True
        self._room.set()
        return units

    async def _commit_quickly(self, units: list[Unit]) -> News:
        news = await self._thread.run(self._commit_unless_awaited, units)
        if news is None:
            # Whoever was told of what arrives has handled it before this goes on.
            answers = self._take()
            units += answers
            news = await self._thread.run(self._commit_rest, units, answers)
        return news

    def _commit_unless_awaited(self, units: Sequence[Unit]) -> News | None:
        self._begin_with(units)
        if self.early.is_awaited:
            return None
        return self._commit_rest(units, ())

    def _commit_rest(self, units: Sequence[Unit], more: Sequence[Unit]) -> News:
        self._apply(more)
        self._seal(units)
        return self._finish(units)

    def _begin_with(self, units: Sequence[Unit]) -> None:
        self._is_committing = False
        self.early.begin_round()
        self._ledger.begin(time.time_ns() // 1_000_000)
        self._apply(units)

    def _commit(self, units: Sequence[Unit]) -> News:
        self._begin_with(units)
        return self._commit_rest(units, ())

    async def _commit_slowly(self, units: list[Unit]) -> News:
        """The same in steps, where transactions of users or a slow disk come between."""
        await self._thread.run(self._begin_with, units)
        last, more = await self._give_turns(units)
        if not self._backend.sync_s:
            return await self._thread.run(self._close_and_commit, last, more, units)
        await self._thread.run(self._close, last, more)
        await self._thread.run(self._seal, units)
        await asyncio.sleep(self._backend.sync_s)
        return await self._thread.run(self._finish, units)

    async def _give_turns(self, units: list[Unit]) -> tuple[Turn | None, list[Unit]]:
        """Let users work; the turn that is to be closed and what is to be done with the commit."""
        until = self._loop.time() + _ROUND_S
        ended: Turn | None = None
        for _ in range(_TURNS_MAX):
            # Whatever was submitted before a turn comes before it.
            while (more := self._take()) or ended is not None:
                units += more
                if not self._turns or self._loop.time() >= until:
                    return ended, more
                await self._thread.run(self._close, ended, more)
                ended = None
            if not self._turns or self._loop.time() >= until:
                break
            turn = self._turns.popleft()
            try:
                if await turn.run():
                    ended = turn
                    await self._let_next_begin()
            finally:
                if turn.unit is not None:
                    units.append(turn.unit)
        return ended, []

    async def _let_next_begin(self) -> None:
        """Have who waited for the end of a turn, as the next message of a key, share the commit."""
        for _ in range(_YIELDS):
            if self._turns:
                return
            await asyncio.sleep(0)

    def _close(self, turn: Turn | None, more: Sequence[Unit]) -> None:
        if turn is not None:
            turn.close()
        self._apply(more)

    def _close_and_commit(
        self, turn: Turn | None, more: Sequence[Unit], units: Sequence[Unit]
    ) -> News:
        self._close(turn, more)
        return self._commit_rest(units, ())

    def _apply(self, units: Sequence[Unit]) -> None:
        for unit in units:
            try:
                unit.apply(self._ledger)
            except StoreError:
                raise
            except PostroadError as error:
                # It refused before it changed anything.
                unit.error = error

    def _seal(self, units: Sequence[Unit]) -> None:
        self._ledger.seal()
        self._ledger.database.prepare()
        BEFORE_COMMIT.hit(units=units)

    def _finish(self, units: Sequence[Unit]) -> News:
        self._is_committing = True
        self._ledger.database.commit()
        AFTER_COMMIT.hit(units=units)
        news = self._ledger.keep()
        self._backend.note(self._ledger.role, self._ledger.commits)
        return news

    def _report(self, units: Sequence[Unit], news: News) -> None:
        self.commits += 1
        # News first: whoever hears that its message is kept may look for it at once.
        if not news.is_none:
            self._audience.on_news(news)
        settle(units, None)
        AFTER_REPORT.hit(units=units)

    # When something fails.

    async def _isolate(self, units: Sequence[Unit], error: Exception) -> None:
        """Commit the units of a failed round one by one, so that one harms no other."""
        news = await self._roll_back_or_reconnect()
        if news is not None:
            self._report(units, news)
            return
        for unit in units:
            if self.ended.done():
                settle([unit], self.ended.result())
                continue
            # It is the only one that may have failed, unless a turn has undone what others did.
            is_guilty = len(units) == 1 and not isinstance(error, TransactionAbortedError)
            if unit.error is not None or unit.has_statements or is_guilty:
                settle([unit], error)
                continue
            try:
                news = await self._thread.run(self._commit, [unit])
            except Displaced as displaced:
                await self._end(displaced.failure)
                settle([unit], displaced.failure)
            except StoreError as failure:
                await self._clear_up([unit], failure)
            except Exception as failure:
                news_after_all = await self._roll_back_or_reconnect()
                if news_after_all is None:
                    settle([unit], self._reason(failure))
                else:
                    self._report([unit], news_after_all)
            else:
                self._report([unit], news)

    async def _clear_up(self, units: Sequence[Unit], error: StoreError) -> None:
        """Find out whether a commit that failed has happened all the same, and tell of it."""
        if not self._is_committing:
            # It cannot have: nobody needs to wait for the database to come back. Whoever is told
            # reads again, so what was thought must be forgotten by then.
            await self._thread.run(self._ledger.forget)
            self._refuse(units, error)
            await self._roll_back_or_reconnect()
            return
        news = await self._roll_back_or_reconnect()
        if news is not None:
            self._report(units, news)
        elif self.ended.done():
            settle(units, self.ended.result())
        else:
            if self._is_closing:
                error = StoreUnavailableError(f"closed before the outcome was known: {error}")
            self._refuse(units, error)

    def _reason(self, failure: Exception) -> Exception:
        return self.ended.result() if self.ended.done() else failure

    def _refuse(self, units: Sequence[Unit], error: StoreError) -> None:
        logger.warning("nothing could be committed: %s", error)
        settle(units, error)
        self._refuse_turns(error)

    def _refuse_turns(self, error: StoreError) -> None:
        while self._turns:
            self._turns.popleft().refuse(error)

    async def _roll_back_or_reconnect(self) -> News | None:
        """Make ready for the next round; what the last one brought if it happened after all."""
        try:
            try:
                return await self._thread.run(self._ledger.roll_back)
            except StoreError as failure:
                return await self._reconnect(failure)
        except Displaced as displaced:
            await self._end(displaced.failure)
            return None

    async def _reconnect(self, error: StoreError) -> News | None:
        """Get a new connection, however long it takes; whoever comes meanwhile is refused."""
        attempt = 0
        while True:
            attempt += 1
            self._refuse_all(error)
            if self._is_closing:
                self._ledger.forget()
                return None
            pause_s = backoff(
                attempt,
                initial_delay_s=_RECONNECT_FIRST_S,
                max_delay_s=_RECONNECT_MAX_S,
                jitter=random.random(),
            )
            await asyncio.sleep(pause_s)
            try:
                news = await self._thread.run(self._ledger.connect_again, self._backend)
            except StoreError as failure:
                error = failure
            else:
                self._audience.on_reconnected()
                return news

    def _refuse_all(self, error: StoreError) -> None:
        self.early.withdraw_any()
        settle(self._take(), error)
        self._refuse_turns(error)

    async def _end(self, failure: StoreError) -> None:
        """Commit nothing more, and let go of the store: it may be another process's by now."""
        logger.critical("nothing more is committed by this process: %s", failure)
        await self._thread.run(self._let_go)
        self._wake_lazy()
        self.ended.set_result(failure)
        self._is_over = True
        self._refuse_all(failure)

    def _let_go(self) -> None:
        close_quietly(self._ledger.database)
        self._backend.unlock()
        self._ledger.forget()
