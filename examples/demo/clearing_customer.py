"""The node that posts payments to be cleared, and notes what comes back.

It notes what it posts and what comes back in its database, each together with its message. The
tables have no unique keys: a payment that was cleared twice would be seen there twice.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec

from postroad import MessagingService
from postroad.durable import Mail, Message, SqliteStore, StaticDirectory, Transaction

from .clearing import make_order
from .payments import CONFIG
from .pipe import Orders, tell
from .records import Command, Posting, Ready, Resting

# So many payments are posted together, so often, as long as not too many wait.
PORTION = 50
PAUSE_S = 0.1
BACKLOG_MAX = 8_000
CONCURRENCY = 64

_TABLES = (
    "CREATE TABLE posted (number INTEGER, bank TEXT, amount TEXT, at_s REAL)",
    "CREATE TABLE cleared (number INTEGER, bank TEXT, cents INTEGER, at_s REAL)",
    "CREATE TABLE totals (bank TEXT, cents INTEGER)",
)


async def post_payments(service: MessagingService, task: Posting, orders: Orders) -> None:
    """Post payments until told to rest, and note what comes back until told to stop."""
    peers = StaticDirectory({task.peer: task.address})
    async with Mail(service, SqliteStore(task.store), directory=peers, config=CONFIG) as mail:
        customer = Customer(mail, task.peer)
        await customer.open()
        tell(Ready(address=str(service.address)))
        await customer.post_until_rest(orders)
        tell(Resting())
        await orders.wait_for(Command.STOP)


class Customer:
    """Has payments cleared."""

    def __init__(self, mail: Mail, peer: str) -> None:
        self._mail = mail
        self._peer = peer
        self._posted = self._cleared = 0

    async def open(self) -> None:
        """Make the tables, and handle what comes back."""
        async with self._mail.transaction() as tx:
            for statement in _TABLES:
                await tx.execute(statement)
        await self._mail.consume(
            "cleared", self._note_cleared, concurrency=CONCURRENCY, ordered_by_key=False
        )
        await self._mail.consume("totals", self._note_total)

    async def post_until_rest(self, orders: Orders) -> None:
        """Post payments, but not more than the other node will clear before long."""
        resting = asyncio.create_task(orders.wait_for(Command.REST))
        while not resting.done():
            if self._posted - self._cleared < BACKLOG_MAX:
                await self._post(range(self._posted + 1, self._posted + PORTION + 1))
            await asyncio.wait((resting,), timeout=PAUSE_S)

    async def _post(self, numbers: range) -> None:
        now_s = time.monotonic()
        made = [make_order(number) for number in numbers]
        rows = [value for it in made for value in (it.number, it.bank, it.amount, now_s)]
        places = ", ".join(["(?, ?, ?, ?)"] * len(made))
        async with self._mail.transaction() as tx:
            await tx.execute(f"INSERT INTO posted VALUES {places}", rows)
            for it in made:
                body = {"number": it.number, "bank": it.bank, "amount": it.amount}
                tx.post(self._peer, "payments", msgspec.json.encode(body))
        self._posted += len(made)

    async def _note_cleared(self, message: Message, tx: Transaction) -> None:
        it: dict[str, Any] = msgspec.json.decode(message.body)
        row = (it["number"], it["bank"], it["cents"], time.monotonic())
        await tx.execute("INSERT INTO cleared VALUES (?, ?, ?, ?)", row)
        self._cleared += 1

    async def _note_total(self, message: Message, tx: Transaction) -> None:
        it: dict[str, Any] = msgspec.json.decode(message.body)
        await tx.execute("INSERT INTO totals VALUES (?, ?)", (it["group"], it["value"]))
