"""Messages to the own address: no socket, the same behaviour.

The payload is the caller's own immutable copy, failures are the errors a remote caller would get,
deadlines hold, and one-way messages are bounded like those of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from postroad.core import Address
from postroad.core.errors import RequestTimeout
from postroad.wire import Reply

from .dispatch import (
    Answer,
    Subscriptions,
    consumer_answer,
    finish,
    no_handler_answer,
    react,
    reply_too_large_answer,
)
from .link import LinkContext
from .message import Message, Result, Subscription
from .results import error_of


class LocalDelivery:
    """Hands messages to the handlers of this very node."""

    def __init__(
        self, context: LinkContext, subscriptions: Subscriptions, address: Address
    ) -> None:
        self._context = context
        self._subscriptions = subscriptions
        self._address = address
        self._name = context.config.hello.name
        self._running: set[asyncio.Task[None]] = set()
        self._capacity = asyncio.Semaphore(context.limits.handlers_running_max)

    def __len__(self) -> int:
        return len(self._running)

    async def request(self, subject: str, payload: bytes, deadline: float) -> bytes:
        """Call the handler and return its reply."""
        self._context.counters.local_requests += 1
        subscription = self._subscriptions.by_subject.get(subject)
        if subscription is None or subscription.one_way:
            self._context.counters.no_handler += 1
            answer = (consumer_answer if subscription else no_handler_answer)(subject)
        else:
            handled = await self._handle(subscription, payload, deadline)
            if isinstance(handled, bytes):
                return handled
            answer = handled
        raise error_of(_to_reply(answer), subject)

    async def _handle(
        self, subscription: Subscription, payload: bytes, deadline: float
    ) -> bytes | Answer:
        message = Message(payload, subscription.subject, self._address, self._name, deadline)
        reaction = react(subscription, message)
        if not isinstance(reaction, bytes | Answer):
            try:
                async with asyncio.timeout_at(deadline):
                    reaction = await finish(reaction, subscription)
            except TimeoutError:
                self._context.counters.handlers_timed_out += 1
                raise RequestTimeout("no reply in time") from None
        if isinstance(reaction, Answer):
            self._context.counters.handlers_failed += 1
        elif len(reaction) > self._context.limits.frame_bytes_max:
            return reply_too_large_answer(len(reaction), self._context.limits.frame_bytes_max)
        return reaction

    async def send(self, subject: str, payload: bytes) -> None:
        """Hand over a one-way message; waits while too many are being handled."""
        self._context.counters.local_requests += 1
        subscription = self._subscriptions.by_subject.get(subject)
        if subscription is None:
            self._context.counters.no_handler += 1
            self._warn(subject, "dropped a message from this node: no handler for %r", subject)
            return
        await self._capacity.acquire()
        reaction = react(subscription, Message(payload, subject, self._address, self._name))
        if isinstance(reaction, bytes | Answer):
            self._capacity.release()
            self._report(subject, reaction)
            return
        task = asyncio.get_running_loop().create_task(self._consume(subscription, reaction))
        self._running.add(task)
        task.add_done_callback(self._on_done)

    async def _consume(self, subscription: Subscription, awaitable: Awaitable[Result]) -> None:
        try:
            async with asyncio.timeout(self._context.limits.handler_timeout_s):
                answer = await finish(awaitable, subscription)
        except TimeoutError:
            self._context.counters.handlers_timed_out += 1
            return
        self._report(subscription.subject, answer)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._capacity.release()

    def _report(self, subject: str, answer: bytes | Answer) -> None:
        if isinstance(answer, Answer):
            self._context.counters.handlers_failed += 1
            text = answer.payload.decode()
            self._warn(subject, "the handler of one-way %r failed: %s", subject, text)

    def _warn(self, subject: str, text: str, *args: object) -> None:
        now = asyncio.get_running_loop().time()
        self._context.warn(f"local {subject}", now, text, *args)

    async def close(self, grace_s: float) -> None:
        """Let handlers finish for a while, then cancel them."""
        if self._running:
            _, late = await asyncio.wait(set(self._running), timeout=grace_s)
            for task in late:
                task.cancel()


def _to_reply(answer: Answer) -> Reply:
    return Reply(0, answer.status, answer.payload, answer.code, answer.retryable)
