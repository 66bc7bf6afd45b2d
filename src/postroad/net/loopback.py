"""Messages to the own address: no socket, the same behaviour.

The payload is the caller's own immutable copy, failures are the errors a remote caller would get,
deadlines hold, and one-way messages are bounded like those of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial

from postroad.core import Address, tracing
from postroad.core.errors import NotRunningError, ReplyTimeoutError
from postroad.net.context import ConnectionContext
from postroad.net.dispatch import (
    HandlerReply,
    HandlerResult,
    HandlerReturn,
    RawMessage,
    Subscription,
    SubscriptionTable,
    call_handler,
    no_handler_reply,
    one_way_handler_reply,
    oversized_reply,
    reply_from_task,
)
from postroad.net.requests import error_from_result, stopped_while_in_flight
from postroad.net.tracing import call_handler_traced
from postroad.wire import ReplyFrame


class LoopbackTransport:
    """Hands messages to the handlers of this very node."""

    def __init__(
        self, context: ConnectionContext, subscriptions: SubscriptionTable, address: Address
    ) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._address = address
        self._name = context.config.hello.name
        # A dictionary for its order, which `close` follows.
        self._running: dict[asyncio.Future[HandlerReturn], None] = {}
        # Handlers that were cancelled because the service stopped.
        self._stopped: set[asyncio.Future[HandlerReturn]] = set()
        self._is_closed = False
        self._capacity = asyncio.Semaphore(context.limits.handlers_running_max)

    def __len__(self) -> int:
        return len(self._running)

    async def request(self, subject: str, payload: bytes, deadline: float) -> bytes:
        """Call the handler and return its reply."""
        self._context.counters.local_requests += 1
        subscription = self._subscriptions.by_subject.get(subject)
        if subscription is None or subscription.one_way:
            self._context.counters.no_handler += 1
            answer = (one_way_handler_reply if subscription else no_handler_reply)(subject)
        else:
            handled = await self._handle(subscription, payload, deadline)
            if isinstance(handled, bytes):
                return handled
            answer = handled
        raise error_from_result(_to_reply(answer), subject)

    async def _handle(
        self, subscription: Subscription, payload: bytes, deadline: float
    ) -> bytes | HandlerReply:
        message = RawMessage(payload, subscription.subject, self._address, self._name, deadline)
        answer = self._react(subscription, message)
        if not isinstance(answer, bytes | HandlerReply):
            answer = await self._await_handler(self._track(answer), subscription, deadline)
        if isinstance(answer, HandlerReply):
            self._context.counters.handlers_failed += 1
        elif len(answer) > self._context.limits.frame_bytes_max:
            return oversized_reply(len(answer), self._context.limits.frame_bytes_max)
        return answer

    def _react(self, subscription: Subscription, message: RawMessage) -> HandlerResult:
        if tracing.tracer is None:
            return call_handler(subscription, message)
        parent = tracing.current_span_context()
        return call_handler_traced(subscription, message, parent, node=self._name)

    async def _await_handler(
        self, run: asyncio.Future[HandlerReturn], subscription: Subscription, deadline: float
    ) -> bytes | HandlerReply:
        """Wait for a handler, but no longer than the caller does, even if it cannot be stopped."""
        try:
            left_s = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait({run}, timeout=max(left_s, 0.0))
        except asyncio.CancelledError:
            self._cancel(run)
            raise
        if not done:
            self._cancel(run)
            self._context.counters.requests_timed_out += 1
            raise ReplyTimeoutError("no reply in time")
        if run in self._stopped:
            raise stopped_while_in_flight().error
        return reply_from_task(run, subscription)

    async def send(self, subject: str, payload: bytes) -> None:
        """Hand over a one-way message; waits while too many are being handled."""
        self._context.counters.local_requests += 1
        subscription = self._subscriptions.by_subject.get(subject)
        if subscription is None:
            self._context.counters.no_handler += 1
            self._warn("no handler", "dropped a message from this node: no handler for %r", subject)
            return
        await self._capacity.acquire()
        if self._is_closed:
            self._capacity.release()
            raise NotRunningError("the service stopped before the message could be handled")
        message = RawMessage(payload, subject, self._address, self._name)
        reaction = self._react(subscription, message)
        if isinstance(reaction, bytes | HandlerReply):
            self._capacity.release()
            self._report(subject, reaction)
            return
        run = self._track(reaction)
        timer = asyncio.get_running_loop().call_later(
            self._context.limits.handler_timeout_s, self._cancel, run
        )
        run.add_done_callback(partial(self._on_consumed, subscription, timer))

    def _on_consumed(
        self,
        subscription: Subscription,
        timer: asyncio.TimerHandle,
        run: asyncio.Future[HandlerReturn],
    ) -> None:
        timer.cancel()
        self._capacity.release()
        if not run.cancelled():
            self._report(subscription.subject, reply_from_task(run, subscription))

    # Asynchronous handlers.

    def _track(self, awaitable: Awaitable[HandlerReturn]) -> asyncio.Future[HandlerReturn]:
        run = asyncio.ensure_future(awaitable)
        self._running[run] = None
        run.add_done_callback(self._on_over)
        return run

    def _cancel(self, run: asyncio.Future[HandlerReturn]) -> None:
        """Cancel a handler nobody waits for; it counts until it is really over."""
        if not run.done():
            self._context.counters.handlers_timed_out += 1
            run.cancel()

    def _on_over(self, run: asyncio.Future[HandlerReturn]) -> None:
        self._running.pop(run, None)
        if not run.cancelled():
            # Asked for, or it would be reported as never looked at.
            run.exception()

    def _report(self, subject: str, answer: bytes | HandlerReply) -> None:
        if isinstance(answer, HandlerReply):
            self._context.counters.handlers_failed += 1
            text = answer.payload.decode()
            self._warn("one-way", "the handler of one-way %r failed: %s", subject, text)

    def _warn(self, key: str, text: str, *args: object) -> None:
        now = asyncio.get_running_loop().time()
        self._context.warn(f"local {key}", now, text, *args)

    async def close(self, grace_s: float) -> None:
        """Let handlers finish for a while, then cancel them."""
        self._is_closed = True
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
            late = list(self._running)
            self._stopped.update(late)
            for run in late:
                run.cancel()


def _to_reply(answer: HandlerReply) -> ReplyFrame:
    return ReplyFrame(0, answer.status, answer.payload, answer.code, answer.retryable)
