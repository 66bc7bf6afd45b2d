"""Guaranteed queues: messages to cells that are handled once, whatever dies on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from postroad.cells import CellAddress, CellDomain, CellNotFoundError, CellPath
from postroad.cells.addresses import validate_cell_name
from postroad.cells.delivery.envelope import Envelope
from postroad.cells.messages import encode_body
from postroad.core import Lifecycle
from postroad.core.errors import ConfigError, NotRunningError, UsageError
from postroad.durable import DurableQueues, RetryPolicy, Transaction
from postroad.durable.names import validate_key

from .config import GuaranteedConfig
from .consumers import Directions, Guarantees
from .content import CELL, KEY_HEADER, new_id, path_to, repeatable_id, write_message
from .desk import Desk

_STOP_GRACE_S = 5.0


class _Declared(NamedTuple):
    """A queue that is guaranteed here, and how."""

    desk: Desk
    retry: RetryPolicy
    concurrency: int


class GuaranteedQueues(Lifecycle):
    """Has messages to some queues of a domain carried by durable queues.

        async with GuaranteedQueues(domain, queues) as guaranteed:
            await guaranteed.declare("payments")
            await domain.send("payments", {"amount": 100})

    A queue is declared on every domain that sends to it or consumes it.

    Args:
        domain: the running domain.
        queues: the running durable queues of the same node.
        config: all times.
    """

    def __init__(
        self, domain: CellDomain, queues: DurableQueues, *, config: GuaranteedConfig | None = None
    ) -> None:
        if domain.name != queues.service.name:
            raise ConfigError(
                f"domain {domain.name!r} and the queues of {queues.service.name!r} "
                "must be of the same node"
            )
        self._domain = domain
        self._queues = queues
        self._config = config or GuaranteedConfig()
        self._declared: dict[str, _Declared] = {}
        self._declaring = asyncio.Lock()
        self._was_started = self._is_running = False
        self._is_holding = False
        # Set by start.
        self._directions: Directions

    # Life.

    async def start(self) -> None:
        """Let other domains ask this one who consumes a queue."""
        if self._was_started:
            raise UsageError(f"{self!r} was started already; make a new one")
        self._directions = Directions(self._domain, self._config)
        await self._domain.add_cell(Guarantees(lambda: self._declared))
        self._was_started = self._is_running = True

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Let handlers end; messages stay where they are, and no more are taken."""
        if not self._is_running:
            return
        self._is_running = False
        async with self._declaring:
            await asyncio.gather(*(it.desk.close(grace) for it in self._declared.values()))
        self._directions.close()
        # The domain may have stopped before.
        with suppress(NotRunningError, CellNotFoundError):
            await self._domain.remove_cell(CELL)

    def hold(self) -> None:
        """Hand nothing over until `release`: for a node whose cells are not there yet."""
        self._is_holding = True

    async def release(self) -> None:
        """Hand over what came."""
        self._check_running()
        async with self._declaring:
            self._is_holding = False
            for it in self._declared.values():
                await it.desk.receive(it.retry, it.concurrency)

    async def rest(self, grace: float = _STOP_GRACE_S) -> None:
        """Hand nothing over any more; what is sent is still taken, and sent on."""
        async with self._declaring:
            self._is_holding = True
            await asyncio.gather(*(it.desk.rest(grace) for it in self._declared.values()))

    async def declare(
        self, queue: str, *, retry: RetryPolicy | None = None, concurrency: int = 1
    ) -> None:
        """Carry messages to a queue by durable queues from now on, and hand over those that came.

        Let the cells in that consume it before: what waits for them is sent to other domains if
        there are none.

        Args:
            queue: its name.
            retry: how often and when a message is handled again whose handler failed.
            concurrency: messages of it that cells of this domain are at at the same time.
        """
        validate_cell_name(queue)
        self._check_running()
        async with self._declaring:
            before = self._declared.get(queue)
            wanted = (retry or RetryPolicy(), concurrency)
            if before is None:
                await self._open(queue, *wanted)
            elif before[1:] != wanted:
                raise UsageError(f"queue {queue!r} is declared already, with other settings")

    async def _open(self, queue: str, retry: RetryPolicy, concurrency: int) -> None:
        self._check_running()
        desk = Desk(queue, self._domain, self._queues, self._directions, self._config)
        await desk.open()
        try:
            if not self._is_holding:
                await desk.receive(retry, concurrency)
        except BaseException:
            await desk.close(0.0)
            raise
        self._declared[queue] = _Declared(desk, retry, concurrency)
        self._domain.set_durable_sender(queue, self._carry)

    def _check_running(self) -> None:
        if not self._is_running:
            raise NotRunningError(f"{self!r} is not running")

    # Sending.

    async def send(
        self,
        queue: str,
        body: Any = b"",
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        sender: CellAddress | None = None,
        timeout: float | None = None,
        session: str | None = None,
        headers: Mapping[str, str] | None = None,
        transaction: Transaction | None = None,
    ) -> None:
        """Send a message to a guaranteed queue; returns once it cannot be lost any more.

        Args:
            queue: a queue that is declared here.
            body: bytes, text, or plain values.
            key: messages of equal keys are handled one after the other, in this order.
            idempotency_key: sending again with the same key does nothing, for a week.
            sender: the cell it is sent by.
            timeout: seconds after which it is a dead letter instead of being handled.
            session: what logs shall know this conversation as.
            headers: the trace it belongs to, and the like.
            transaction: send it only if this transaction succeeds, and with it.
        """
        told = dict(headers or {})
        if key is not None:
            told[KEY_HEADER] = validate_key(key)
        content, payload = encode_body(body)
        envelope = Envelope(
            id=self._id_of(queue, idempotency_key),
            destination=path_to(queue),
            source=CellPath((sender or self._domain.identity.cell("System"),)),
            session=session,
            ttl_ms=None if timeout is None else round(timeout * 1000),
            headers=told,
            content_type=content,
            payload=payload,
        )
        await self._post(envelope, idempotency_key, transaction)

    def _id_of(self, queue: str, idempotency_key: str | None) -> bytes:
        if idempotency_key is None:
            return new_id()
        return repeatable_id(self._domain.name, queue, validate_key(idempotency_key))

    async def _carry(self, envelope: Envelope) -> None:
        """Take what `domain.send` was given."""
        await self._post(envelope, None, None)

    async def _post(
        self, envelope: Envelope, idempotency_key: str | None, tx: Transaction | None
    ) -> None:
        self._check_running()
        queue = envelope.destination.current.cell
        declared = self._declared.get(queue)
        if declared is None:
            raise UsageError(f"queue {queue!r} is not declared here: declare() it first")
        outgoing = declared.desk.outgoing
        if idempotency_key is not None:
            # Keys of mail are for all queues together.
            idempotency_key = f"{outgoing}:{idempotency_key}"
        await self._queues.send(
            outgoing,
            write_message(envelope),
            to=self._domain.name,
            key=(envelope.headers or {}).get(KEY_HEADER),
            idempotency_key=idempotency_key,
            ttl=None if envelope.ttl_ms is None else envelope.ttl_ms / 1000,
            tx=tx,
        )

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not running"
        return f"<GuaranteedQueues of {self._domain.name} {state}, {len(self._declared)} queues>"
