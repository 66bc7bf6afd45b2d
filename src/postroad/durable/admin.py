"""What operators can do with the durable queues of a node, whether it runs or not."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, UsageError
from postroad.durable.bridges.bridge_controller import BridgeController
from postroad.durable.bridges.bridge_manager import BridgeManager
from postroad.durable.bridges.control import BridgeManagerStatus
from postroad.durable.consumers.dispatcher import QueueDispatcher
from postroad.durable.consumers.dispatchers import Dispatchers
from postroad.durable.dead_letters import DeadLetters
from postroad.durable.names import validate_queue_name
from postroad.durable.store import Store
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables import queries as query
from postroad.durable.store.tables.moves import move_messages
from postroad.durable.store.tables.rows import PendingMessage
from postroad.durable.stored_messages import StoredMessage
from postroad.durable.telemetry import (
    DurableQueuesStatistics,
    PeerStatistics,
    QueueStatistics,
    RateTotals,
)

_SEARCHED_MAX = 100_000
# Messages that are moved in one commit.
_MOVE_BATCH = 1_000
_STATUS_TIMEOUT_S = 5.0


class Bridges:
    """The bridges of a node to its peers, and the outbox that they deliver.

    Attributes:
        manager: runs them, if they run in this process.
        controller: the node's side of their control protocol, if the node runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.manager: BridgeManager | None = None
        self.controller: BridgeController | None = None

    async def status(self) -> BridgeManagerStatus:
        """Return the state of each bridge.

        Raises:
            TimeoutError: bridges run in a process of their own, which does not reply.
            UsageError: the node does not run.
        """
        if self.controller is None:
            raise UsageError(
                "bridges have no status: the store is open without its node; start the node"
            )
        return await self.controller.status(_STATUS_TIMEOUT_S)

    async def peek(self, peer: str, *, limit: int = 100) -> list[StoredMessage]:
        """Return the first messages that wait for a peer, without removing them."""
        return await self._store.read(query.peek_outbox, peer, limit)

    async def purge(self, peer: str) -> int:
        """Delete the messages that wait for a peer; return how many.

        What is being sent at this moment may still arrive.
        """
        count = await self._store.write(lambda tables: tables.outbox.purge(peer))
        self._reload(peer)
        return count

    async def start_epoch(self, peer: str) -> int:
        """Start over with a peer after one of the two stores was restored from a backup.

        All waiting messages are sent as if the peer had never received any, so purge first those
        that it may have. Returns how many messages wait.
        """
        count = await self._store.write(lambda tables: tables.outbox.start_epoch(peer))
        self._reload(peer)
        return count

    async def pause(self, peer: str) -> None:
        """Pause delivery to a peer until `resume`, also after a restart; its messages wait.

        What is being sent at this moment may still arrive.
        """
        await self._set_paused(peer, True)

    async def resume(self, peer: str) -> None:
        """Resume delivery to a peer."""
        await self._set_paused(peer, False)

    async def _set_paused(self, peer: str, is_paused: bool) -> None:
        validate_node_name(peer)
        await self._store.write(lambda tables: tables.outbox.pause(peer, is_paused))
        self._reload(peer)

    def _reload(self, peer: str) -> None:
        """Make the bridge reload the settings that an operator has changed in the store."""
        if self.manager is not None:
            self.manager.reload(peer)
        if self.controller is not None:
            self.controller.wake(peer)


class DurableQueuesAdmin:
    """What operators do with the durable queues of a node, running or not.

        admin = DurableQueuesAdmin(store)
        print(await admin.statistics())

    Attributes:
        dead_letters: list, retry and drop them.
        bridges: their state; pause, resume, purge and reset them.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.dead_letters = DeadLetters(store)
        self.bridges = Bridges(store)
        # Filled in by a running node.
        self.dispatchers: Dispatchers | None = None
        self.totals = RateTotals()
        self.blocked_senders: Callable[[], list[str]] = list

    async def peek(self, queue: str, *, limit: int = 100) -> list[StoredMessage]:
        """Return the first messages of a queue, without removing them."""
        return await self.store.read(query.peek_queue, queue, limit)

    async def peek_pending(self, queue: str, *, limit: int = 100) -> list[PendingMessage]:
        """Return the first messages of a queue with their failures and next attempt."""
        return await self.store.read(query.peek_pending, queue, limit)

    async def find_pending(self, queue: str, id: int) -> list[PendingMessage]:
        """Return the messages with this id among the first hundred thousand of a queue.

        Messages of several senders may have the same id.
        """

        def find(database: StoreConnection) -> list[PendingMessage]:
            pending = query.peek_pending(database, queue, _SEARCHED_MAX)
            return [message for message in pending if message.message.id == id]

        return await self.store.read(find)

    async def find_messages(self, queue: str, id: int) -> list[StoredMessage]:
        """Return the same messages without their failures."""
        return [message.message for message in await self.find_pending(queue, id)]

    async def purge(self, queue: str) -> int:
        """Delete all messages of a queue; return how many."""
        validate_queue_name(queue)
        count = await self.store.write(lambda tables: tables.queues.purge(queue))
        self._reload(queue)
        return count

    async def move(self, queue: str, to: str, *, limit: int | None = None) -> int:
        """Move the messages of a queue to another queue of this node; return how many.

        They keep their order and content; their failures are reset.

        Raises:
            UsageError: some of them may be handled meanwhile; `pause` the queue first.
        """
        validate_queue_name(queue)
        if validate_queue_name(to) == queue:
            raise ConfigError(f"cannot move queue {queue!r} into itself")
        # Messages that arrive meanwhile stay.
        depth = await self.store.read(_depth, queue) if limit is None else limit
        count = 0
        while depth > count:
            self._check_paused(queue)
            batch = min(depth - count, _MOVE_BATCH)
            moved = await self.store.write(partial(move_messages, queue=queue, to=to, limit=batch))
            self._reload(queue)
            if moved == 0:
                break
            count += moved
        return count

    def _check_paused(self, queue: str) -> None:
        """Raise UsageError if a consumer may be handling messages of a queue."""
        dispatcher = self._dispatcher(queue)
        if dispatcher is None:
            is_busy = queue in self.store.claims
        else:
            is_busy = not dispatcher.is_paused or bool(
                dispatcher.in_flight or dispatcher.uncommitted
            )
        if is_busy:
            raise UsageError(
                f"queue {queue!r} is being consumed: pause it, and wait until none is in flight"
            )

    async def pause(self, queue: str) -> None:
        """Dispatch no messages of a queue until `resume`, also after a restart."""
        await self._set_paused(queue, True)

    async def resume(self, queue: str) -> None:
        """Dispatch the messages of a queue again."""
        await self._set_paused(queue, False)

    async def _set_paused(self, queue: str, is_paused: bool) -> None:
        validate_queue_name(queue)
        await self.store.write(lambda tables: tables.queues.pause(queue, is_paused))
        if (dispatcher := self._dispatcher(queue)) is not None:
            dispatcher.is_paused = is_paused
            dispatcher.changed.set()

    def _reload(self, queue: str) -> None:
        if (dispatcher := self._dispatcher(queue)) is not None:
            dispatcher.reload()

    def _dispatcher(self, queue: str) -> QueueDispatcher | None:
        return None if self.dispatchers is None else self.dispatchers.find(queue)

    async def statistics(self) -> DurableQueuesStatistics:
        """Return how many messages wait where and since when, and the rates."""
        now_ms = time.time_ns() // 1_000_000
        queues, peers, dead = await self.store.read(_count_all, now_ms)
        manager = self.bridges.manager
        bridges = {} if manager is None else {bridge.peer: bridge for bridge in manager.status()}
        now = time.monotonic()
        return DurableQueuesStatistics(
            queues={
                name: self._queue_statistics(name, depth, oldest_ms, now_ms, is_paused)
                for name, depth, oldest_ms, is_paused in queues
            },
            peers={
                peer.name: PeerStatistics(
                    depth=depth,
                    oldest_age_s=_age_s(oldest_ms, now_ms),
                    sent=peer.last_seq,
                    epoch=peer.epoch,
                    is_paused=peer.is_paused,
                    bridge=bridges.get(peer.name),
                )
                for peer, depth, oldest_ms in peers
            },
            dead_letters=dead,
            blocked_senders=self.blocked_senders(),
            commits=self.store.writer.commits,
            unclaimed_replies=self.totals.unclaimed_replies,
            sent=self.totals.sent.total,
            sent_per_s=self.totals.sent.per_s(now),
            handled_per_s=self.totals.handled.per_s(now),
            failed_per_s=self.totals.failed.per_s(now),
        )

    def _queue_statistics(
        self, name: str, depth: int, oldest_ms: int | None, now_ms: int, is_paused: bool
    ) -> QueueStatistics:
        dispatcher = self._dispatcher(name)
        return QueueStatistics(
            depth=depth,
            in_flight=0 if dispatcher is None else dispatcher.in_flight,
            oldest_age_s=_age_s(oldest_ms, now_ms),
            is_paused=is_paused,
            has_consumer=name in self.store.claims,
            handled=0 if dispatcher is None else dispatcher.handled,
            failed=0 if dispatcher is None else dispatcher.failed,
        )


def _age_s(since_ms: int | None, now_ms: int) -> float | None:
    return None if since_ms is None else max((now_ms - since_ms) / 1000, 0.0)


def _count_all(database: StoreConnection, now_ms: int) -> tuple[list, list, int]:  # type: ignore[type-arg]
    queues = [
        (
            name,
            query.count_pending(database, id),
            query.oldest_inbox_ms(database, id, now_ms),
            is_paused,
        )
        for name, (id, is_paused) in query.list_queues(database).items()
    ]
    peers = [
        (peer, query.count_outbox(database, peer.id), query.oldest_outbox_ms(database, peer.id))
        for peer in query.list_peers(database)
    ]
    return queues, peers, query.count_dead_letters(database)


def _depth(database: StoreConnection, queue: str) -> int:
    id, _ = query.list_queues(database).get(queue, (0, False))
    return query.count_pending(database, id)
