"""The services: quotes tell prices, a desk fills orders by them, an audit hears of large ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator

from postroad.services import Context, Service, action, event

from .cells_journal import Journal
from .services_journal import Summed

PRICES = {"AAA": 1_250, "BBB": 730, "CCC": 99, "DDD": 40_215, "EEE": 5_001}
LARGE = "order.large"
LARGE_EVERY = 10
PRICE_TIMEOUT_S = 1.0
CHUNK_BYTES = 64 * 1024


class Quotes(Service):
    """Tells prices, and sends and takes their history; several nodes have it."""

    name = "quotes"

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @action(timeout_s=PRICE_TIMEOUT_S)
    async def price(self, ctx: Context, symbol: str) -> int:
        """The price of one piece; the meta tells whose."""
        ctx.meta["quoted_by"] = ctx.broker.node_id
        return PRICES[symbol]

    @action
    async def history(self, ctx: Context, number: int, chunks: int) -> AsyncIterator[bytes]:
        """A stream of old prices."""
        return self._send(number, chunks)

    async def _send(self, number: int, chunks: int) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        async for chunk in make_history(number, chunks):
            digest.update(chunk)
            yield chunk
        self._journal.write(Summed(number, chunks * CHUNK_BYTES, digest.hexdigest()))

    @action
    async def load(self, ctx: Context, number: int) -> dict[str, int | str]:
        """Read a stream to its end, and tell what was in it."""
        size, digest = 0, hashlib.sha256()
        if ctx.stream is not None:
            async for chunk in ctx.stream:
                size += len(chunk)
                digest.update(chunk)
        self._journal.write(Summed(number, size, digest.hexdigest()))
        return {"size": size, "digest": digest.hexdigest()}

    @event(LARGE)
    async def on_large(self, ctx: Context, number: int) -> None:
        """One node with this service hears of each large order."""
        self.logger.debug("heard of large order %d", number)


class Desk(Service):
    """Fills orders at the price that one of the quotes tells."""

    name = "desk"
    dependencies = ("quotes",)

    async def started(self) -> None:
        self._announced = 0

    @action
    async def buy(self, ctx: Context, order: int, symbol: str, count: int) -> dict[str, int | str]:
        """Fill an order; the customer is in the meta, and so is who told the price."""
        price = await ctx.call("quotes.price", {"symbol": symbol})
        if order % LARGE_EVERY == 0:
            self._announced += 1
            await ctx.emit(LARGE, {"number": self._announced})
        return {
            "order": order,
            "cents": price * count,
            "customer": ctx.meta["customer"],
            "by": ctx.meta["quoted_by"],
        }


class Audit(Service):
    """Hears of large orders, as a group of its own."""

    name = "audit"

    @event(LARGE)
    async def on_large(self, ctx: Context, number: int) -> None:
        """There is one node with this service, so it hears of each."""
        self.logger.debug("heard of large order %d", number)


async def make_history(number: int, chunks: int) -> AsyncIterator[bytes]:
    """Bytes that look like any, and are the same in every run."""
    chance = random.Random(number)
    for _ in range(chunks):
        yield chance.randbytes(CHUNK_BYTES)
