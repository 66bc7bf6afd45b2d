"""What operators do with the flows of a node meanwhile; none of it may lose or double anything."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random
from zlib import crc32

from postroad.core.errors import PostroadError
from postroad.flows import FlowService
from postroad.flows.admin import FlowView
from postroad.flows.machine.status import FlowStatus
from postroad.flows.sessions.messages import QUEUE
from postroad.testing import require
from tests.simulation.flows.bank import AMOUNT
from tests.simulation.flows.clerks import Books, Garbage

logger = logging.getLogger("tests.simulation.flows")

_LOOK_INTERVAL_S = 0.5
EXCUSES = (
    "FlowParkedError: the process died",
    "SerializationError: what step 'scribble' returned cannot be serialized",
    "this node has no flow called",
)
"""Why a flow may wait for an operator, if nothing is wrong with it."""
# Those of them that are gone when the flow is tried again.
_PASSING = EXCUSES[:2]


class Wishes:
    """What shall be done at one node; kept by the test, so that no crash can take it away.

    Attributes:
        rests: for how long some flow shall rest, each once.
        kills: how many shall be killed.
        looks: how often all shall be looked at.
        strikes: how often the process shall be killed that has just told a client something.
        is_draining: whether no new ones shall be begun.
        garbage: what shall be posted, each once.
        excuses: why flows may be parked.
    """

    def __init__(self) -> None:
        self.rests: list[float] = []
        self.kills = 0
        self.looks = 0
        self.strikes = 0
        self.is_draining = False
        self.garbage: list[Garbage] = []
        self.excuses: Sequence[str] = EXCUSES
        # By the id of a flow, until when it rests.
        self.resting: dict[str, float] = {}

    def clear(self) -> None:
        self.rests.clear()
        self.garbage.clear()
        self.resting.clear()
        self.kills = self.looks = self.strikes = 0
        self.is_draining = False


class Operator:
    def __init__(self, flows: FlowService, wishes: Wishes, books: Books, rng: Random) -> None:
        self._flows = flows
        self._books = books
        self._wishes = wishes
        self._rng = rng
        self._is_draining = False
        self._acts = (
            *(self._help, self._resume, self._pause, self._kill, self._drain, self._look),
            self._litter,
        )

    async def work(self) -> None:
        while True:
            for act in self._acts:
                try:
                    await act()
                except PostroadError as error:
                    # It has ended meanwhile, or the store is away.
                    logger.debug("operator: %s", error)
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def _some(self) -> FlowView | None:
        views = await self._flows.admin.list()
        living = [view for view in views if view.ended_at is None]
        return self._rng.choice(living) if living else None

    async def _help(self) -> None:
        for view in await self._flows.admin.list(FlowStatus.PARKED):
            check_parked(view, self._wishes.excuses)
            if any(error in (view.error or "") for error in _PASSING):
                await self._flows.admin.retry(view.id)

    async def _resume(self) -> None:
        now = asyncio.get_running_loop().time()
        for view in await self._flows.admin.list(FlowStatus.PAUSED):
            if self._wishes.resting.get(view.id, 0.0) <= now:
                await self._flows.admin.resume(view.id)

    async def _pause(self) -> None:
        if not self._wishes.rests:
            return
        view = await self._some()
        # Nothing may be wished any more by now.
        if view is not None and self._wishes.rests:
            lasting_s = self._wishes.rests.pop()
            until = asyncio.get_running_loop().time() + lasting_s
            self._wishes.resting[view.id] = until
            await self._flows.admin.pause(view.id)

    async def _kill(self) -> None:
        if not self._wishes.kills:
            return
        view = await self._some()
        if view is not None and self._wishes.kills:
            self._wishes.kills -= 1
            if crc32(view.id.encode()) % 2:
                await self._flows.admin.kill(view.id)
            else:
                await self._flows.admin.cancel(view.id)

    async def _drain(self) -> None:
        should_drain = self._wishes.is_draining
        if should_drain and not self._is_draining:
            self._is_draining = True
            await self._flows.execution.drain(timeout=0.1)
        elif self._is_draining and not should_drain:
            await self._flows.execution.undrain()
            self._is_draining = False

    async def _look(self) -> None:
        if not self._wishes.looks:
            return
        self._wishes.looks -= 1
        for view in await self._flows.admin.list():
            shown = await self._flows.admin.show(view.id)
            require(shown.name == view.name, f"{view} is shown as {shown}")
            steps = await self._flows.admin.history(view.id)
            numbers = [step.number for step in steps]
            require(numbers == list(range(len(steps))), f"{view.id} has steps {numbers}")
            if view.name == "approve" and view.status is FlowStatus.RUNNING:
                amount = await self._flows.query(view.id, AMOUNT)
                require(amount > 0, f"{view.id} answers {amount}")

    async def _litter(self) -> None:
        while self._wishes.garbage:
            garbage = self._wishes.garbage.pop()
            self._books.garbage[garbage] = False
            await self._flows.queues.send(QUEUE, garbage.body, to=garbage.receiver)
            self._books.garbage[garbage] = True


def check_parked(view: FlowView, excuses: Sequence[str] = EXCUSES) -> None:
    """Nothing but what was done to its node may have a flow wait for an operator."""
    error = view.error or ""
    require(
        any(excuse in error for excuse in excuses),
        f"{view.name} {view.id} is parked: {view.detail}",
    )
