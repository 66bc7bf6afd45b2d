"""Bulkheads at work: handlers wait for their turn, or are refused."""

from __future__ import annotations

import asyncio

from .bulkheads import Bulkhead, BulkheadConfig, Entry
from .context import Context
from .errors import QueueIsFullError
from .ways import Handler

_Turn = asyncio.Future[None]


def gated(handler: Handler, config: BulkheadConfig, *, place: str, node_id: str) -> Handler:
    """A handler that runs so many times at once, and lets so many others wait."""
    bulkhead: Bulkhead[_Turn] = Bulkhead(config)

    async def run(ctx: Context) -> object:
        turn = asyncio.get_running_loop().create_future()
        entry = bulkhead.enter(turn)
        if entry is Entry.REFUSED:
            raise QueueIsFullError(data={"action": place, "nodeID": node_id})
        if entry is Entry.WAITS:
            await _wait(bulkhead, turn)
        try:
            return await handler(ctx)
        finally:
            _pass_on(bulkhead)

    return run


async def _wait(bulkhead: Bulkhead[_Turn], turn: _Turn) -> None:
    try:
        await turn
    except asyncio.CancelledError:
        if not bulkhead.give_up(turn):
            _pass_on(bulkhead)
        raise


def _pass_on(bulkhead: Bulkhead[_Turn]) -> None:
    """Let the next one run that still wants to."""
    while (turn := bulkhead.leave()) is not None:
        if not turn.done():
            turn.set_result(None)
            return
