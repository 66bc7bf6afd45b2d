"""Durable queues of a node: every message arrives exactly once, whatever crashes on the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from typing import Unpack

import msgspec

from postroad.cluster import ClusterAgent
from postroad.core import Lifecycle, tracing
from postroad.core.errors import ConfigError, ReplyTimeoutError, StoreError, UsageError
from postroad.core.limits import RetryPolicy
from postroad.durable.admin import DurableQueuesAdmin
from postroad.durable.arrivals import ArrivalReader
from postroad.durable.bridges.bridge_controller import BridgeController
from postroad.durable.bridges.bridge_manager import BridgeManager
from postroad.durable.bridges.peers import ClusterPeerDirectory, PeerDirectory
from postroad.durable.bridges.receiver import StreamReceiver
from postroad.durable.config import DurableQueuesConfig
from postroad.durable.consumers.consumer import Consumer, DurableHandler
from postroad.durable.consumers.dispatchers import Dispatchers
from postroad.durable.consumers.message import Message
from postroad.durable.consumers.pull import PulledMessage
from postroad.durable.consumers.replies import ReplyWaiters
from postroad.durable.names import REPLIES
from postroad.durable.producer import (
    EncodedMessage,
    MessageEncoder,
    OutgoingMessage,
    SendMutation,
    SendOptions,
    submit_send,
)
from postroad.durable.store import Store
from postroad.durable.store.savepoints import (
    CURRENT_TRANSACTION,
    check_not_in_transaction,
    outside_transaction,
)
from postroad.durable.store.store import BRIDGE
from postroad.durable.store.tables.store_tables import CommitEvent
from postroad.durable.telemetry import DurableQueuesStatistics, start_send_span
from postroad.durable.transaction import Transaction
from postroad.net import MessagingService

logger = logging.getLogger("postroad.durable")

_PURGE_KEYS_INTERVAL_S = 600.0
_STOP_GRACE_S = 5.0


class DurableQueues(Lifecycle):
    """Sends durable messages to queues of this and other nodes, and consumes its own queues.

        async with DurableQueues(agent, SqliteStore("alpha.db")) as queues:
            await queues.send("orders", b"one tea", to="beta")

    Each message arrives exactly once, and messages of equal keys are handled in their order.

    Args:
        node: the cluster agent of this node, or its messaging service with a directory of peers.
        store: keeps queues and outbox; opened and closed by this object.
        directory: addresses of peers; by default the members of the agent's cluster.
        config: sizes and times.
        accepted_queues: patterns of the queues that other nodes may create by sending to them.
            Queues that were declared or consumed here are open to all.
        bridge: False if `postroad bridge` runs the bridges of this node in its own process.

    Attributes:
        admin: what operators do with queues: peek, purge, move, pause.
        dispatchers: deliver the messages of queues to consumers, flows and jobs.
        dead_letters: list, retry and drop dead letters.
        bridges: state of the bridges; pause and reset them.
    """

    def __init__(
        self,
        node: ClusterAgent | MessagingService,
        store: Store,
        *,
        directory: PeerDirectory | None = None,
        config: DurableQueuesConfig | None = None,
        accepted_queues: Iterable[str] = ("*",),
        bridge: bool = True,
    ) -> None:
        service = node.service if isinstance(node, ClusterAgent) else node
        if directory is None:
            if not isinstance(node, ClusterAgent):
                raise ConfigError(
                    "durable queues on a messaging service need `directory`: the addresses of peers"
                )
            directory = ClusterPeerDirectory(node)
        self.store = store
        self.service = service
        self.config = config or DurableQueuesConfig()
        self.directory = directory
        self.encoder = MessageEncoder(self.config, service.name)
        self._accepted_queues = tuple(accepted_queues)
        self._receiver = StreamReceiver(service, store, self.config)
        self._controller = BridgeController(service, store, directory, is_external=not bridge)
        self._has_bridge = bridge
        self.admin = DurableQueuesAdmin(store)
        self.admin.blocked_senders = self._receiver.blocked_senders
        self.dead_letters = self.admin.dead_letters
        self.bridges = self.admin.bridges
        self.bridges.controller = self._controller
        self._totals = self.admin.totals
        self.dispatchers = Dispatchers(store, self.config, self._totals)
        self.admin.dispatchers = self.dispatchers
        self._arrivals = ArrivalReader(store, self.config)
        self._consumers: dict[str, Consumer] = {}
        self._replies = ReplyWaiters(self._totals)
        self._reply_consumer_lock = asyncio.Lock()
        self._was_started = self._is_running = False
        # Stops everything, once `stop` was called.
        self._stopping: asyncio.Task[None] | None = None
        # Stops everything but the store, which has ended by itself.
        self._ending: asyncio.Task[None] | None = None
        self._key_purger: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the store, accept messages of peers, and deliver the outbox."""
        if self._was_started:
            raise UsageError(f"{self!r} cannot be started twice: create a new one")
        self._was_started = True
        await self.store.open(self.service.name, self.config)
        try:
            await self._start()
        except BaseException:
            await self.stop(0.0)
            raise

    async def _start(self) -> None:
        self._is_running = True
        self.store.set_queue_policy(self._may_create_queue)
        self.store.commit_listeners.add(self._on_commit)
        self.store.commit_listeners.add_precommit_listener(
            self.dispatchers.on_precommit, self.dispatchers.on_precommit_aborted
        )
        self.store.ended.add_done_callback(self._on_store_ended)
        self.store.commit_listeners.add_reconnect_listener(self.dispatchers.reload)
        await self._receiver.start()
        await self._controller.start()
        if self._has_bridge:
            await self.store.lock(BRIDGE)
            manager = BridgeManager(self.service, self.store, self.config, node=self.service.name)
            self.bridges.manager = manager
            await manager.start()
            self._controller.attach(manager)
        self._arrivals.start()
        self._key_purger = asyncio.get_running_loop().create_task(
            self._purge_idempotency_keys(), name="postroad durable queues: purge idempotency keys"
        )

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Wait for running handlers, commit their work, and close the store.

        Args:
            grace: seconds after which handlers are cancelled.
        """
        if self._is_running:
            self._is_running = False
            loop = asyncio.get_running_loop()
            self._stopping = loop.create_task(
                self._stop(grace), name="postroad durable queues: stop"
            )
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        # A task of its own, so that it completes even if the caller of `stop` is cancelled.
        await (self._ending or self._drain(grace_s))
        await self.store.close()

    async def _drain(self, grace_s: float) -> None:
        """Stop receiving, consuming and delivering."""
        await self._arrivals.stop()
        self._receiver.stop()
        consumers, self._consumers = self._consumers, {}
        await asyncio.gather(*(consumer.stop(grace_s) for consumer in consumers.values()))
        # They are notified of commits until the work of their handlers is committed.
        await self.dispatchers.close()
        if self._key_purger is not None:
            self._key_purger.cancel()
            await asyncio.gather(self._key_purger, return_exceptions=True)
        if self.bridges.manager is not None:
            await self.bridges.manager.stop()
        await self._controller.stop()

    def _on_store_ended(self, ended: asyncio.Future[StoreError]) -> None:
        """Stop consuming and delivering: memory and store may differ from now on."""
        if self._is_running:
            loop = asyncio.get_running_loop()
            self._ending = loop.create_task(
                self._drain(0.0), name="postroad durable queues: store ended"
            )

    def _check_running(self) -> None:
        if not self._is_running:
            raise UsageError(f"{self!r} is not running: start() it first")
        self.store.writer.check()

    def _may_create_queue(self, sender: str, queue: str) -> bool:
        if queue.startswith("_"):
            return False
        return any(fnmatchcase(queue, pattern) for pattern in self._accepted_queues)

    def _on_commit(self, event: CommitEvent) -> None:
        self._receiver.on_commit(event)
        if event.outbox_batches:
            count = sum(batch.last - batch.first + 1 for _, batch in event.outbox_batches)
            self._totals.sent.add(count, time.monotonic())
        self.dispatchers.on_commit(event)

    async def _purge_idempotency_keys(self) -> None:
        ttl_ms = round(self.config.idempotency_ttl_s * 1000)
        while True:
            try:
                await self.store.write(
                    lambda tables: tables.outbox.purge_sent(tables.now_ms - ttl_ms)
                )
            except Exception as error:
                # The next purge will catch up.
                logger.warning("expired idempotency keys cannot be purged: %s", error)
            await asyncio.sleep(_PURGE_KEYS_INTERVAL_S)

    # Sending.

    async def send(
        self,
        queue: str,
        body: bytes,
        *,
        to: str | None = None,
        reply_to: str | None = None,
        tx: Transaction | None = None,
        **options: Unpack[SendOptions],
    ) -> int:
        """Send a message and return its id as soon as it is stored durably.

        Args:
            queue: the queue at the receiving node.
            body: what its handler gets.
            to: the receiving node; by default this one.
            reply_to: queue of this node that accepts a reply.
            tx: send only if this transaction commits, and with it.
            options: see `SendOptions`.

        Raises:
            SendRejectedError: the outbox is full, or the key was used for another message.
        """
        if not options and reply_to is None and tx is None and tracing.tracer is None:
            # Most messages have no options, and skip the cost of them.
            encoded = self.encoder.encode_fast(self.service.name if to is None else to, queue, body)
        else:
            message = OutgoingMessage(queue=queue, body=body, to=to, reply_to=reply_to, **options)
            if tx is not None:
                return tx.send_message(message)
            if tracing.tracer is not None:
                return await self._send_traced(message)
            encoded = self.encoder.encode(message)
        if encoded.idempotency is not None or CURRENT_TRANSACTION.get() is not None:
            return (await self._commit((encoded,)))[0]
        writer = self.store.writer
        if not writer.has_capacity:
            await writer.wait_for_capacity()
        await submit_send(writer, encoded)
        return encoded.id

    async def _send_traced(self, message: OutgoingMessage) -> int:
        node = self.service.name
        with start_send_span(node, message.to or node, message.queue, message.headers) as span:
            headers = tracing.inject_context(message.headers, span.context)
            encoded = self.encoder.encode(msgspec.structs.replace(message, headers=headers))
            return (await self._commit((encoded,)))[0]

    async def send_many(self, messages: Iterable[OutgoingMessage]) -> list[int]:
        """Send several messages, all of them or none; returns their ids."""
        return list(await self._commit([self.encoder.encode_traced(each) for each in messages]))

    async def _commit(self, messages: Sequence[EncodedMessage]) -> Sequence[int]:
        with outside_transaction(self.store):
            writer = self.store.writer
            if not writer.has_capacity:
                await writer.wait_for_capacity()
            mutation = SendMutation(messages, writer.create_future())
            writer.submit(mutation)
            await mutation.done
        return mutation.ids

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Commit statements on the application's own tables, and messages, or none of them.

        Leaving the block commits; an exception rolls back.
        """
        check_not_in_transaction(self.store)
        tx = Transaction(self.store, self.encoder)
        tx.enter()
        try:
            yield tx
            # A transaction around this one may have started meanwhile.
            check_not_in_transaction(self.store, but=tx)
        except BaseException:
            tx.rollback()
            raise
        finally:
            tx.leave()
        transaction = tx.close()
        if transaction is None and not tx.sends:
            return
        with outside_transaction(self.store):
            mutation = SendMutation(tx.sends, self.store.writer.create_future())
            if transaction is None:
                self.store.submit(mutation)
            else:
                transaction.finish(mutation)
            await mutation.done

    # Consuming.

    async def declare(self, queue: str) -> int:
        """Create a queue, so that other nodes may send to it; returns its number."""
        return await self.dispatchers.declare(queue)

    async def consume(
        self,
        queue: str,
        handler: DurableHandler,
        *,
        concurrency: int = 1,
        ordered_by_key: bool = True,
        retry: RetryPolicy | None = None,
    ) -> Consumer:
        """Call `handler(message, tx)` for each message of a queue.

        The message is done with when the handler returns, in one commit with everything that it
        wrote through `tx`; its sender was answered when it was stored. If the handler raises, the
        message is retried; if it raises `Reject`, the message becomes a dead letter.

        Args:
            queue: a queue of this node; created if it does not exist.
            handler: coroutine function or plain function.
            concurrency: messages handled at the same time.
            ordered_by_key: whether messages of one key are handled one after the other.
            retry: when and how often a failed message is handled again.

        Raises:
            UsageError: the queue has a consumer already.
        """
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency} must be 1 or more")
        self._check_running()
        dispatcher = await self.dispatchers.open(queue, ordered_by_key, retry)
        if queue in self._consumers:
            raise UsageError(f"queue {queue!r} has a consumer already")
        consumer = self._consumers[queue] = Consumer(
            self.store,
            self.encoder,
            dispatcher,
            handler,
            concurrency=concurrency,
            handler_timeout_s=self.config.handler_timeout_s,
        )
        return consumer

    async def stop_consuming(self, queue: str, grace: float = _STOP_GRACE_S) -> None:
        """Stop the consumer of a queue; its messages stay.

        Args:
            queue: without a consumer, nothing happens.
            grace: seconds after which running handlers are cancelled.
        """
        check_not_in_transaction(self.store)
        consumer = self._consumers.get(queue)
        if consumer is not None:
            # Until it has stopped, no other consumer may start.
            await consumer.stop(grace)
            self._consumers.pop(queue, None)
            self.dispatchers.release(queue)

    async def pull(
        self,
        queue: str,
        *,
        limit: int = 1,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
    ) -> list[PulledMessage]:
        """Wait for messages and return up to `limit` of them, to be acknowledged one by one.

        Args:
            queue: a queue of this node without a consumer.
            limit: the most messages to return.
            timeout: seconds to wait for the first; then the list is empty.
            retry: when and how often a message that was not acknowledged is redelivered; without
                filters, as there are no errors to filter here.

        Raises:
            UsageError: the queue has a consumer, or `retry` has filters.
        """
        if retry is not None and (retry.retry_on is not None or retry.give_up_on is not None):
            raise UsageError(
                "retry_on and give_up_on filter errors of handlers; to retry a pulled message, "
                "call its nack()"
            )
        if queue in self._consumers:
            raise UsageError(f"queue {queue!r} has a consumer; it cannot be pulled from")
        self._check_running()
        dispatcher = await self.dispatchers.open(queue, True, retry)
        pulled: list[PulledMessage] = []
        try:
            async with asyncio.timeout(timeout):
                while (entry := dispatcher.next_message()) is None:
                    await dispatcher.wait()
                    self._check_running()
        except TimeoutError:
            return pulled
        while entry is not None:
            pulled.append(
                PulledMessage(
                    entry, dispatcher, self.store, self.encoder, self.config.ack_timeout_s
                )
            )
            entry = dispatcher.next_message() if len(pulled) < limit else None
        return pulled

    async def request(
        self,
        queue: str,
        body: bytes,
        *,
        timeout: float,
        to: str | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Send a message and wait for its reply.

        Both messages are durable, the waiting is not. If the reply matters even after a crash of
        this process, use `send` with `reply_to` and consume that queue.

        Raises:
            ReplyTimeoutError: no reply within `timeout` seconds; it may still arrive.
        """
        to = self.service.name if to is None else to
        message = OutgoingMessage(
            queue=queue, body=body, to=to, key=key, headers=headers, reply_to=REPLIES
        )
        encoded = self.encoder.encode_traced(message)
        with outside_transaction(self.store), self._replies.expect(encoded.id, to) as reply:
            await self._consume_replies()
            try:
                async with asyncio.timeout(timeout):
                    await self._commit((encoded,))
                    return await reply
            except TimeoutError:
                raise ReplyTimeoutError(
                    f"no reply from queue {queue!r} of {to!r} in time; it may still come",
                    timeout_s=timeout,
                ) from None

    async def _consume_replies(self) -> None:
        async with self._reply_consumer_lock:
            if REPLIES not in self._consumers:
                await self.consume(REPLIES, self._replies.on_reply, ordered_by_key=False)

    async def statistics(self) -> DurableQueuesStatistics:
        """Return how many messages wait where and since when, and the rates."""
        return await self.admin.statistics()

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not running"
        return f"<DurableQueues of {self.service.name} {state}, {self.store!r}>"
