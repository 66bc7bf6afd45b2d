"""The applications' side of a node that handles: rows in its own table, copies for others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from postroad.core.errors import (
    Reject,
    SendRejectedError,
    StoreError,
    TransactionAbortedError,
    UsageError,
)
from postroad.durable import DurableQueues, Message, PulledMessage, RetryPolicy, Transaction
from postroad.testing import require
from tests.simulation.durable.clerks import Books
from tests.simulation.durable.plan import Habits
from tests.simulation.durable.slips import (
    COPIES,
    DESK,
    NOTES,
    ORDERS,
    RELAY,
    WARD,
    Slip,
    Temper,
    copy_of,
    decode_slip,
    encode_slip,
)

HANDLED = (
    "CREATE TABLE IF NOT EXISTS handled (sequence INTEGER PRIMARY KEY AUTOINCREMENT,"
    " token TEXT, queue TEXT, sender TEXT)"
)
# What fails for a moment never becomes a dead letter; what is hopeless soon does.
_PATIENT = RetryPolicy(max_attempts=10_000, initial_delay_s=0.05, max_delay_s=1.0)
_STRICT = RetryPolicy(max_attempts=3, initial_delay_s=0.05, max_delay_s=0.5)
# Longer than a handler may take.
_FAR_TOO_LONG_S = 6.0
_PULL_S = 5.0


class Trouble(Exception):
    """What a handler raises that fails."""


class Handlers:
    def __init__(self, mail: DurableQueues, habits: Habits, books: Books, rng: Random) -> None:
        self._mail = mail
        self._habits = habits
        self._books = books
        self._rng = rng
        # Keys of messages that are being handled.
        self._busy: set[tuple[str, str]] = set()

    async def start(self) -> None:
        for queue, handler, retry in (
            (ORDERS, self._write, _PATIENT),
            (COPIES, self._write, _PATIENT),
            (RELAY, self._relay, _PATIENT),
            (NOTES, self._read, _PATIENT),
            (WARD, self._treat, _STRICT),
        ):
            await self._mail.consume(
                queue, handler, concurrency=self._habits.concurrency, retry=retry
            )

    async def _write(self, message: Message, tx: Transaction) -> None:
        slip = decode_slip(message.body)
        with self._alone(message):
            await self._dawdle()
            self._stumble()
            await _add_row(message, slip, tx)
            _post_copy(message, slip, tx)
            self._stumble(tx)

    async def _relay(self, message: Message, tx: Transaction) -> None:
        with self._alone(message):
            await self._dawdle()
            _post_copy(message, decode_slip(message.body), tx)
            self._stumble(tx)

    def _read(self, message: Message, tx: Transaction) -> None:
        self._stumble(tx)
        self._books.notes[decode_slip(message.body).token] += 1

    async def _treat(self, message: Message, tx: Transaction) -> None:
        slip = decode_slip(message.body)
        await _add_row(message, slip, tx)
        if slip.temper is Temper.REJECTED:
            raise Reject("nobody can")
        if slip.temper is Temper.HOPELESS:
            raise Trouble("as always")

    async def _dawdle(self) -> None:
        if self._rng.random() < self._habits.slow:
            await asyncio.sleep(_FAR_TOO_LONG_S * self._rng.random() ** 5)

    def _stumble(self, tx: Transaction | None = None) -> None:
        if self._rng.random() < self._habits.failing:
            raise Trouble("for once")
        if tx is not None and self._habits.refused and self._rng.random() < self._habits.refused:
            _post_nonsense(tx)

    @contextmanager
    def _alone(self, message: Message) -> Iterator[None]:
        """No two messages of one key are handled at the same time."""
        if message.key is None:
            yield
            return
        place = (message.queue, message.key)
        require(place not in self._busy, f"two messages of {place} are handled at a time")
        self._busy.add(place)
        try:
            yield
        finally:
            self._busy.remove(place)

    # The queue that is pulled from.

    async def pull(self) -> None:
        while True:
            limit = self._rng.randint(1, 4)
            try:
                pulled = await self._mail.pull(DESK, limit=limit, timeout=_PULL_S, retry=_PATIENT)
            except StoreError:
                await asyncio.sleep(_PULL_S)
                continue
            for message in pulled:
                try:
                    await self._deal_with(message)
                except UsageError:
                    # Its lease was over, and it comes again.
                    continue

    async def _deal_with(self, message: PulledMessage) -> None:
        chance = self._rng.random()
        if chance < self._habits.failing:
            message.nack("for once")
        elif chance < 2 * self._habits.failing:
            message.release()
        elif chance < 2.5 * self._habits.failing:
            await asyncio.sleep(_FAR_TOO_LONG_S)
        else:
            await self._acknowledge(message)

    async def _acknowledge(self, message: PulledMessage) -> None:
        tx = message.transaction()
        try:
            if self._habits.refused and self._rng.random() < self._habits.refused:
                _post_nonsense(tx)
            await _add_row(message, decode_slip(message.body), tx)
            await message.ack(tx)
        except (SendRejectedError, StoreError, TransactionAbortedError):
            # It comes again.
            tx.rollback()
        except UsageError:
            tx.rollback()
            raise


async def _add_row(message: Message, slip: Slip, tx: Transaction) -> None:
    await tx.execute(
        "INSERT INTO handled (token, queue, sender) VALUES (?, ?, ?)",
        (slip.token, message.queue, message.sender),
    )


def _post_copy(message: Message, slip: Slip, tx: Transaction) -> None:
    if slip.copy_to is not None:
        tx.send(COPIES, encode_slip(copy_of(slip)), to=slip.copy_to, key=message.key)


def _post_nonsense(tx: Transaction) -> None:
    """Two messages under one idempotency key: the handler returns, and its commit is refused."""
    for body in (b"one", b"another"):
        tx.send(NOTES, body, to="nobody", idempotency_key="the same")
