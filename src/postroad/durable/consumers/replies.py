"""Requests that wait for their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from postroad.durable.consumers.message import Message
from postroad.durable.telemetry import RateTotals
from postroad.durable.transaction import Transaction


class ReplyWaiters:
    """Passes each reply to its request, if that still waits."""

    def __init__(self, totals: RateTotals) -> None:
        self._totals = totals
        # By request id: the peer, and the future of the reply.
        self._waiters: dict[int, tuple[str, asyncio.Future[Message]]] = {}

    @contextmanager
    def expect(self, request: int, peer: str) -> Iterator[asyncio.Future[Message]]:
        """Yield a future for the reply to a request."""
        reply: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._waiters[request] = (peer, reply)
        try:
            yield reply
        finally:
            del self._waiters[request]

    def on_reply(self, message: Message, tx: Transaction) -> None:
        """Handle a message of the queue of replies."""
        waiter = None if message.in_reply_to is None else self._waiters.get(message.in_reply_to)
        # Ids can be guessed, the names of senders cannot.
        if waiter is None or waiter[0] != message.sender or waiter[1].done():
            self._totals.unclaimed_replies += 1
        else:
            waiter[1].set_result(message)
