"""Calls to other nodes: a request goes out, and somebody waits for its response."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterable, Callable, Coroutine
from typing import Any

from msgspec import UNSET

from postroad.core import tracing

from .calls import Added, PendingCalls
from .context import Context
from .errors import (
    BrokerDisconnectedError,
    MoleculerError,
    QueueIsFullError,
    RequestRejectedError,
    RequestTimeoutError,
)
from .incoming_stream import CANCELLED
from .kinds import VERSION
from .outgoing_stream import OutgoingStream
from .packets import Request, Response
from .response_streams import ResponseStreams
from .stream_sources import Source
from .streaming import Streaming
from .streams import is_stream
from .traces import told
from .transit import Transit
from .waiting import Waiting

_MILLISECONDS = 1000


class RemoteCalls:
    """All calls of this node that wait for another one."""

    def __init__(
        self, node_id: str, transit: Transit, streaming: Streaming, *, pending_max: int
    ) -> None:
        self._node_id = node_id
        self._transit = transit
        self._streaming = streaming
        self._loop = asyncio.get_running_loop()
        self._pending: PendingCalls[Waiting] = PendingCalls(pending_max)
        self._streams = ResponseStreams(self._pending, streaming, transit)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    @property
    def orphans(self) -> int:
        """Responses that nobody waited for."""
        return self._pending.orphans

    def __len__(self) -> int:
        return len(self._pending)

    def call(self, ctx: Context) -> Coroutine[Any, Any, Any]:
        """Call the action at the node of the context's endpoint."""
        endpoint = ctx.endpoint
        assert endpoint is not None
        node_id = endpoint.node.id
        if ctx.stream is not None:
            return self._call_with_stream(ctx, node_id, ctx.stream)
        return self._wait(ctx, node_id, lambda it: self._transit.send(it, node_id))

    def call_balanced(self, ctx: Context) -> Coroutine[Any, Any, Any]:
        """Call the action at whichever node the transporter chooses."""
        topic = self._transit.topics.for_request(ctx.action)
        return self._wait(ctx, None, lambda it: self._transit.send_balanced(it, topic))

    def receive(self, response: Response) -> None:
        """A response came."""
        if response.stream is not UNSET and is_stream(response):
            self._streams.receive(response)
            return
        waiting = self._pending.take(response.id)
        if waiting is not None:
            waiting.answer(response)

    def lose_node(self, node_id: str, *, before: float = math.inf) -> None:
        """A node is gone, or began a new life at that time: it will not answer what came before."""
        for waiting in self._pending.lose_node(node_id, lambda it: it.context.started_at < before):
            waiting.fail(RequestRejectedError)

    def close(self) -> None:
        """Nobody will answer any more."""
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._pending.drain():
            waiting.fail(BrokerDisconnectedError)

    async def _wait(
        self, ctx: Context, node_id: str | None, send: Callable[[Request], None]
    ) -> Any:
        call_id, timeout_s = ctx.id, ctx.timeout_s
        future = self._loop.create_future()
        deadline = ctx.started_at + timeout_s if timeout_s else math.inf
        added = self._pending.add(
            call_id, Waiting(ctx, future, node_id), node_id=node_id, deadline=deadline
        )
        if added is not Added.ADDED:
            raise QueueIsFullError(data={"action": ctx.action, "nodeID": node_id})
        if deadline < self._timer_at:
            self._set_timer(deadline)
        try:
            send(self._request(ctx, node_id))
            return await future
        except BaseException:
            # Cancelled, or not sent; after a response it is not there any more.
            waiting = self._pending.give_up(call_id)
            if waiting is not None:
                waiting.give_up()
            raise

    async def _call_with_stream(
        self, ctx: Context, node_id: str, stream: AsyncIterable[Any]
    ) -> Any:
        """A call whose stream is sent in the background; it goes on when the response is there."""
        source = stream if isinstance(stream, Source) else Source(stream)
        begun: list[OutgoingStream] = []

        def send(request: Request) -> None:
            begun.append(self._streaming.send(request, source, node_id))
            self._streaming.outgoing.start(begun[0])

        try:
            return await self._wait(ctx, node_id, send)
        except BaseException as error:
            for outgoing in begun:
                outgoing.break_off(_reason(error))
            raise

    def _request(self, ctx: Context, node_id: str | None) -> Request:
        return Request(
            id=ctx.id,
            action=ctx.action,
            params=ctx.params,
            meta=ctx.meta,
            headers=ctx.headers if tracing.tracer is None else told(ctx, node_id),
            timeout=math.ceil(ctx.timeout_s * _MILLISECONDS),
            level=ctx.level,
            tracing=ctx.tracing,
            parent_id=ctx.parent_id,
            request_id=ctx.request_id,
            caller=ctx.caller,
            ver=VERSION,
            sender=self._node_id,
        )

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer, self._timer_at = None, math.inf
        for waiting in self._pending.expire(self._loop.time()):
            waiting.fail(RequestTimeoutError)
        deadline = self._pending.deadline()
        if deadline < math.inf:
            self._set_timer(deadline)


def _reason(error: BaseException) -> Exception:
    """Why the rest of a request's stream does not come."""
    if isinstance(error, Exception):
        return error
    return MoleculerError("the caller gave up", type=CANCELLED)
