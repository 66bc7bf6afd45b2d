"""The orders and streams that one node of services makes, and its accounts.

A closed loop: each caller has one order in flight and makes the next when it ended. Most callers
are patient: their broker tries a call again that failed with an error that says it may help. The
others give up.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from typing import Any

from postroad.services import Broker, Context, MoleculerError, RetryPolicy

from .cells_journal import Journal
from .services_journal import Streamed
from .services_offered import CHUNK_BYTES, PRICES, make_history
from .traffic import IMPATIENT_EVERY, Ledger

CALLERS = 32
CUSTOMERS = 50
ORDER_TIMEOUT_S = 4.0
# Patient callers; what fails because a node is gone succeeds at another one.
RETRY = RetryPolicy(is_enabled=True, retries=5, delay_s=0.05, delay_max_s=0.4)
STREAM_CHUNKS = 64
STREAM_BYTES = STREAM_CHUNKS * CHUNK_BYTES
STREAM_EVERY_S = 0.25
# Whoever reads a stream answers when it has read all.
STREAM_TIMEOUT_S = 30.0


class ServicesTraffic:
    """Orders and streams until told to stop."""

    def __init__(self, broker: Broker, journal: Journal) -> None:
        self._broker = broker
        self._journal = journal
        self._is_stopping = False
        # The errors that the tries of an order met so far, by its number.
        self._met: dict[int, list[MoleculerError]] = {}
        self.ledger = Ledger()
        self.streams = 0
        self.stream_bytes = 0

    async def run(self) -> None:
        """Order and stream until `stop`, and let all that is in flight end."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._stream_repeatedly())
            for index in range(CALLERS):
                is_patient = index % IMPATIENT_EVERY != IMPATIENT_EVERY - 1
                group.create_task(self._order_repeatedly(None if is_patient else 0))

    def stop(self) -> None:
        """Make no further orders and streams."""
        self._is_stopping = True

    def meet(self, ctx: Context, error: MoleculerError) -> None:
        """A try of a call met an error."""
        if (order := ctx.params.get("order")) is not None:
            self._met.setdefault(order, []).append(error)

    # Orders.

    async def _order_repeatedly(self, retries: int | None) -> None:
        while not self._is_stopping:
            await self._order(retries)

    async def _order(self, retries: int | None) -> None:
        order, began_s = self.ledger.begin(), time.monotonic()
        symbol, count = [*PRICES][order % len(PRICES)], order % 90 + 10
        customer = f"customer-{order % CUSTOMERS}"
        try:
            reply = await self._broker.call(
                "desk.buy",
                {"order": order, "symbol": symbol, "count": count},
                meta={"customer": customer},
                timeout_s=ORDER_TIMEOUT_S,
                retries=retries,
            )
        except MoleculerError as error:
            self._settle(order, error)
            self.ledger.fail(error)
            return
        self.ledger.answer(
            began_s=began_s,
            now_s=time.monotonic(),
            is_right=_without_maker(reply)
            == {"order": order, "cents": PRICES[symbol] * count, "customer": customer},
            was_retried=self._settle(order, None),
        )

    def _settle(self, order: int, last: MoleculerError | None) -> bool:
        """Count the errors of tries that were made again; tells whether there were any."""
        met = [it for it in self._met.pop(order, []) if it is not last]
        for error in met:
            self.ledger.meet(error)
        return bool(met)

    # Streams.

    async def _stream_repeatedly(self) -> None:
        while not self._is_stopping:
            await self._stream()
            await asyncio.sleep(STREAM_EVERY_S)

    async def _stream(self) -> None:
        """One stream, here or there by turns."""
        self.streams += 1
        number, began_s = self.streams, time.monotonic()
        try:
            size, digest = await (self._fetch(number) if number % 2 else self._send(number))
        except MoleculerError as error:
            self._journal.write(Streamed(number, began_s, time.monotonic(), error=error.name))
            return
        self._journal.write(Streamed(number, began_s, time.monotonic(), size, digest))

    async def _fetch(self, number: int) -> tuple[int, str]:
        digest, size = hashlib.sha256(), 0
        asked = {"number": number, "chunks": STREAM_CHUNKS}
        async with await self._broker.call(
            "quotes.history", asked, timeout_s=ORDER_TIMEOUT_S, retries=0
        ) as stream:
            async for chunk in stream:
                digest.update(chunk)
                size += len(chunk)
                self.stream_bytes += len(chunk)
        return size, digest.hexdigest()

    async def _send(self, number: int) -> tuple[int, str]:
        digest = hashlib.sha256()

        async def chunks() -> AsyncIterator[bytes]:
            async for chunk in make_history(number, STREAM_CHUNKS):
                digest.update(chunk)
                self.stream_bytes += len(chunk)
                yield chunk

        reply = await self._broker.call(
            "quotes.load", {"number": number}, stream=chunks(), timeout_s=STREAM_TIMEOUT_S
        )
        return reply["size"], digest.hexdigest()


def _without_maker(reply: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in reply.items() if key != "by"}
