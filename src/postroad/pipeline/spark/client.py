"""The desk of a job, as Spark's Python processes see it: they block, and live for many batches."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import msgspec

from postroad.net import MessagingService
from postroad.pipeline.media.medium import RawRecords
from postroad.pipeline.records import InputDelivery, RetryRoot

from .certificate import CertificateFiles
from .questions import (
    CLUSTER,
    LIMITS,
    REPLY_S,
    SUBJECT,
    WORKER,
    GetIsolationMode,
    CoordinatorEndpoint,
    AbortBatch,
    GetInitialOffset,
    PollDeliveries,
    StorePartitionResult,
    PartitionResults,
    ListDeliveries,
    Question,
    EncodedRecords,
    ReadRetries,
    ReadSplit,
    ReportFatalError,
    CommitBatch,
    encode,
)

T = TypeVar("T")

_START_S = 10.0


class CoordinatorClient:
    """Asks a desk."""

    def __init__(self, desk: CoordinatorEndpoint) -> None:
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

    def initial_offset(self) -> int:
        """The number before the first delivery that is not settled."""
        return self._ask(GetInitialOffset(), int)

    def poll(self, after: int, wait_s: float) -> int:
        """The number of the last delivery, after waiting for one if there is none."""
        return self._ask(PollDeliveries(after, wait_s), int, wait_s)

    def list_deliveries(self, after: int, upto: int) -> list[InputDelivery]:
        """What of a range of deliveries is to be done."""
        return self._ask(ListDeliveries(after, upto), list[InputDelivery])

    def read_split(self, delivery: InputDelivery) -> Iterator[RawRecords]:
        """What a slice has that only the desk can read."""
        for it in self._ask(ReadSplit(delivery.number), list[EncodedRecords]):
            yield RawRecords(it.source, it.positions, it.raws)

    def read_retries(self, delivery: InputDelivery) -> Iterator[RetryRoot]:
        """The roots that come again with a delivery."""
        after = None
        while roots := self._ask(ReadRetries(delivery.number, after), list[RetryRoot]):
            yield from roots
            after = roots[-1].root

    def is_isolated(self) -> bool:
        """Whether functions are to be tried in a process of their own."""
        return self._ask(GetIsolationMode(), bool)

    def store_result(self, name: str, part: bytes) -> None:
        """Have the desk keep what a part came to."""
        self._ask(StorePartitionResult(name, part), bool)

    def commit_batch(self, run: str, batch: int, parts: PartitionResults) -> None:
        """Account for a batch."""
        self._ask(CommitBatch(run, batch, parts), bool)

    def abort_batch(self, parts: PartitionResults) -> None:
        """Throw away what parts of a batch have staged."""
        self._ask(AbortBatch(parts), bool)

    def report_fatal_error(self, reason: str) -> None:
        """Say that the job cannot be run here, nor elsewhere."""
        self._ask(ReportFatalError(reason), bool)


# One for each desk in a process. Processes fork, and threads stay behind.
_clients: dict[tuple[int, CoordinatorEndpoint], CoordinatorClient] = {}


def desk_client(desk: CoordinatorEndpoint) -> CoordinatorClient:
    """This process's way to a desk."""
    key = (os.getpid(), desk)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = CoordinatorClient(desk)
    return client
