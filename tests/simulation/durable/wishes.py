"""What people do with the mail of a node meanwhile; none of it may lose or double anything."""

from __future__ import annotations

import asyncio
import logging

from postroad.core.errors import NoSuchDeadLetter, StoreError
from postroad.durable import Mail

logger = logging.getLogger("tests.simulation.durable")

_LOOK_INTERVAL_S = 0.5


class Wishes:
    """What shall be done at one node; kept by the test, so that no crash can take it away.

    Attributes:
        resting: queues of which nothing shall be handled.
        has_hope: whether all dead letters shall be tried again, once.
    """

    def __init__(self) -> None:
        self.resting: set[str] = set()
        self.has_hope = False

    def clear(self) -> None:
        self.resting.clear()
        self.has_hope = False


async def operate(mail: Mail, wishes: Wishes) -> None:
    # What an earlier process was told is still written down.
    told = await _paused(mail)
    while True:
        try:
            await _grant(mail, wishes, told)
        except (StoreError, NoSuchDeadLetter) as error:
            # What cannot be found died and was revived by an attempt that seemed to fail.
            logger.debug("it is tried again: %s", error)
        await asyncio.sleep(_LOOK_INTERVAL_S)


async def _paused(mail: Mail) -> set[str]:
    queues = (await mail.statistics()).queues
    return {name for name, queue in queues.items() if queue.is_paused}


async def _grant(mail: Mail, wishes: Wishes, told: set[str]) -> None:
    for queue in sorted(told - wishes.resting):
        await mail.resume(queue)
        told.remove(queue)
    for queue in sorted(wishes.resting - told):
        told.add(queue)
        await mail.pause(queue)
    if wishes.has_hope:
        await mail.retry_all_dead()
        wishes.has_hope = False
