"""Messages that were handled and whose acknowledgement is not on disk yet are bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from postroad.durable.consumers.disposition import DispositionMutation
from tests.support.deadlines import eventually
from tests.support.durable.held_commits import held_commit
from tests.support.durable.mail_pairs import QUICK, running_station

MESSAGES, UNCOMMITTED_MAX = 20, 3


async def test_consumer_with_too_much_uncommitted_handles_nothing_more(tmp_path: Path) -> None:
    config = msgspec.structs.replace(QUICK, uncommitted_acks_max=UNCOMMITTED_MAX)
    handled: list[bytes] = []
    async with running_station("alpha", tmp_path, config=config) as alpha:
        for number in range(MESSAGES):
            await alpha.mail.send("orders", b"%d" % number, to="alpha")

        def handle(message: Any, tx: Any) -> None:
            handled.append(message.body)

        with held_commit(lambda unit: isinstance(unit, DispositionMutation)) as commit:
            await alpha.mail.consume("orders", handle)
            await commit.begun()
            consumption = alpha.mail.dispatchers.get("orders")
            await eventually(lambda: consumption.uncommitted >= UNCOMMITTED_MAX)
            # Whatever could be handled now would be within these turns of the loop.
            for _ in range(100):
                await asyncio.sleep(0)
            assert len(handled) == UNCOMMITTED_MAX
        await eventually(lambda: len(handled) == MESSAGES, "the rest is handled")
    assert handled == [b"%d" % number for number in range(MESSAGES)]
