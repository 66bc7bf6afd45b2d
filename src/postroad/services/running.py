"""Actions of this node at work: counted, and with a time limit that costs only those who wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Iterable, Set
from types import CoroutineType, coroutine
from typing import Any

from .context import Context
from .errors import RequestTimeoutError
from .ways import Handler

_CANCEL_S = 1.0


class Activity:
    """How much runs, and when nothing does."""

    __slots__ = ("_idle", "running")

    def __init__(self) -> None:
        self.running = 0
        self._idle: asyncio.Event | None = None

    def leave(self) -> None:
        """One thing less runs."""
        self.running -= 1
        if self._idle is not None and not self.running:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        if self.running:
            idle = self._idle = self._idle or asyncio.Event()
            await idle.wait()
            if self._idle is idle:
                self._idle = None


async def all_idle(activities: Iterable[Activity], timeout_s: float) -> bool:
    """Wait until nothing runs anywhere, at most so long; whether that came.

    What runs at one place may begin something at another.
    """
    places = [*activities]
    try:
        async with asyncio.timeout(timeout_s):
            while busy := [it for it in places if it.running]:
                await busy[0].idle()
    except TimeoutError:
        return False
    return True


async def finish(running: Set[asyncio.Task[Any]], timeout_s: float) -> int:
    """Wait for tasks, then end those that take too long; says how many these were.

    A task that waits for this very thing is left out.
    """
    waiting = running - {asyncio.current_task()}
    if waiting:
        await asyncio.wait(waiting, timeout=timeout_s)
    left = [it for it in waiting if not it.done()]
    for task in left:
        task.cancel()
    if left:
        # Some do not want to end, and must not keep everybody else.
        await asyncio.wait(left, timeout=_CANCEL_S)
    return len(left)


def limited(handler: Handler, activity: Activity) -> Handler:
    """A handler that ends when the time of its call is over.

    A timer is set only for a handler that waits for something.
    """

    async def run(ctx: Context) -> Any:
        activity.running += 1
        try:
            started = handler(ctx)
            if not ctx.timeout_s:
                return await started
            if type(started) is not CoroutineType:
                started = _waiting_for(started)
            try:
                waits_for = started.send(None)
            except StopIteration as done:
                return done.value
            return await within_time(ctx, _rest(started, waits_for))
        finally:
            activity.leave()

    return run


async def within_time(ctx: Context, result: Awaitable[Any]) -> Any:
    """Wait for the result of a call for as long as its time lasts."""
    limit = asyncio.timeout(ctx.timeout_s or None)
    try:
        async with limit:
            return await result
    except TimeoutError:
        if limit.expired():
            data = {"action": ctx.action, "nodeID": ctx.broker.node_id}
            raise RequestTimeoutError(data=data) from None
        raise


async def _waiting_for(result: Awaitable[Any]) -> Any:
    return await result


@coroutine
def _rest(handler: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that made its first step already."""
    while True:
        raised: BaseException | None = None
        sent = None
        try:
            sent = yield waits_for
        except GeneratorExit:
            handler.close()
            raise
        except BaseException as error:
            raised = error
        try:
            waits_for = handler.send(sent) if raised is None else handler.throw(raised)
        except StopIteration as done:
            return done.value
