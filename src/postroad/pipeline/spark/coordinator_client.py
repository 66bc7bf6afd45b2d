"""Client and protocol of the coordinator for Spark workers."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from postroad.core.errors import MalformedPayloadError
from postroad.core.limits import MIB, Limits
from postroad.net import MessagingService
from postroad.pipeline.connectors.connector import Committable, RawRecords
from postroad.pipeline.coordinator.batch_result import PendingWrite
from postroad.pipeline.coordinator.records import FailedRoot, InputDelivery, RetryRoot
from postroad.pipeline.coordinator.window_deltas import CommittedDelta, ResultFile
from postroad.pipeline.spark.certificate import WORKER, CertificateFiles

T = TypeVar("T")

_START_S = 10.0
_STORE_BYTES = 8 * MIB
_STATES_AT_ONCE = 1_000


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

    def plan_partitions(self, after: int, upto: int) -> list[list[InputDelivery]]:
        """What of a range of deliveries is to be done, in parts for tasks of Spark."""
        return self._ask(PlanPartitions(after, upto), list[list[InputDelivery]])

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

    def read_states(self, task: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The states of some groups of a task, of those that have one."""
        states: dict[bytes, bytes] = {}
        for start in range(0, len(keys), _STATES_AT_ONCE):
            some = list(keys[start : start + _STATES_AT_ONCE])
            states |= self._ask(ReadStates(task, some), list[tuple[bytes, bytes]])
        return states

    def is_isolated(self) -> bool:
        """Whether functions are to be tried in a process of their own."""
        return self._ask(GetIsolationMode(), bool)

    def store_result(self, name: str, part: bytes) -> None:
        """Have the coordinator keep what a partition came to."""
        for start in range(0, len(part), _STORE_BYTES):
            self._ask(StorePartitionResult(name, part[start : start + _STORE_BYTES]), bool)

    def begin_batch(self, run: str, batch: int) -> bool:
        """Whether a batch is still to be done."""
        return self._ask(BeginBatch(run, batch), bool)

    def commit_batch(
        self,
        run: str,
        batch: int,
        parts: PartitionResults,
        writes: Sequence[tuple[str, Committable]] = (),
    ) -> None:
        """Account for a batch."""
        self._ask(CommitBatch(run, batch, parts, list(writes)), bool)

    def report_progress(self) -> None:
        """Say that this process is at work."""
        self._ask(ReportProgress(), bool)

    def list_writes(self) -> list[PendingWrite]:
        """What Spark is still to write."""
        return self._ask(ListWrites(), list[PendingWrite])

    def finish_write(self, id: int, failed: Sequence[FailedRoot] = ()) -> None:
        """Something of that is written."""
        self._ask(FinishWrite(id, list(failed)), bool)

    def poll_deltas(self, window: str, after: int, wait_s: float) -> int:
        """The number of the last batch that added to a window, after waiting for one."""
        return self._ask(PollDeltas(window, after, wait_s), int, wait_s)

    def list_deltas(self, window: str, after: int, upto: int) -> list[CommittedDelta]:
        """What a range of batches added to a window."""
        return self._ask(ListDeltas(window, after, upto), list[CommittedDelta])

    def discard_deltas(self, window: str, upto: int) -> None:
        """Say that Spark has taken what batches added, for good."""
        self._ask(DiscardDeltas(window, upto), bool)

    def begin_window_batch(self, run: str, window: str, batch: int) -> bool:
        """Whether what a window emits with a batch of its query is new."""
        return self._ask(BeginWindowBatch(run, window, batch), bool)

    def commit_window_batch(
        self,
        run: str,
        window: str,
        batch: int,
        files: Sequence[ResultFile],
        failed: Sequence[FailedRoot],
    ) -> None:
        """Have what a window emitted taken in."""
        self._ask(CommitWindowBatch(run, window, batch, list(files), list(failed)), bool)

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


CLUSTER = "postroad-pipeline"
SUBJECT = "desk"
LIMITS = Limits(
    # What a part of a batch comes to is one message; how much that is, `batch_size` decides. Who
    # has not proven the token cannot send more than a hello.
    frame_bytes_max=256 * MIB,
    # Several such messages may come at once, and all from one machine.
    unfinished_bytes_max=512 * MIB,
    # A connection for each of Spark's Python processes.
    accepted_connections_max=4_096,
)

REPLY_S = 30.0
"""Time for an answer; more than any transaction takes, less than anybody would wait for."""


class CoordinatorEndpoint(msgspec.Struct, frozen=True):
    """Where the desk of a job is."""

    address: str
    """Host and port."""
    token: str
    """Who does not know it gets no answer; it is proven on each connection, and never sent."""
    certificate: bytes = b""
    """The certificate of the desk and of whoever may ask it, and its key; empty without TLS."""

    def __repr__(self) -> str:
        return f"CoordinatorEndpoint({self.address!r})"


class PollDeliveries(msgspec.Struct, frozen=True, tag=True):
    """Deliver what there is; answered by the number of the last delivery when it is above `after`,
    or when the time is over."""

    after: int
    wait_s: float


class GetInitialOffset(msgspec.Struct, frozen=True, tag=True):
    """Where to begin: answered by the number before the first delivery that is not settled."""


class PlanPartitions(msgspec.Struct, frozen=True, tag=True):
    """Answered by the deliveries of a range of numbers that are not settled, in parts."""

    after: int
    upto: int


class ReadSplit(msgspec.Struct, frozen=True, tag=True):
    """Answered by the chunks of a delivery."""

    number: int


class ReadRetries(msgspec.Struct, frozen=True, tag=True):
    """Answered by some of the roots that come again with a delivery, after the last one before."""

    number: int
    after: int | None


class ReadStates(msgspec.Struct, frozen=True, tag=True):
    """Answered by the states that a function of groups keeps for some keys, with the keys."""

    task: str
    keys: list[bytes]


class StorePartitionResult(msgspec.Struct, frozen=True, tag=True):
    """Keep what a part of a batch came to until the batch is settled."""

    name: str
    part: bytes
    """Of what it came to, as much as one message has; the rest follows."""


class PartitionResults(msgspec.Struct, frozen=True):
    """What the parts of a batch came to."""

    inline: list[bytes]
    left: list[str]
    """Names of those that were left at the desk."""


class BeginBatch(msgspec.Struct, frozen=True, tag=True):
    """Answered by whether a batch is still to be done: it may have been accounted for."""

    run: str
    batch: int


class CommitBatch(msgspec.Struct, frozen=True, tag=True):
    """Account for a batch."""

    run: str
    batch: int
    parts: PartitionResults
    writes: list[tuple[str, Committable]] = []
    """What Spark is to write when that is done, by the names of output tasks."""


class ReportProgress(msgspec.Struct, frozen=True, tag=True):
    """A worker is at work: the batch does not hang."""


class ListWrites(msgspec.Struct, frozen=True, tag=True):
    """Answered by what Spark is still to write."""


class FinishWrite(msgspec.Struct, frozen=True, tag=True):
    """Spark has written something of that, but for segments that the output refused."""

    id: int
    failed: list[FailedRoot]


class PollDeltas(msgspec.Struct, frozen=True, tag=True):
    """Answered by the number of the last batch that added to a window, when it is above `after` or
    when the time is over."""

    window: str
    after: int
    wait_s: float


class ListDeltas(msgspec.Struct, frozen=True, tag=True):
    """Answered by what a range of batches added to a window."""

    window: str
    after: int
    upto: int


class DiscardDeltas(msgspec.Struct, frozen=True, tag=True):
    """Spark has taken what batches added to a window, for good."""

    window: str
    upto: int


class BeginWindowBatch(msgspec.Struct, frozen=True, tag=True):
    """Answered by whether what a window emits with a batch of its query was not taken in."""

    run: str
    window: str
    batch: int


class CommitWindowBatch(msgspec.Struct, frozen=True, tag=True):
    """Take in what a window emitted with a batch of its query."""

    run: str
    window: str
    batch: int
    files: list[ResultFile]
    failed: list[FailedRoot]


class GetIsolationMode(msgspec.Struct, frozen=True, tag=True):
    """Whether functions are to be tried in a process of their own: answered by yes or no."""


class ReportFatalError(msgspec.Struct, frozen=True, tag=True):
    """A worker cannot run the job, and no other could: it is told why."""

    reason: str


Question: TypeAlias = (
    PollDeliveries
    | GetInitialOffset
    | PlanPartitions
    | ReadSplit
    | ReadRetries
    | ReadStates
    | GetIsolationMode
    | StorePartitionResult
    | BeginBatch
    | CommitBatch
    | ReportProgress
    | ListWrites
    | FinishWrite
    | PollDeltas
    | ListDeltas
    | DiscardDeltas
    | BeginWindowBatch
    | CommitWindowBatch
    | ReportFatalError
)


class EncodedRecords(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a slice."""

    source: str
    positions: list[int | str]
    raws: list[bytes]


encode = msgspec.msgpack.Encoder().encode
_decode_question: Callable[[bytes], Question] = msgspec.msgpack.Decoder(Question).decode


def read_question(payload: bytes) -> Question:
    """Read a question; raises MalformedPayloadError if it is none."""
    try:
        return _decode_question(payload)
    except (ValueError, RecursionError) as error:
        raise MalformedPayloadError(f"no question for a desk: {error}") from None
