"""A receiver that stops while it looks messages up."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from postroad.flows.inbox.queue_receiver import QueueReceiver


class Receiver(QueueReceiver):
    def dispatch(self, entry: Any) -> None:
        self.look_up(entry, self.handle, "body")

    async def handle(self, entry: Any, body: str) -> None:
        await asyncio.Event().wait()


async def test_lookups_that_are_cancelled_requeue_their_messages_begun_or_not() -> None:
    requeued: list[str] = []
    engine: Any = SimpleNamespace()
    dispatcher: Any = SimpleNamespace(requeue=requeued.append)
    receiver = Receiver(engine, "flows")
    receiver.dispatcher = dispatcher
    receiver._task = asyncio.get_running_loop().create_task(asyncio.sleep(60))
    receiver.dispatch("begun")
    await asyncio.sleep(0)
    receiver.dispatch("not begun")
    await receiver.stop()
    assert sorted(requeued) == ["begun", "not begun"]
