"""One guaranteed queue at one domain: the way out, and the way in.

Messages that are sent here wait in the durable queue `cells.out.NAME` of this node. Each is sent
to `cells.in.NAME` of a domain that consumes the queue, in one transaction with its acknowledgement.
There it is handed to a cell, whose writes are one transaction with its acknowledgement. If no cell
consumes the queue there any more, it goes back to `cells.out.NAME` of that domain, and on.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable

import msgspec

from postroad.cells import CellBusyError, CellDomain, NoRouteError
from postroad.cells.delivery.envelope import Envelope
from postroad.core import fault_points as faults
from postroad.core.errors import Reject, RemoteDecodeError, RemoteHandlerError
from postroad.durable import DurableQueues, Message, RetryPolicy, Transaction

from .config import GuaranteedConfig
from .consumers import Directions, own_consumers, rank_cells
from .content import aged, read_message

PASSED = faults.declare_fault_point("node.guaranteed.passed")
HANDED_OVER = faults.declare_fault_point("node.guaranteed.handed_over")

_OUT = "cells.out."
_IN = "cells.in."
# A message that nobody consumes stays in hand for so long; then another one has its turn.
_IN_HAND_S = 30.0
# Nobody lives long enough to see so many.
_ATTEMPTS = 1 << 30


class Desk:
    """Sends on what leaves by a queue, and hands over what came by it."""

    def __init__(
        self,
        queue: str,
        domain: CellDomain,
        queues: DurableQueues,
        directions: Directions,
        config: GuaranteedConfig,
    ) -> None:
        self.queue = queue
        self.outgoing = _OUT + queue
        self.incoming = _IN + queue
        self._domain = domain
        self._queues = queues
        self._directions = directions
        self._config = config
        self._loop = asyncio.get_running_loop()
        # Until then messages wait for a cell, which may just be about to start; set by the first of
        # them that finds none.
        self._patient_until: float | None = None

    async def open(self) -> None:
        """Begin to send on."""
        # It sends on at the pace of its commits; more at a time would only mix them up.
        config = self._config
        endless = RetryPolicy(
            max_attempts=_ATTEMPTS,
            initial_delay_s=config.look_first_s,
            max_delay_s=config.look_max_s,
        )
        await self._queues.consume(self.outgoing, self.send_on, retry=endless)

    async def receive(self, retry: RetryPolicy, concurrency: int) -> None:
        """Begin to hand over."""
        self._patient_until = None
        await self._queues.consume(
            self.incoming, self.hand_over, concurrency=concurrency, retry=retry
        )

    async def rest(self, grace_s: float) -> None:
        """Hand nothing over any more; what cells are at may be finished."""
        await self._queues.stop_consuming(self.incoming, grace_s)

    async def close(self, grace_s: float) -> None:
        """Let messages rest; those that cells are at may be finished."""
        # What is being sent on has had no effect yet.
        await self._queues.stop_consuming(self.outgoing, 0.0)
        await self.rest(grace_s)

    # The way out.

    def send_on(self, message: Message, tx: Transaction) -> Awaitable[None] | None:
        """Post a message to a domain that consumes the queue, as soon as there is one."""
        envelope, body = read_message(message.body, self.queue, message.sender)
        consumers = self._directions.known(self.queue)
        if not consumers:
            return self._send_on_later(message, envelope, body, tx)
        domain = self._directions.choose(consumers, _key_of(message))
        self._pass(domain, self.incoming, message, envelope, body, tx)
        return None

    async def _send_on_later(
        self, message: Message, envelope: Envelope, body: bytes, tx: Transaction
    ) -> None:
        in_hand_s = min(_IN_HAND_S, self._queues.config.handler_timeout_s / 2)
        consumers = await self._directions.wait(self.queue, in_hand_s)
        if not consumers:
            raise NoRouteError(f"nobody consumes queue {self.queue!r}")
        domain = self._directions.choose(consumers, _key_of(message))
        self._pass(domain, self.incoming, message, envelope, body, tx)

    def _pass(
        self,
        domain: str,
        queue: str,
        message: Message,
        envelope: Envelope,
        body: bytes,
        tx: Transaction,
    ) -> None:
        body, ttl_s = aged(body, envelope, time.time() - message.received_at)
        tx.send(queue, body, to=domain, key=message.key, ttl=ttl_s)
        PASSED.hit(domain=domain, queue=queue)

    # The way in.

    async def hand_over(self, message: Message, tx: Transaction) -> None:
        """Have a cell handle a message, or send it on if none consumes the queue any more."""
        envelope, body = read_message(message.body, self.queue, message.sender)
        # Whether it came in time is the mail's to say, which knows when it was posted. A cell has
        # as long as the mail waits for it; what it has not begun with by then, it shall not begin.
        timed = msgspec.structs.replace(
            envelope, ttl_ms=round(self._queues.config.handler_timeout_s * 1000)
        )
        for attempt in itertools.count(1):
            cells = await self._wait_for_cells()
            if not cells:
                self._pass(self._domain.name, self.outgoing, message, envelope, body, tx)
                return
            if await self._try(rank_cells(cells, _key_of(message)), timed, tx):
                return
            await asyncio.sleep(self._directions.pause_s(attempt))

    async def _wait_for_cells(self) -> list[str]:
        while not (cells := own_consumers(self._domain, self.queue)):
            if self._patient_until is None:
                self._patient_until = self._loop.time() + self._config.patience_s
            left_s = self._patient_until - self._loop.time()
            if left_s <= 0:
                return []
            await self._directions.routes_changed(left_s)
        self._patient_until = None
        return cells

    async def _try(self, cells: list[str], envelope: Envelope, tx: Transaction) -> bool:
        """Have the first cell handle a message that can; False if none can at the moment."""
        for cell in cells:
            try:
                await self._domain.deliver_local(
                    cell,
                    envelope,
                    name=self.queue,
                    timeout=self._queues.config.handler_timeout_s,
                    transaction=tx,
                )
            except (CellBusyError, NoRouteError):
                # It was not handled: whatever a handler raises comes as something else.
                continue
            except RemoteDecodeError as error:
                raise Reject(error.detail) from error
            except RemoteHandlerError as error:
                if error.remote_code == Reject.code:
                    raise Reject(error.detail) from error
                raise
            HANDED_OVER.hit(cell=cell)
            return True
        return False


def _key_of(message: Message) -> bytes:
    """What decides who gets a message: its key, or else anything that differs."""
    return (str(message.id) if message.key is None else message.key).encode()
