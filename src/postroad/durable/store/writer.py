"""Group commit: all mutations that are queued when the disk is ready share one commit.

The statements of a commit run in the one thread of the store, so the event loop never waits for
the disk, and no two statements overlap.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque

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
from postroad.durable.store.backends.backend import DatabaseBackend, close_quietly
from postroad.durable.store.tables.store_tables import CommitEvent, DisplacedError, StoreTables

from .commit_listeners import CommitListeners, PrecommitNotifier
from .mutations import Mutation, Mutations, complete_all
from .savepoints import SavepointTransaction
from .worker_threads import ThreadRunner

logger = logging.getLogger("postroad.durable")

BEFORE_COMMIT = faults.declare_fault_point("durable.commit.before")
AFTER_COMMIT = faults.declare_fault_point("durable.commit.after")
AFTER_REPORT = faults.declare_fault_point("durable.commit.reported")

# Mutations that are not urgent are committed after this delay, all at once.
_LAZY_S = 0.05
# A commit group is committed after so many transactions or so much time.
_TRANSACTIONS_MAX = 256
_GROUP_S = 0.02
# Iterations of the event loop from the end of a transaction to the start of the next handler: two.
_YIELDS = 4
_RECONNECT_INITIAL_S = 0.05
_RECONNECT_MAX_S = 2.0


class GroupCommitWriter:
    """Commits mutations in the order of their submission."""

    def __init__(
        self,
        backend: DatabaseBackend,
        thread: ThreadRunner,
        tables: StoreTables,
        listeners: CommitListeners,
        config: DurableQueuesConfig,
    ) -> None:
        self._backend = backend
        self._thread = thread
        self._tables = tables
        self._listeners = listeners
        self._bytes_max = config.write_queue_bytes_max
        self._lock_s = config.lock_timeout_s
        self._transaction_s = config.transaction_timeout_s
        self._loop = asyncio.get_running_loop()
        self.create_future = self._loop.create_future
        # Whether mutations may be submitted.
        self.has_capacity = True
        self._queue: list[Mutation] = []
        # Mutations that are not urgent, and whether their delay is over.
        self._lazy: list[Mutation] = []
        self._is_lazy_due = False
        self._queued_bytes = 0
        self._transactions: deque[SavepointTransaction] = deque()
        self._wakeup = asyncio.Event()
        self._capacity_freed = asyncio.Event()
        self._capacity_freed.set()
        self._lazy_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        # Whether only the database knows the outcome of the commit.
        self._is_committing = False
        self.precommit = PrecommitNotifier(listeners, self._loop)
        tables.queues.on_precommit = self.precommit.notify_threadsafe
        self.commits = 0
        # Resolved with the reason when nothing can be committed any more.
        self.ended: asyncio.Future[StoreError] = self._loop.create_future()
        # The same, for fast access.
        self._has_ended = False
        # Held while a transaction is open: other users of the connection wait for it.
        self.commit_lock = asyncio.Lock()
        self._task = self._loop.create_task(self._run(), name="postroad store writer")

    # Submitting.

    def submit(self, mutation: Mutation, *, lazy: bool = False) -> None:
        """Commit a mutation after all that were submitted before.

        Lazy mutations, which are not urgent, are committed after a delay, in their own order.
        """
        if self._has_ended:
            # The submitter expects a call of `on_complete`, not an exception.
            self._loop.call_soon(complete_all, (mutation,), self.ended.result())
            return
        if self._is_closing:
            raise NotRunningError("the store is closed")
        if lazy:
            self._lazy.append(mutation)
            if self._lazy_timer is None:
                self._lazy_timer = self._loop.call_later(_LAZY_S, self._on_lazy_due)
            return
        batch = mutation.prepare(self._tables) if self._is_idle else None
        self._queue.append(mutation)
        self.add_queued_bytes(mutation.size)
        if batch is None:
            self._wakeup.set()
        else:
            # The commit starts after mutations that follow at once were submitted too.
            self.precommit.notify(batch)
            self._loop.call_soon(self._wakeup.set)

    @property
    def _is_idle(self) -> bool:
        """Whether no commit precedes a mutation submitted now, nor uses the tables until then."""
        is_free = not self._queue and not self._transactions and not self.commit_lock.locked()
        return is_free and self.precommit.is_enabled

    def check(self) -> None:
        """Raise the reason if the store has ended for good."""
        if self.ended.done():
            raise self.ended.result()

    def _on_lazy_due(self) -> None:
        self._lazy_timer = None
        self._is_lazy_due = True
        self._wakeup.set()

    @property
    def last_queued(self) -> Mutation | None:
        """The mutation that was submitted last, while it can still be extended."""
        return self._queue[-1] if self._queue else None

    def add_queued_bytes(self, size: int) -> None:
        """Count more bytes of the last mutation."""
        self._queued_bytes += size
        if self._queued_bytes > self._bytes_max:
            self.has_capacity = False
            self._capacity_freed.clear()

    async def wait_for_capacity(self) -> None:
        """Wait until the disk has caught up."""
        await self._capacity_freed.wait()

    async def begin_transaction(self) -> SavepointTransaction:
        """Start a transaction, and wait for its turn."""
        self.check()
        if self._is_closing:
            raise NotRunningError("the store is closed")
        transaction = SavepointTransaction(
            self._thread, self._tables, self._lock_s, self._transaction_s
        )
        self._transactions.append(transaction)
        self._wakeup.set()
        try:
            await transaction.started
        except asyncio.CancelledError:
            transaction.finish(None)
            raise
        return transaction

    async def close(self) -> None:
        """Commit what was submitted, and stop."""
        self._is_closing = True
        self._wakeup.set()
        await asyncio.shield(self._task)

    # Commit groups.

    async def _run(self) -> None:
        idle_s = self._backend.idle_check_s
        while True:
            if not idle_s or self._wakeup.is_set():
                await self._wakeup.wait()
            elif not await self._wait_for_work(idle_s):
                await self._check_idle_database()
                if self._has_ended:
                    return
                continue
            self._wakeup.clear()
            if self._is_lazy_due or self._is_closing:
                self._queue_lazy()
            if self._queue or self._transactions:
                async with self.commit_lock:
                    await self._commit_group()
                if self._has_ended:
                    return
            elif self._is_closing:
                return
            if self._queue or self._transactions or self._is_closing:
                self._wakeup.set()

    async def _wait_for_work(self, idle_s: float) -> bool:
        """Wait for mutations; False if there were none for so long that the database is checked."""
        try:
            async with asyncio.timeout(idle_s):
                await self._wakeup.wait()
        except TimeoutError:
            return False
        return True

    async def _check_idle_database(self) -> None:
        """Check that the database is as this process left it, while idle."""
        async with self.commit_lock:
            try:
                await self._thread.run(self._tables.is_last_commit_durable)
            except DisplacedError as displaced:
                await self._end(displaced.failure)
            except StoreError as error:
                logger.warning("the database of the idle store is unavailable: %s", error)
                await self._roll_back_or_reconnect()

    def _queue_lazy(self) -> None:
        self._is_lazy_due = False
        if self._lazy_timer is not None:
            self._lazy_timer.cancel()
            self._lazy_timer = None
        lazy, self._lazy = self._lazy, []
        self._queue += lazy

    async def _commit_group(self) -> None:
        mutations = self._take_queued()
        try:
            if self._transactions or self._backend.simulated_sync_s:
                event = await self._commit_in_steps(mutations)
            else:
                event = await self._commit_in_one_step(mutations)
        except DisplacedError as displaced:
            self.precommit.abort()
            await self._end(displaced.failure)
            complete_all(mutations, displaced.failure)
        except StoreError as error:
            self.precommit.abort()
            await self._resolve_uncertain_commit(mutations, error)
        except TransactionAbortedError as error:
            # Mutations without statements are repeated; transactions must be started again.
            logger.warning("transactions that share a commit are repeated: %s", error)
            self.precommit.abort()
            await self._commit_individually(mutations, error)
        except Exception as error:
            logger.exception("a commit failed because of an unexpected error")
            self.precommit.abort()
            await self._commit_individually(mutations, error)
        else:
            self.precommit.on_committed()
            self._report(mutations, event)

    def _take_queued(self) -> list[Mutation]:
        mutations, self._queue = self._queue, []
        self._queued_bytes = 0
        self.has_capacity = True
        self._capacity_freed.set()
        return mutations

    async def _commit_in_one_step(self, mutations: list[Mutation]) -> CommitEvent:
        event = await self._thread.run(self._commit_unless_handlers_awaited, mutations)
        if event is None:
            # Precommit listeners have handled arriving batches before this continues.
            acks = self._take_queued()
            mutations += acks
            event = await self._thread.run(self._commit_rest, mutations, acks)
        return event

    def _commit_unless_handlers_awaited(self, mutations: Mutations) -> CommitEvent | None:
        self._begin_with(mutations)
        if self.precommit.awaits_handlers:
            return None
        return self._commit_rest(mutations, ())

    def _commit_rest(self, mutations: Mutations, more: Mutations) -> CommitEvent:
        self._apply(more)
        self._flush(mutations)
        return self._finish(mutations)

    def _begin_with(self, mutations: Mutations) -> None:
        self._is_committing = False
        self.precommit.begin_group()
        self._tables.begin(time.time_ns() // 1_000_000)
        self._apply(mutations)

    def _commit(self, mutations: Mutations) -> CommitEvent:
        self._begin_with(mutations)
        return self._commit_rest(mutations, ())

    async def _commit_in_steps(self, mutations: list[Mutation]) -> CommitEvent:
        """Commit in steps, with user transactions or a slow disk in between."""
        await self._thread.run(self._begin_with, mutations)
        last, more = await self._run_transactions(mutations)
        if not self._backend.simulated_sync_s:
            return await self._thread.run(self._apply_and_commit, last, more, mutations)
        await self._thread.run(self._apply_transaction, last, more)
        await self._thread.run(self._flush, mutations)
        await asyncio.sleep(self._backend.simulated_sync_s)
        return await self._thread.run(self._finish, mutations)

    async def _run_transactions(
        self, mutations: list[Mutation]
    ) -> tuple[SavepointTransaction | None, list[Mutation]]:
        """Run user transactions; return the one to be finished and the fate of the commit."""
        until = self._loop.time() + _GROUP_S
        ended: SavepointTransaction | None = None
        for _ in range(_TRANSACTIONS_MAX):
            # Mutations submitted before a transaction precede it.
            while (more := self._take_queued()) or ended is not None:
                mutations += more
                if not self._transactions or self._loop.time() >= until:
                    return ended, more
                await self._thread.run(self._apply_transaction, ended, more)
                ended = None
            if not self._transactions or self._loop.time() >= until:
                break
            transaction = self._transactions.popleft()
            try:
                if await transaction.run():
                    ended = transaction
                    await self._yield_to_next_transaction()
            finally:
                if transaction.mutation is not None:
                    mutations.append(transaction.mutation)
        return ended, []

    async def _yield_to_next_transaction(self) -> None:
        """Let mutations that waited for the end of a transaction share its commit."""
        for _ in range(_YIELDS):
            if self._transactions:
                return
            await asyncio.sleep(0)

    def _apply_transaction(self, transaction: SavepointTransaction | None, more: Mutations) -> None:
        if transaction is not None:
            transaction.apply_and_release()
        self._apply(more)

    def _apply_and_commit(
        self,
        transaction: SavepointTransaction | None,
        more: Mutations,
        mutations: Mutations,
    ) -> CommitEvent:
        self._apply_transaction(transaction, more)
        return self._commit_rest(mutations, ())

    def _apply(self, mutations: Mutations) -> None:
        for mutation in mutations:
            try:
                mutation.apply(self._tables)
            except StoreError:
                raise
            except PostroadError as error:
                # It raised before it changed anything.
                mutation.error = error

    def _flush(self, mutations: Mutations) -> None:
        self._tables.flush()
        self._tables.database.prepare()
        BEFORE_COMMIT.hit(units=mutations)

    def _finish(self, mutations: Mutations) -> CommitEvent:
        self._is_committing = True
        self._tables.database.commit()
        AFTER_COMMIT.hit(units=mutations)
        event = self._tables.on_committed()
        self._backend.record_commits(self._tables.role, self._tables.commits)
        return event

    def _report(self, mutations: Mutations, event: CommitEvent) -> None:
        self.commits += 1
        # The event comes first: its listeners may read the committed messages at once.
        if not event.is_empty:
            self._listeners.publish_commit(event)
        complete_all(mutations, None)
        AFTER_REPORT.hit(units=mutations)

    # After failures.

    async def _commit_individually(self, mutations: Mutations, error: Exception) -> None:
        """Commit the mutations of a failed group one by one, so that one cannot fail the others."""
        event = await self._roll_back_or_reconnect()
        if event is not None:
            self._report(mutations, event)
            return
        for mutation in mutations:
            if self.ended.done():
                complete_all([mutation], self.ended.result())
                continue
            # Only it can have failed, unless a user transaction rolled back the others.
            is_guilty = len(mutations) == 1 and not isinstance(error, TransactionAbortedError)
            if mutation.error is not None or mutation.has_user_statements or is_guilty:
                complete_all([mutation], error)
                continue
            try:
                event = await self._thread.run(self._commit, [mutation])
            except DisplacedError as displaced:
                await self._end(displaced.failure)
                complete_all([mutation], displaced.failure)
            except StoreError as failure:
                await self._resolve_uncertain_commit([mutation], failure)
            except Exception as failure:
                late_event = await self._roll_back_or_reconnect()
                if late_event is None:
                    complete_all([mutation], self.ended.result() if self.ended.done() else failure)
                else:
                    self._report([mutation], late_event)
            else:
                self._report([mutation], event)

    async def _resolve_uncertain_commit(self, mutations: Mutations, error: StoreError) -> None:
        """Find out whether a failed commit was durable after all, and report its result."""
        if not self._is_committing:
            # It cannot have been durable, so no caller has to wait for the database. Listeners
            # read again, so memory must be reset by then.
            await self._thread.run(self._tables.on_rolled_back)
            self._fail(mutations, error)
            await self._roll_back_or_reconnect()
            return
        event = await self._roll_back_or_reconnect()
        if event is not None:
            self._report(mutations, event)
        elif self.ended.done():
            complete_all(mutations, self.ended.result())
        else:
            if self._is_closing:
                error = StoreUnavailableError(f"closed before the outcome was known: {error}")
            self._fail(mutations, error)

    def _fail(self, mutations: Mutations, error: StoreError) -> None:
        logger.warning("the commit failed: %s", error)
        complete_all(mutations, error)
        self._fail_transactions(error)

    def _fail_transactions(self, error: StoreError) -> None:
        while self._transactions:
            self._transactions.popleft().fail(error)

    async def _roll_back_or_reconnect(self) -> CommitEvent | None:
        """Prepare the next commit group; return the event of the last one if it was committed."""
        try:
            try:
                return await self._thread.run(self._tables.roll_back)
            except StoreError as failure:
                return await self._reconnect(failure)
        except DisplacedError as displaced:
            await self._end(displaced.failure)
            return None

    async def _reconnect(self, error: StoreError) -> CommitEvent | None:
        """Reconnect, for as long as it takes; new transactions are rejected meanwhile."""
        attempt = 0
        while True:
            attempt += 1
            self._fail_all(error)
            if self._is_closing:
                self._tables.on_rolled_back()
                return None
            pause_s = backoff(
                attempt,
                initial_delay_s=_RECONNECT_INITIAL_S,
                max_delay_s=_RECONNECT_MAX_S,
                jitter=random.random(),
            )
            await asyncio.sleep(pause_s)
            try:
                event = await self._thread.run(self._tables.reconnect, self._backend)
            except StoreError as failure:
                error = failure
            else:
                self._listeners.publish_reconnect()
                return event

    def _fail_all(self, error: StoreError) -> None:
        self.precommit.abort_pending()
        complete_all(self._take_queued(), error)
        self._fail_transactions(error)

    async def _end(self, failure: StoreError) -> None:
        """Commit nothing more and release the store, which may belong to another process by now."""
        logger.critical("this process cannot commit any more: %s", failure)
        await self._thread.run(self._release_store)
        self._queue_lazy()
        self.ended.set_result(failure)
        self._has_ended = True
        self._fail_all(failure)

    def _release_store(self) -> None:
        close_quietly(self._tables.database)
        self._backend.unlock()
        self._tables.on_rolled_back()
