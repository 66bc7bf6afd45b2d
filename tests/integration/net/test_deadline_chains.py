"""Deadlines over a chain of requests: b asks c while it handles what a asks.

What is promised: the peer knows how long its caller will wait (`Message.deadline`), so that it can
give the rest to whomever it asks itself; and nobody works on once the first caller has given up,
whatever time they were given.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from postroad.core.errors import (
    ConnectionClosedError,
    NotRunningError,
    RemoteHandlerError,
    ReplyTimeoutError,
)
from postroad.net import MessagingService, RawMessage
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import Gate, make_service
from tests.support.net.raw_peers import on_loops

on_all_loops = on_loops("asyncio", "uvloop", "memory")


class Chain(NamedTuple):
    """a asks b, and b asks c."""

    a: MessagingService
    b: MessagingService
    c: MessagingService
    gate: Gate
    """The handler of c."""
    requests: list[RawMessage]
    """What b got."""

    def ask(self, subject: str, timeout: float) -> asyncio.Task[bytes]:
        return asyncio.create_task(self.a.request(self.b.address, subject, timeout=timeout))

    async def nobody_works(self) -> None:
        await eventually(lambda: self.gate.cancelled == 1, "c stops")
        assert self.gate.finished == 0
        services = (self.a, self.b, self.c)
        await eventually(
            lambda: not any(service.statistics().handlers_running for service in services)
        )
        await eventually(
            lambda: not any(service.statistics().requests_pending for service in services)
        )


@asynccontextmanager
async def running_chain() -> AsyncIterator[Chain]:
    """b's handlers: `rest` gives c what is left of its time, `long` much more than that."""
    async with make_service("a") as a, make_service("b") as b, make_service("c") as c:
        gate, requests = Gate(), list[RawMessage]()
        c.serve("gate", gate)

        async def pass_on(message: RawMessage) -> bytes:
            requests.append(message)
            assert message.deadline is not None
            left_s = message.deadline - asyncio.get_running_loop().time()
            timeout = left_s if message.subject == "rest" else DEADLINE_S
            return await b.request(c.address, "gate", timeout=timeout)

        for subject in ("rest", "long"):
            b.serve(subject, pass_on)
        yield Chain(a, b, c, gate, requests)


@on_all_loops
async def test_deadline_chain_last_node_gets_remaining_time() -> None:
    async with running_chain() as chain:
        before = asyncio.get_running_loop().time()
        request = chain.ask("rest", DEADLINE_S)
        await eventually(lambda: chain.gate.waiting == 1, "c works")
        now = asyncio.get_running_loop().time()
        first, last = chain.requests[0].deadline, chain.gate.messages[0].deadline
        assert first is not None and last is not None
        # All share one clock here. Times are told in whole milliseconds, and arrive a bit later.
        assert before + DEADLINE_S - 0.01 <= first
        assert last - first <= now - before
        chain.gate.open()
        assert await request == b"done"


@on_all_loops
@pytest.mark.parametrize("subject", ["rest", "long"])
@pytest.mark.parametrize("how", ["time-out", "cancel", "stop"])
async def test_deadline_chain_cancelled_caller_cancels_all_handlers(subject: str, how: str) -> None:
    async with running_chain() as chain:
        request = chain.ask(subject, 0.4 if how == "time-out" else DEADLINE_S)
        await eventually(lambda: chain.gate.waiting == 1, "c works")
        if how == "cancel":
            request.cancel()
        elif how == "stop":
            await chain.a.stop(grace=0)
        with pytest.raises((ReplyTimeoutError, asyncio.CancelledError, NotRunningError)):
            await request
        await chain.nobody_works()


@on_all_loops
async def test_deadline_chain_lost_last_node_fails_first_caller() -> None:
    async with running_chain() as chain:
        request = chain.ask("long", DEADLINE_S)
        await eventually(lambda: chain.gate.waiting == 1, "c works")
        await chain.c.stop(grace=0)
        with pytest.raises(RemoteHandlerError) as caught:
            await request
        assert caught.value.remote_code == ConnectionClosedError.code
