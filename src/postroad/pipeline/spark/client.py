"""The desk of a job, as Spark's Python processes see it: they block, and live for many batches."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from postroad.net import MessagingService
from postroad.pipeline.media.medium import Chunk
from postroad.pipeline.records import Delivery, KeptRoot

from .certificate import CertificateFiles
from .questions import (
    CLUSTER,
    LIMITS,
    REPLY_S,
    SUBJECT,
    WORKER,
    Careful,
    DeskAddress,
    Discard,
    First,
    Latest,
    Leave,
    Parts,
    Plan,
    Question,
    RawChunk,
    ReadAgain,
    ReadSlice,
    Refuse,
    Settle,
    encode,
)

T = TypeVar("T")

_START_S = 10.0


class DeskClient:
    """Asks a desk."""

    def __init__(self, desk: DeskAddress) -> None:
        self._desk = desk
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="desk", daemon=True).start()
        self._service = self._wait(self._start(), _START_S)

    async def _start(self) -> MessagingService:
        desk = self._desk
        with CertificateFiles(desk.certificate) as tls:
            service = MessagingService(CLUSTER, WORKER, tls=tls, limits=LIMITS, secret=desk.token)
            await service.start()
        return service

    def _wait(self, doing: Coroutine[Any, Any, T], timeout_s: float) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(timeout_s)

    def _ask(self, question: Question, answer: type[T], wait_s: float = 0.0) -> T:
        timeout_s = REPLY_S + wait_s
        address, payload = self._desk.address, encode(question)
        asking = self._service.request(address, SUBJECT, payload, timeout=timeout_s)
        return msgspec.msgpack.decode(self._wait(asking, timeout_s + _START_S), type=answer)

    def first(self) -> int:
        """The number before the first delivery that is not settled."""
        return self._ask(First(), int)

    def latest(self, after: int, wait_s: float) -> int:
        """The number of the last delivery, after waiting for one if there is none."""
        return self._ask(Latest(after, wait_s), int, wait_s)

    def plan(self, after: int, upto: int) -> list[Delivery]:
        """What of a range of deliveries is to be done."""
        return self._ask(Plan(after, upto), list[Delivery])

    def read_slice(self, delivery: Delivery) -> Iterator[Chunk]:
        """What a slice has that only the desk can read."""
        for it in self._ask(ReadSlice(delivery.number), list[RawChunk]):
            yield Chunk(it.source, it.positions, it.raws)

    def read_again(self, delivery: Delivery) -> Iterator[KeptRoot]:
        """The roots that come again with a delivery."""
        after = None
        while roots := self._ask(ReadAgain(delivery.number, after), list[KeptRoot]):
            yield from roots
            after = roots[-1].root

    def is_careful(self) -> bool:
        """Whether functions are to be tried in a process of their own."""
        return self._ask(Careful(), bool)

    def leave(self, name: str, part: bytes) -> None:
        """Have the desk keep what a part came to."""
        self._ask(Leave(name, part), bool)

    def settle(self, run: str, batch: int, parts: Parts) -> None:
        """Account for a batch."""
        self._ask(Settle(run, batch, parts), bool)

    def discard(self, parts: Parts) -> None:
        """Throw away what parts of a batch have staged."""
        self._ask(Discard(parts), bool)

    def refuse(self, reason: str) -> None:
        """Say that the job cannot be run here, nor elsewhere."""
        self._ask(Refuse(reason), bool)


# One for each desk in a process. Processes fork, and threads stay behind.
_clients: dict[tuple[int, DeskAddress], DeskClient] = {}


def desk_client(desk: DeskAddress) -> DeskClient:
    """This process's way to a desk."""
    key = (os.getpid(), desk)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = DeskClient(desk)
    return client
