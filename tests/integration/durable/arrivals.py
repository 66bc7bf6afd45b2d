"""Mail on its way into a node: its commit held, and a consumer that is ready for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from postroad.durable import DurableHandler, Message, Transaction
from postroad.durable.bridges.receiver import WindowMutation
from tests.support.durable.held_commits import HeldCommit, held_commit
from tests.support.durable.mail_pairs import Station, until_empty, until_waiting


@contextmanager
def held_arrival() -> Iterator[HeldCommit]:
    """The first commit of mail from another node is held."""
    with held_commit(lambda unit: isinstance(unit, WindowMutation)) as commit:
        yield commit


async def consume(station: Station, handler: DurableHandler, **options: Any) -> None:
    """Handle a queue, and return when its consumer has read all that is in it."""
    is_ready = asyncio.Event()

    def handle(message: Message, tx: Transaction) -> object:
        if message.body == b"ready":
            is_ready.set()
            return None
        return handler(message, tx)

    await station.mail.consume("orders", handle, **options)
    await station.mail.send("orders", b"ready", to=station.name)
    await is_ready.wait()
    await until_waiting(station.mail, "orders", 0)


async def until_settled(alpha: Station, beta: Station) -> None:
    """Everything was delivered and handled."""
    await until_empty(alpha.mail, "beta")
    await until_waiting(beta.mail, "orders", 0)


async def introduce(alpha: Station, beta: Station) -> None:
    """Have one node know how far it has the mail of another, and have nothing else to do."""
    await alpha.mail.send("orders", b"ready", to="beta")
    await until_settled(alpha, beta)
