"""The services that nodes offer. Every handler writes into the books what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from postroad.services import Context, Service, action, event
from postroad.services.errors import MoleculerClientError, MoleculerRetryableError
from postroad.testing import require
from tests.simulation.brokers.books import content_of

if TYPE_CHECKING:
    from tests.simulation.brokers.branch import Branch

EVENT = "order.made"
AUDIT = "audit"
REFUSED = "REFUSED"
BROKEN = "BROKEN"
CHUNK_BYTES = 40_000


class Offer(Service):
    """A service of a node in the simulation."""

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.books = branch.books
        self.is_open = False

    async def started(self) -> None:
        self.is_open = True

    async def stopped(self) -> None:
        self.is_open = False

    @contextmanager
    def at_work(self, what: str) -> Iterator[str]:
        """A handler runs, in this life; it must be over when the node is."""
        branch = self.branch
        require(not branch.is_over, f"{branch} is gone, and begins with {what}")
        branch.at_work += 1
        try:
            yield branch.life
        finally:
            branch.at_work -= 1

    @contextmanager
    def running(self, number: int) -> Iterator[str]:
        """An action runs; only a service that is started can do that."""
        require(self.is_open, f"{self} of {self.branch} is stopped, and is called")
        with self.at_work(f"call {number}") as life:
            self.books.begin(number, life)
            yield life

    async def handle(self, ctx: Context, group: str) -> None:
        """Handle an event, after a while; fail if it says so."""
        number = ctx.params["number"]
        with self.at_work(f"event {number}") as life:
            who = f"{life} {self.name}"
            self.books.get(number, group, who)
            await asyncio.sleep(ctx.params["seconds"])
            if ctx.params["fails"]:
                raise MoleculerClientError("the handler refuses", 422, REFUSED)
            self.books.handle(number, group, who)


class Quick(Offer):
    """Answers at once."""

    name = "quick"

    @action
    def double(self, ctx: Context, number: int, value: int) -> Any:
        with self.running(number) as life:
            return self.books.answer(number, life, 2 * value)

    @action
    async def refuse(self, ctx: Context, number: int) -> Any:
        with self.running(number):
            raise MoleculerClientError("never", 422, REFUSED, {"number": number})

    @action
    async def hesitate(self, ctx: Context, number: int) -> Any:
        """Succeeds when it is asked once more."""
        with self.running(number) as life:
            if len(self.books.begun[number]) == 1:
                raise MoleculerRetryableError("not yet")
            return self.books.answer(number, life)

    @action
    async def relay(self, ctx: Context, number: int, seconds: float) -> Any:
        """Ask another service."""
        with self.running(number) as life:
            inner = self.books.ask()
            request = {"number": inner, "seconds": seconds}
            self.books.check_result(inner, await ctx.call("slow.wait", request))
            return self.books.answer(number, life)

    @event(EVENT)
    async def note(self, ctx: Context) -> None:
        await self.handle(ctx, self.name)


class Slow(Offer):
    """Takes its time."""

    name = "slow"

    @action
    async def wait(self, ctx: Context, number: int, seconds: float) -> Any:
        with self.running(number) as life:
            await asyncio.sleep(seconds)
            return self.books.answer(number, life)

    @event(EVENT, group=AUDIT)
    async def audit(self, ctx: Context) -> None:
        await self.handle(ctx, AUDIT)


class Files(Offer):
    """Takes and gives streams."""

    name = "files"

    @action
    async def get(self, ctx: Context, number: int, size: int, breaks: bool) -> Any:
        with self.running(number):
            return chunks_of(number, size, breaks=breaks)

    @action
    async def put(self, ctx: Context, number: int, size: int) -> Any:
        with self.running(number) as life:
            assert ctx.stream is not None
            came = await read_whole(ctx.stream, number, size)
            return self.books.answer(number, life, came)

    @event(EVENT, group=AUDIT)
    async def audit(self, ctx: Context) -> None:
        await self.handle(ctx, AUDIT)


OFFERS: dict[str, type[Offer]] = {offer.name: offer for offer in (Quick, Slow, Files)}


async def chunks_of(number: int, size: int, *, breaks: bool) -> AsyncIterator[bytes]:
    """The chunks of a stream; it may break off before its end."""
    whole = content_of(number, size)
    end = size // 2 if breaks else size
    for at in range(0, end, CHUNK_BYTES):
        yield whole[at : min(end, at + CHUNK_BYTES)]
        await asyncio.sleep(0.01)
    if breaks:
        raise MoleculerClientError("the stream breaks off", 500, BROKEN)


async def read_whole(stream: Any, number: int, size: int) -> int:
    """Read a stream to its end, and see that nothing else comes than what was sent."""
    whole, came = content_of(number, size), 0
    async for chunk in stream:
        require(chunk == whole[came : came + len(chunk)], f"stream {number} is wrong at {came}")
        came += len(chunk)
    require(came == size, f"stream {number} ended after {came} of {size} bytes")
    return came
