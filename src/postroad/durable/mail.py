"""A node's mail: messages that arrive once, whatever dies on the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase

from postroad.cluster import ClusterAgent
from postroad.core import Lifecycle, tracing
from postroad.core.errors import ConfigError, ReplyTimeoutError, StoreError, UsageError
from postroad.net import MessagingService

from .bridges import BridgeManager
from .config import MailConfig, Retry
from .consumer import Consumer, Handler
from .consumption import Consumption
from .control import Health
from .directory import Directory, MemberDirectory
from .intake import Intake
from .liaison import Liaison
from .message import Message
from .names import REPLIES, validate_queue_name
from .operations import StoreOperations
from .posting import Clerk, Draft, Post, Posting, gather
from .pulling import Pulled
from .replies import Replies
from .store import Store
from .store import queries as query
from .store.ledger import News
from .store.rows import InPage
from .store.store import BRIDGE
from .store.turn import OPEN, check_not_inside, outside
from .traces import posting
from .transaction import Transaction

logger = logging.getLogger("postroad.durable")

# Idempotency keys that are too old are dropped this often.
_FORGET_EVERY_S = 600.0
_STOP_GRACE_S = 5.0
_HEALTH_S = 5.0


class Mail(StoreOperations, Lifecycle):
    """Posts messages to other nodes and handles theirs: each arrives, once, in order of its key.

        async with Mail(agent, SqliteStore("mail.db")) as mail:
            await mail.post("beta", "orders", b"one tea")

    Args:
        node: the agent of this node, or its messaging service with a directory of peers.
        store: where the mail is kept; opened and closed by this.
        directory: where peers are, if no agent tells.
        config: all sizes and times.
        accept: patterns of queues that others may open here by sending to them. Queues that exist,
            because something consumed or declared them, are open to all.
        bridge: False if a bridge process of its own carries this node's mail.
    """

    def __init__(
        self,
        node: ClusterAgent | MessagingService,
        store: Store,
        *,
        directory: Directory | None = None,
        config: MailConfig | None = None,
        accept: Iterable[str] = ("*",),
        bridge: bool = True,
    ) -> None:
        super().__init__(store)
        service = node.service if isinstance(node, ClusterAgent) else node
        if directory is None:
            if not isinstance(node, ClusterAgent):
                raise ConfigError("a service alone does not know its peers: give a directory")
            directory = MemberDirectory(node)
        self.service = service
        self.config = config or MailConfig()
        self._accept = tuple(accept)
        self.directory = directory
        self.clerk = Clerk(self.config, service.name)
        self._intake = Intake(service, store, self.config)
        self._liaison = Liaison(service, store, directory, is_external=not bridge)
        self._has_bridge = bridge
        self._consumers: dict[str, Consumer] = {}
        self._replies = Replies(self.totals)
        self._listening_to_replies = asyncio.Lock()
        self._was_started = self._is_running = False
        # The task that stops everything, once somebody wants that.
        self._stopping: asyncio.Task[None] | None = None
        # The one that stops all but the store, which has ended by itself.
        self._ending: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None

    # Life.

    async def start(self) -> None:
        """Open the store, take mail of others, and send what waits."""
        if self._was_started:
            raise UsageError(f"{self!r} was started already; make a new one")
        self._was_started = True
        await self.store.open(self.service.name, self.config)
        try:
            await self._start()
        except BaseException:
            await self.stop(0.0)
            raise

    async def _start(self) -> None:
        self._is_running = True
        self.store.use_rule(self._may_open)
        self.store.audience.add(self._on_news)
        self.store.audience.add_early(self._on_arriving, self._on_withdrawn)
        self.store.ended.add_done_callback(self._on_store_ended)
        self.store.audience.add_reconnected(self._on_reconnected)
        await self._intake.start()
        await self._liaison.start()
        if self._has_bridge:
            await self.store.lock(BRIDGE)
            self.manager = BridgeManager(
                self.service, self.store, self.config, node=self.service.name
            )
            await self.manager.start()
        loop = asyncio.get_running_loop()
        self._forgetting = loop.create_task(self._forget_keys(), name="postroad mail")

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Let handlers end, commit what they did, and close the store."""
        if self._is_running:
            self._is_running = False
            loop = asyncio.get_running_loop()
            self._stopping = loop.create_task(self._stop(grace), name="postroad mail stops")
        if self._stopping is not None:
            await asyncio.shield(self._stopping)

    async def _stop(self, grace_s: float) -> None:
        """A task of its own, so that it ends even if its caller is cancelled."""
        await (self._ending or self._rest(grace_s))
        await self.store.close()

    async def _rest(self, grace_s: float) -> None:
        """Handle and carry nothing more."""
        self._intake.stop()
        consumers, self._consumers = self._consumers, {}
        await asyncio.gather(*(consumer.stop(grace_s) for consumer in consumers.values()))
        # They hear of commits until what they did is committed.
        await asyncio.gather(*(it.close() for it in self.consumptions.values()))
        self.consumptions = {}
        if self._forgetting is not None:
            self._forgetting.cancel()
            await asyncio.gather(self._forgetting, return_exceptions=True)
        if self.manager is not None:
            await self.manager.stop()
        await self._liaison.stop()

    def _on_store_ended(self, ended: asyncio.Future[StoreError]) -> None:
        """Handle and carry nothing more: what is in memory does not hold any more."""
        if self._is_running:
            loop = asyncio.get_running_loop()
            self._ending = loop.create_task(self._rest(0.0), name="postroad mail ends")

    def _check_running(self) -> None:
        if not self._is_running:
            raise UsageError(f"{self!r} is not running: start() it first")
        self.store.writer.check()

    def _may_open(self, sender: str, queue: str) -> bool:
        if queue.startswith("_"):
            return False
        return any(fnmatchcase(queue, pattern) for pattern in self._accept)

    def _on_news(self, news: News) -> None:
        self._intake.on_news(news)
        if news.appended:
            count = sum(page.last - page.first + 1 for _, page in news.appended)
            self.totals.posted.add(count, time.monotonic())
        for consumption in self.consumptions.values():
            consumption.on_news(news)

    def _on_arriving(self, page: InPage) -> None:
        if (consumption := self.consumptions.get(page.queue)) is not None:
            consumption.on_arriving(page)

    def _on_withdrawn(self, pages: Sequence[InPage]) -> None:
        for page in pages:
            if (consumption := self.consumptions.get(page.queue)) is not None:
                consumption.on_withdrawn(page)

    def _on_reconnected(self) -> None:
        for consumption in self.consumptions.values():
            consumption.reload()

    async def _forget_keys(self) -> None:
        keep_ms = round(self.config.idempotency_s * 1000)
        while True:
            try:
                await self.store.write(
                    lambda ledger: ledger.outbox.forget_posted(ledger.now_ms - keep_ms)
                )
            except Exception as error:
                # Whatever it was, the next time is not far.
                logger.warning("old idempotency keys stay for now: %s", error)
            await asyncio.sleep(_FORGET_EVERY_S)

    # Posting.

    async def post(
        self,
        peer: str,
        queue: str,
        body: bytes,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: float | None = None,
        ttl: float | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
        reply_to: str | None = None,
        tx: Transaction | None = None,
    ) -> int:
        """Post a message and return its id once it cannot be lost any more.

        Args:
            peer: the node it is for; this one itself is allowed.
            queue: the queue there.
            body: what its handler gets.
            key: messages of equal keys are handled one after the other, in this order.
            idempotency_key: posting again with the same key does nothing, for a week.
            delay: seconds that it is not handled for.
            ttl: seconds after which it is a dead letter instead of being handled.
            priority: higher ones are handled first, also within a key.
            headers: what travels beside the body.
            reply_to: queue of this node that takes a reply.
            tx: post only if this transaction succeeds, and with it.
        """
        if tracing.tracer is not None and tx is None:
            return await self._post_traced(
                peer, queue, body, key, idempotency_key, delay, ttl, priority, headers, reply_to
            )
        if (
            key is None
            and tx is None
            and headers is None
            and idempotency_key is None
            and delay is None
            and ttl is None
            and reply_to is None
            and priority == 0
        ):
            post = self.clerk.plain(peer, queue, body)
        elif tx is not None:
            return tx.post(
                peer,
                queue,
                body,
                key=key,
                idempotency_key=idempotency_key,
                delay=delay,
                ttl=ttl,
                priority=priority,
                headers=headers,
                reply_to=reply_to,
            )
        else:
            post = self.clerk.post(
                peer, queue, body, key, idempotency_key, delay, ttl, priority, headers, reply_to
            )
        if idempotency_key is not None or OPEN.get() is not None:
            return (await self._post((post,)))[0]
        writer = self.store.writer
        if not writer.has_room:
            await writer.wait_for_room()
        await gather(writer, post)
        return post.id

    async def _post_traced(
        self,
        peer: str,
        queue: str,
        body: bytes,
        key: str | None,
        idempotency_key: str | None,
        delay: float | None,
        ttl: float | None,
        priority: int,
        headers: Mapping[str, str] | None,
        reply_to: str | None,
    ) -> int:
        with posting(self.service.name, peer, queue, headers) as span:
            told = tracing.inject_context(headers, span.context)
            post = self.clerk.post(
                peer, queue, body, key, idempotency_key, delay, ttl, priority, told, reply_to
            )
            return (await self._post((post,)))[0]

    async def post_all(self, drafts: Iterable[Draft]) -> list[int]:
        """Post several messages, all of them or none."""
        return list(await self._post([self.clerk.draft(draft) for draft in drafts]))

    async def _post(self, posts: Sequence[Post]) -> Sequence[int]:
        with outside(self.store):
            writer = self.store.writer
            if not writer.has_room:
                await writer.wait_for_room()
            posting = Posting(posts, writer.create_future())
            writer.submit(posting)
            await posting.done
        return posting.ids

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Do several things or none: statements on one's own tables, and posts.

        Leaving the block commits, an exception undoes everything.
        """
        check_not_inside(self.store)
        tx = Transaction(self.store, self.clerk)
        tx.enter()
        try:
            yield tx
            # One around it may have begun meanwhile.
            check_not_inside(self.store, but=tx)
        except BaseException:
            tx.undo()
            raise
        finally:
            tx.leave()
        turn = tx.close()
        if turn is None and not tx.posts:
            return
        with outside(self.store):
            posting = Posting(tx.posts, self.store.writer.create_future())
            if turn is None:
                self.store.submit(posting)
            else:
                turn.end(posting)
            await posting.done

    # Handling.

    async def declare(self, queue: str) -> int:
        """Open a queue, so that others may send to it; returns its number."""
        validate_queue_name(queue)
        return await self.store.write(lambda ledger: ledger.queues.queue_id(queue))

    async def consume(
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        ordered_by_key: bool = True,
        retry: Retry | None = None,
    ) -> Consumer:
        """Have `handler(message, tx)` called for the messages of a queue.

        The message is done with when the handler returns, together with everything it wrote
        through `tx`. A handler that raises has its message come again; one that raises `Reject`
        makes it a dead letter.

        Args:
            concurrency: messages handled at the same time.
            ordered_by_key: whether messages of one key are handled one after the other.
            retry: how often and when a failed message is handled again.
        """
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency} must be 1 or more")
        consumption = await self.consumption_of(queue, ordered_by_key, retry)
        if queue in self._consumers:
            raise UsageError(f"queue {queue!r} has a consumer already")
        consumer = self._consumers[queue] = Consumer(
            self.store,
            self.clerk,
            consumption,
            handler,
            concurrency=concurrency,
            handler_s=self.config.handler_s,
        )
        return consumer

    async def stop_consuming(self, queue: str, grace: float = _STOP_GRACE_S) -> None:
        """Let a queue rest; its messages stay."""
        check_not_inside(self.store)
        consumer = self._consumers.get(queue)
        if consumer is not None:
            # Until it has ended, nobody else may begin.
            await consumer.stop(grace)
            self._consumers.pop(queue, None)
            self.let_go(queue)

    def let_go(self, queue: str) -> None:
        """Let others consume a queue, after its consumption was closed."""
        if self.consumptions.pop(queue, None) is not None:
            self.store.release(queue)

    async def consumption_of(
        self, queue: str, is_ordered: bool = True, retry: Retry | None = None
    ) -> Consumption:
        """The messages of a queue, for whoever takes them one by one."""
        self._check_running()
        id = await self.declare(queue)
        queues = await self.store.read(query.list_queues)
        self._check_running()
        consumption = self.consumptions.get(queue)
        if consumption is not None and not consumption.is_like(is_ordered, retry):
            raise UsageError(f"queue {queue!r} is in use already, with other settings")
        if consumption is None:
            self.store.claim(queue, "a consumer")
            consumption = self.consumptions[queue] = Consumption(
                self.store,
                self.config,
                queue,
                id,
                is_ordered=is_ordered,
                retry=retry or Retry(),
                totals=self.totals,
            )
            consumption.is_paused = queues[queue][1]
        return consumption

    async def pull(
        self,
        queue: str,
        *,
        limit: int = 1,
        timeout: float | None = None,
        retry: Retry | None = None,
    ) -> list[Pulled]:
        """Wait for messages and take up to `limit` of them, to be acknowledged one by one.

        Returns an empty list if none comes in time.
        """
        if queue in self._consumers:
            raise UsageError(f"queue {queue!r} has a consumer; it cannot be pulled from")
        consumption = await self.consumption_of(queue, True, retry)
        pulled: list[Pulled] = []
        try:
            async with asyncio.timeout(timeout):
                while (entry := consumption.take()) is None:
                    await consumption.wait()
                    self._check_running()
        except TimeoutError:
            return pulled
        while entry is not None:
            pulled.append(Pulled(entry, consumption, self.store, self.clerk, self.config.lease_s))
            entry = consumption.take() if len(pulled) < limit else None
        return pulled

    async def request(
        self,
        peer: str,
        queue: str,
        body: bytes,
        *,
        timeout: float,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Post a message and wait for its reply.

        Both are as durable as all mail; only the waiting is not. Where the reply matters even if
        this process dies, post with `reply_to` and consume that queue.
        """
        headers = self.clerk.traced(peer, queue, headers)
        post = self.clerk.post(peer, queue, body, key, None, None, None, 0, headers, REPLIES)
        with outside(self.store), self._replies.awaited(post.id, peer) as reply:
            await self._listen_to_replies()
            try:
                async with asyncio.timeout(timeout):
                    await self._post((post,))
                    return await reply
            except TimeoutError:
                raise ReplyTimeoutError(
                    f"no reply from queue {queue!r} of {peer!r} in time; it may still come",
                    timeout_s=timeout,
                ) from None

    async def _listen_to_replies(self) -> None:
        async with self._listening_to_replies:
            if REPLIES not in self._consumers:
                await self.consume(REPLIES, self._replies.on_reply, ordered_by_key=False)

    def _blocked_senders(self) -> list[str]:
        return self._intake.blocked()

    def _forget(self, peer: str) -> None:
        super()._forget(peer)
        self._liaison.nudge(peer)

    async def bridges(self) -> Health:
        """How the bridges do; raises TimeoutError if their manager does not answer."""
        return await self._liaison.health(_HEALTH_S)

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not running"
        return f"<Mail of {self.service.name} {state}, {self.store!r}>"
