"""Events: who gets them, and what handlers do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, UnsetType

from postroad.core import ThrottledLogger, tracing
from postroad.core.errors import PostroadError
from postroad.core.tracing import NOOP_SPAN

from .context import Context
from .errors import BrokerDisconnectedError, QueueIsFullError, ServiceNotAvailableError
from .event_acks import EventAcks
from .events import EventCatalog, EventEndpoint, EventPlan
from .kinds import VERSION
from .local_services import LocalEvent
from .packets import Event
from .running import finish
from .traces import emitting, handling
from .traces import told as told_in
from .transit import Done, Transit, logger
from .ways import is_awaitable

if TYPE_CHECKING:
    from .broker import Broker

_LOG_INTERVAL_S = 10.0
# What ends the task, or the program, rather than a handler.
_ENDING = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)

T = TypeVar("T")


class Eventing:
    """Sends events of this node, and runs its handlers."""

    def __init__(
        self,
        broker: Broker,
        transit: Transit | None,
        events: EventCatalog,
        handler_of: Callable[[EventEndpoint], LocalEvent | None],
        *,
        can_ack: Callable[[str], bool],
        is_balanced: bool,
        events_max: int,
        pending_max: int,
    ) -> None:
        """`is_balanced` tells that the transporter chooses who gets an event."""
        self._broker = broker
        self._node_id = broker.node_id
        self._transit = transit
        self._events = events
        self._handler_of = handler_of
        self._is_balanced = is_balanced
        self._events_max = events_max
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[Any]] = set()
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self.is_closed = False
        """Whether events of others are dropped: the node has not opened yet, or is stopping."""
        self.dropped = 0
        """Events that came when too many handlers ran already, or this node was closed."""
        self.failures = 0
        """Handlers that failed."""
        self.acks = EventAcks(
            broker.node_id,
            transit,
            events,
            self._packet,
            self._run_group,
            can_ack,
            is_balanced=is_balanced,
            pending_max=pending_max,
        )

    def __len__(self) -> int:
        return len(self._running)

    # Out.

    async def emit(self, ctx: Context, groups: Collection[str]) -> None:
        """Give an event to one handler of each group."""
        with emitting(self._node_id, ctx):
            if self._is_balanced:
                self._emit_balanced(ctx, groups)
            else:
                self._give(ctx, self._events.plan_emit(ctx.event, groups, ctx.params, ctx.meta))
            await self._room()

    async def emit_acked(self, ctx: Context, groups: Collection[str]) -> None:
        """Give an event to one handler of each group, and wait for all of them."""
        with emitting(self._node_id, ctx):
            await self.acks.emit(ctx, groups)

    async def broadcast(self, ctx: Context, groups: Collection[str]) -> None:
        """Give an event to all handlers everywhere."""
        ctx.is_broadcast = True
        with emitting(self._node_id, ctx):
            self._give(ctx, self._events.plan_broadcast(ctx.event, groups))
            await self._room()

    def announce(self, ctx: Context) -> None:
        """Give an event to all handlers everywhere, as far as they can be reached."""
        ctx.is_broadcast = True
        try:
            self._give(ctx, self._events.plan_broadcast(ctx.event))
        except PostroadError as error:
            self._warn("announce", "%s was not told everywhere: %s", ctx.event, error)

    def run_local(self, ctx: Context) -> None:
        """Run all handlers of this node."""
        ctx.is_broadcast = True
        self._run_all(self._events.local_broadcast(ctx.event, ctx.groups), ctx)

    async def broadcast_local(self, ctx: Context, groups: Collection[str]) -> None:
        """Give an event to all handlers of this node."""
        ctx.groups = (*groups,)
        with emitting(self._node_id, ctx):
            self.run_local(ctx)

    async def _room(self) -> None:
        if self._transit is not None and self._transit.is_connected:
            await self._transit.transporter.drain()

    def _give(self, ctx: Context, plan: EventPlan) -> None:
        """Send an event and run handlers; that it cannot be sent to one keeps it from no other."""
        failure = _for_each(lambda to: self._send(ctx, *to), plan.remote.items())
        self._run_all(plan.local, ctx)
        if failure is not None:
            raise failure

    def _send(self, ctx: Context, node_id: str, groups: Collection[str]) -> None:
        if self._transit is None:
            raise BrokerDisconnectedError
        self._transit.send(self._packet(ctx, groups), node_id)

    def _emit_balanced(self, ctx: Context, groups: Collection[str]) -> None:
        transit = self._transit
        if transit is None:
            raise BrokerDisconnectedError
        topics = transit.topics
        failure = _for_each(
            lambda group: transit.send_balanced(
                self._packet(ctx, (group,)), topics.for_event(group, ctx.event)
            ),
            groups or self._events.groups_of(ctx.event),
        )
        if failure is not None:
            raise failure

    def _packet(self, ctx: Context, groups: Collection[str]) -> Event:
        told: list[str] | UnsetType = [*groups] if groups else UNSET
        return Event(
            id=self._broker.new_id(),
            event=ctx.event,
            data=ctx.params,
            groups=told,
            broadcast=ctx.is_broadcast,
            meta=ctx.meta,
            headers=told_in(ctx),
            level=ctx.level,
            tracing=ctx.tracing,
            parent_id=ctx.parent_id,
            request_id=ctx.request_id,
            caller=ctx.caller,
            ver=VERSION,
            sender=self._node_id,
        )

    # In.

    def receive(self, packet: Event, done: Done | None) -> None:
        """An event came from another node."""
        tasks: Sequence[asyncio.Future[Any]] = ()
        if self.is_closed or len(self._running) >= self._events_max:
            self._drop(packet)
        elif packet.need_ack and packet.id:
            tasks = self.acks.answer(packet, self._context(packet))
        else:
            tasks = self._run_all(self._wanted(packet), self._context(packet))
        if done is not None:
            _when_all(tasks, done)

    def _drop(self, packet: Event) -> None:
        self.dropped += 1
        why = "this node takes none now" if self.is_closed else "too much to do"
        self._warn("dropped", "dropped event %s: %s", packet.event, why)
        if packet.need_ack and packet.id:
            kind = ServiceNotAvailableError if self.is_closed else QueueIsFullError
            error = kind(data={"action": packet.event, "nodeID": self._node_id})
            self.acks.refuse(packet, error)

    def _wanted(self, packet: Event) -> Iterable[EventEndpoint]:
        groups = () if packet.groups is UNSET else packet.groups
        if packet.broadcast:
            return self._events.local_broadcast(packet.event, groups)
        return self._events.local_emit(packet.event, groups)

    def _context(self, packet: Event) -> Context:
        ctx = Context(
            self._broker,
            params=packet.data,
            meta=packet.meta,
            headers=packet.headers,
            event=packet.event,
            request_id=packet.request_id or "",
            parent_id=packet.parent_id,
            level=packet.level,
            caller=packet.caller,
            node_id=packet.sender,
            tracing=packet.tracing,
        )
        ctx.groups = () if packet.groups is UNSET else packet.groups
        ctx.is_broadcast = packet.broadcast
        return ctx

    def _run_all(self, endpoints: Iterable[EventEndpoint], ctx: Context) -> list[asyncio.Task[Any]]:
        """Run handlers; gives those that are not through at once."""
        tasks = []
        for endpoint in endpoints:
            handler = self._handler_of(endpoint)
            if handler is None:
                continue
            own = _own_context(ctx, handler.service)
            running: Awaitable[Any] | None = None
            if handler.plain is not None:
                running = self._run_plain(handler, own)
                if running is None:
                    continue
            task = self._loop.create_task(self._run(handler, own, running))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
            tasks.append(task)
        return tasks

    def _run_plain(self, handler: LocalEvent, ctx: Context) -> Awaitable[Any] | None:
        """Run a handler that is through at once; if it is not, what is to be waited for."""
        span = NOOP_SPAN if tracing.tracer is None else handling(self._node_id, ctx)
        try:
            assert handler.plain is not None
            with span.scope:
                result = handler.plain(ctx)
        except _ENDING:
            raise
        except BaseException as error:
            span.end(error)
            self._tell_failure(handler, ctx)
            return None
        if is_awaitable(result):
            # Who waits for it records it.
            waited_for: Awaitable[Any] = result
            return waited_for
        span.end()
        return None

    async def _run(
        self, handler: LocalEvent, ctx: Context, running: Awaitable[Any] | None = None
    ) -> BaseException | None:
        """Run a handler, or wait for one that runs already; gives what it raised."""
        try:
            with handling(self._node_id, ctx):
                await (handler.run(ctx) if running is None else running)
        except _ENDING:
            raise
        except BaseException as error:
            self._tell_failure(handler, ctx)
            return error
        return None

    def _run_group(self, ctx: Context, group: str) -> asyncio.Future[BaseException | None]:
        """Run the handlers of a group, until all are through."""
        task = self._loop.create_task(self._handle(ctx, group))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _handle(self, ctx: Context, group: str) -> BaseException | None:
        found = map(self._handler_of, self._events.local_emit(ctx.event, (group,)))
        handlers = [it for it in found if it is not None]
        if not handlers:
            told = {"action": ctx.event, "group": group, "nodeID": self._node_id}
            return ServiceNotAvailableError(data=told)
        outcomes = await asyncio.gather(
            *(self._run(it, _own_context(ctx, it.service)) for it in handlers)
        )
        return next((it for it in outcomes if it is not None), None)

    def can_handle(self, event: str, group: str) -> bool:
        """Whether a group has a handler for an event at this node."""
        return bool(self._events.local_broadcast(event, (group,)))

    async def handle_in_turn(self, ctx: Context, group: str) -> None:
        """Run the handlers of a group one after the other; raises what the first raises."""
        for endpoint in self._events.local_emit(ctx.event, (group,)):
            handler = self._handler_of(endpoint)
            if handler is not None:
                own = _own_context(ctx, handler.service)
                own.locals.update(ctx.locals)
                with handling(self._node_id, own, is_mail=True):
                    await handler.run(own)

    async def idle(self) -> None:
        """Wait until no handler runs."""
        while self._running:
            await asyncio.wait({*self._running})

    def _tell_failure(self, handler: LocalEvent, ctx: Context) -> None:
        self.failures += 1
        logger.exception("%s failed on event %s", handler.service, ctx.event)

    async def finish(self, timeout_s: float) -> int:
        """Wait for what runs, then end it; says how much had to be ended."""
        return await finish(self._running, timeout_s)

    def _warn(self, key: str, text: str, *args: Any) -> None:
        self._log.log(key, self._loop.time(), text, *args)


def _for_each(send: Callable[[T], object], them: Iterable[T]) -> PostroadError | None:
    """Send to all of them; gives the first failure."""
    failure: PostroadError | None = None
    for it in them:
        try:
            send(it)
        except PostroadError as error:
            failure = failure or error
    return failure


def _own_context(ctx: Context, service: str) -> Context:
    """Each handler has a context of its own, so that what one does to it harms no other."""
    own = Context(
        ctx.broker,
        params=ctx.params,
        meta={**ctx.meta},
        headers=ctx.headers,
        event=ctx.event,
        request_id=ctx.request_id,
        parent_id=ctx.parent_id,
        level=ctx.level,
        caller=ctx.caller,
        node_id=ctx.node_id,
        tracing=ctx.tracing,
    )
    own.groups, own.is_broadcast, own.service = ctx.groups, ctx.is_broadcast, service
    return own


def _when_all(tasks: Sequence[asyncio.Future[Any]], done: Done) -> None:
    """Call `done` when all have ended."""
    left = len(tasks)
    if not left:
        done()
        return

    def one_ended(_: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        if not left:
            done()

    for task in tasks:
        task.add_done_callback(one_ended)
