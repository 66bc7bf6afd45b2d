"""Mail on its way into a node: its commit held, and a consumer that is ready for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from postroad.durable import Handler, Message, Transaction
from postroad.durable.intake import Acceptance
from tests.support.durable.held_commits import HeldCommit, held_commit
from tests.support.durable.mail_pairs import Station, until_empty, until_waiting


@contextmanager
def held_arrival() -> Iterator[HeldCommit]:
    """The first commit of mail from another node is held."""
    with held_commit(lambda unit: isinstance(unit, Acceptance)) as commit:
        yield commit


async def consume(station: Station, handler: Handler, **options: Any) -> None:
    """Handle a queue, and return when its consumer has read all that is in it."""
    is_ready = asyncio.Event()

    def handle(message: Message, tx: Transaction) -> object:
        if message.body == b"ready":
            is_ready.set()
            return None
        return handler(message, tx)

    await station.mail.consume("orders", handle, **options)
    await station.mail.post(station.name, "orders", b"ready")
    await is_ready.wait()
    await until_waiting(station.mail, "orders", 0)


async def until_settled(alpha: Station, beta: Station) -> None:
    """Everything was delivered and handled."""
    await until_empty(alpha.mail, "beta")
    await until_waiting(beta.mail, "orders", 0)
