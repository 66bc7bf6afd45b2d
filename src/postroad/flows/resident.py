"""A flow that is in memory."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from .asks import Ask
from .commit import Lane
from .events import Event
from .life import Status

if TYPE_CHECKING:
    from postroad.durable import Transaction
    from postroad.durable.store import Store

    from .commit import FlowCommit
    from .handle import Flow
    from .machine import Machine
    from .steps import StepTransaction

_LOOK_S = 0.001

Wish = tuple[Event, asyncio.Future[None] | None]
"""An event, with whoever wants to know when what follows from it is durable."""


class Resident:
    """What a node has of a flow besides what is in the store.

    Attributes:
        machine: None while it is read.
        flow: what its code works with.
        lane: broken when something could not be committed.
        pending: commits that are under way.
        newest: the last of them.
        wishes: events that wait until it was read.
        pins: how many need it to stay in memory.
        timer: for the time it must be looked at.
        tx: the transaction whose statements run; nothing else happens meanwhile.
        step_txs: those of steps.
        held: commits that wait for one of them, which would come before them otherwise.
        is_counted: whether it is one of those that may run at the same time.
        was_counted: the same of what is in the store.
    """

    __slots__ = (
        "flow",
        "gap_waiters",
        "held",
        "id",
        "is_counted",
        "is_read",
        "lane",
        "machine",
        "newest",
        "pending",
        "pins",
        "step_txs",
        "timer",
        "tx",
        "was_counted",
        "wishes",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        self.machine: Machine | None = None
        # Resolved when it was read, or could not be.
        self.is_read: asyncio.Future[None] | None = None
        # Resolved when no block is open.
        self.gap_waiters: list[asyncio.Future[None]] = []
        self.flow: Flow | None = None
        self.lane = Lane()
        self.pending = 0
        self.newest: FlowCommit | None = None
        self.wishes: deque[Wish] = deque()
        self.pins = 0
        self.timer: asyncio.TimerHandle | None = None
        self.tx: Transaction | None = None
        self.step_txs: list[StepTransaction] = []
        self.held: list[FlowCommit] = []
        self.is_counted = False
        self.was_counted = False

    @property
    def is_idle(self) -> bool:
        """Whether it may leave the memory."""
        is_busy = self.pending or self.wishes or self.pins or self.tx is not None
        return not is_busy and self.machine is not None

    @property
    def is_sound(self) -> bool:
        """Whether it was read, and nothing of it is lost or put away."""
        machine = self.machine
        return machine is not None and not machine.is_spent and not self.lane.is_broken

    @property
    def can_handle(self) -> bool:
        """Whether it can take up events."""
        return self.is_sound and self.tx is None

    @property
    def is_at_rest(self) -> bool:
        """Whether it was read, and does not run; all of that is durable."""
        machine = self.machine
        is_durable = not self.pending and not self.lane.is_broken
        return is_durable and machine is not None and machine.head.status is not Status.RUNNING

    def take_wishes(self) -> list[Wish]:
        """The events that wait, in order."""
        wishes = list(self.wishes)
        self.wishes.clear()
        return wishes

    def take_held(self) -> list[FlowCommit]:
        """The commits that were held, in order."""
        held, self.held = self.held, []
        return held

    def release(self, store: Store) -> None:
        """Submit what was held, unless the transaction of a step comes before it."""
        if self.step_txs and any(it.is_begun and not it.is_lost for it in self.step_txs):
            return
        for unit in self.take_held():
            store.submit(unit)

    def still_asked(self, asks: list[Ask]) -> list[Ask]:
        """Those of them that the code waits for now."""
        machine = self.machine
        return [] if machine is None else [it for it in asks if machine.waits_for(it)]

    async def wait_until_read(self) -> None:
        """Wait until it was read, or will not be."""
        if self.machine is None:
            if self.is_read is None:
                self.is_read = asyncio.get_running_loop().create_future()
            await asyncio.shield(self.is_read)

    async def pin(self) -> None:
        """Stay in memory, and wait until it was read and is in no block, or will not be read."""
        self.pins += 1
        try:
            await self.wait_until_read()
            await self._wait_for_gap()
        except asyncio.CancelledError:
            self.pins -= 1
            raise

    async def _wait_for_gap(self) -> None:
        """Wait until no block is open; the next one opens no sooner than the waiter ran."""
        while self.tx is not None:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.gap_waiters.append(waiter)
            await waiter

    def announce_gap(self) -> bool:
        """Wake those who wait until no block is open; whether there were any."""
        waiters, self.gap_waiters = self.gap_waiters, []
        for waiter in waiters:
            resolve(waiter)
        return bool(waiters)

    async def is_durable(self) -> bool:
        """Wait for what it did so far to be durable; whether it is, or was undone."""
        newest = self.newest
        while newest is not None and not newest.is_settled:  # noqa: ASYNC110  # It is a moment.
            await asyncio.sleep(_LOOK_S)
        return not self.lane.is_broken

    def on_read(self) -> None:
        """It was read, or will not be."""
        if self.is_read is not None and not self.is_read.done():
            self.is_read.set_result(None)

    def undo(self) -> None:
        """Give up the transaction that is open, if one is."""
        if self.tx is not None:
            self.tx.undo()
            self.tx = None
        self.announce_gap()

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def __repr__(self) -> str:
        what = "being read" if self.machine is None else self.machine.head.status
        return f"<Resident {self.id:x} {what}, {self.pending} commits under way>"


def heed(done: asyncio.Future[None]) -> None:
    """Look at what came of something, which whoever asked may have given up to wait for."""
    if not done.cancelled():
        done.exception()


def resolve(done: asyncio.Future[None] | None) -> None:
    """Tell whoever waits, if somebody does, that it is durable."""
    if done is not None and not done.done():
        done.set_result(None)


def fail(done: asyncio.Future[None] | None, error: Exception) -> None:
    """Tell whoever waits, if somebody does, that it was not done."""
    if done is not None and not done.done():
        done.set_exception(error)
