"""Messages of a node to itself, without a socket and with the behavior of a connection.

The payload is the caller's immutable copy, failures are the errors that a remote caller gets,
deadlines apply, and one-way messages are bounded like those of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

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
    call_handler_traced,
    no_handler_reply,
    one_way_handler_reply,
    oversized_reply,
    reply_from_task,
)
from postroad.net.requests import (
    RequestAttempt,
    check_size,
    error_from_result,
    stopped_while_in_flight,
    wrong_peer_error,
)
from postroad.wire import ReplyFrame


class LoopbackTransport:
    """Delivers messages to the handlers of this node."""

    def __init__(
        self, context: ConnectionContext, subscriptions: SubscriptionTable, address: Address
    ) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._address = address
        self._name = context.config.hello.name
        # A dictionary because close() cancels in this order.
        self._running: dict[asyncio.Future[HandlerReturn], None] = {}
        # Handlers that close() has cancelled.
        self._stopped: set[asyncio.Future[HandlerReturn]] = set()
        self._is_closed = False
        self._capacity = asyncio.Semaphore(context.limits.handlers_running_max)

    def __len__(self) -> int:
        return len(self._running)

    def check(self, attempt: RequestAttempt) -> None:
        """Check the size of a message and the expected peer, as a connection does."""
        attempt.peer = f"{attempt.target} ({self._name})"
        check_size(attempt.subject, attempt.payload, self._context.limits.frame_bytes_max)
        error = wrong_peer_error(attempt.expected_peer, (self._name,), f"itself, {self._name!r}")
        if error is not None:
            raise error

    async def request(self, subject: str, payload: bytes, deadline: float) -> bytes:
        """Call the handler and return its reply."""
        self._context.counters.local_requests += 1
        subscription = self._subscriptions.by_subject.get(subject)
        if subscription is None or subscription.one_way:
            self._context.counters.no_handler += 1
            failure = (one_way_handler_reply if subscription else no_handler_reply)(subject)
        else:
            reply = await self._handle(subscription, payload, deadline)
            if isinstance(reply, bytes):
                return reply
            failure = reply
        frame = ReplyFrame(0, failure.status, failure.payload, failure.code, failure.retryable)
        raise error_from_result(frame, subject)

    async def _handle(
        self, subscription: Subscription, payload: bytes, deadline: float
    ) -> bytes | HandlerReply:
        message = RawMessage(payload, subscription.subject, self._address, self._name, deadline)
        result = self._call_handler(subscription, message)
        if not isinstance(result, bytes | HandlerReply):
            result = await self._await_handler(self._track(result), subscription, deadline)
        if isinstance(result, HandlerReply):
            self._context.counters.handlers_failed += 1
        elif len(result) > self._context.limits.frame_bytes_max:
            return oversized_reply(len(result), self._context.limits.frame_bytes_max)
        return result

    def _call_handler(self, subscription: Subscription, message: RawMessage) -> HandlerResult:
        if tracing.tracer is None:
            return call_handler(subscription, message)
        parent = tracing.current_span_context()
        return call_handler_traced(subscription, message, parent, node=self._name)

    async def _await_handler(
        self, task: asyncio.Future[HandlerReturn], subscription: Subscription, deadline: float
    ) -> bytes | HandlerReply:
        """Wait for a handler until the deadline, even if it ignores its cancellation."""
        try:
            remaining_s = deadline - asyncio.get_running_loop().time()
            done, _ = await asyncio.wait({task}, timeout=max(remaining_s, 0.0))
        except asyncio.CancelledError:
            self._cancel(task)
            raise
        if not done:
            self._cancel(task)
            self._context.counters.requests_timed_out += 1
            raise ReplyTimeoutError("no reply in time")
        if task in self._stopped:
            raise stopped_while_in_flight().error
        return reply_from_task(task, subscription)

    async def send(self, subject: str, payload: bytes) -> None:
        """Deliver a one-way message; wait while the maximum of handlers is running."""
        self._context.counters.local_requests += 1
        subscription = self._subscriptions.by_subject.get(subject)
        if subscription is None:
            self._context.counters.no_handler += 1
            self._warn("no handler", "message of this node dropped: no handler for %r", subject)
            return
        await self._capacity.acquire()
        if self._is_closed:
            self._capacity.release()
            raise NotRunningError("the service stopped before the message was handled")
        message = RawMessage(payload, subject, self._address, self._name)
        result = self._call_handler(subscription, message)
        if isinstance(result, bytes | HandlerReply):
            self._capacity.release()
            self._report(subject, result)
            return
        task = self._track(result)
        timer = asyncio.get_running_loop().call_later(
            self._context.limits.handler_timeout_s, self._cancel, task
        )

        def on_consumed(task: asyncio.Future[HandlerReturn]) -> None:
            timer.cancel()
            self._capacity.release()
            if not task.cancelled():
                self._report(subject, reply_from_task(task, subscription))

        task.add_done_callback(on_consumed)

    # Asynchronous handlers.

    def _track(self, awaitable: Awaitable[HandlerReturn]) -> asyncio.Future[HandlerReturn]:
        task = asyncio.ensure_future(awaitable)
        self._running[task] = None
        task.add_done_callback(self._on_finished)
        return task

    def _cancel(self, task: asyncio.Future[HandlerReturn]) -> None:
        """Cancel a handler whose caller has stopped waiting; it is counted until it finishes."""
        if not task.done():
            self._context.counters.handlers_timed_out += 1
            task.cancel()

    def _on_finished(self, task: asyncio.Future[HandlerReturn]) -> None:
        self._running.pop(task, None)
        if not task.cancelled():
            # Retrieve the error, so that asyncio does not log it as never retrieved.
            task.exception()

    def _report(self, subject: str, reply: bytes | HandlerReply) -> None:
        if isinstance(reply, HandlerReply):
            self._context.counters.handlers_failed += 1
            text = reply.payload.decode()
            self._warn("one-way", "handler of one-way %r failed: %s", subject, text)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._context.warn(f"local {key}", text, *args)

    async def close(self, grace_s: float) -> None:
        """Wait `grace_s` seconds for running handlers, then cancel them."""
        self._is_closed = True
        if self._running:
            await asyncio.wait(list(self._running), timeout=grace_s)
            unfinished = list(self._running)
            self._stopped.update(unfinished)
            for task in unfinished:
                task.cancel()
