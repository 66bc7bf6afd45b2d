"""The desk of a job, open to Spark's processes."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

from postroad.core import Address, Limits, to_address
from postroad.core.limits import MIB
from postroad.net import MessagingService, RawMessage
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.progress import add_counts
from postroad.pipeline.coordinator.records import InputDelivery, merge_failures
from postroad.pipeline.spark.certificate import DESK, CertificateFiles, make_certificate
from postroad.pipeline.spark.coordinator_client import (
    CLUSTER,
    LIMITS,
    SUBJECT,
    BeginBatch,
    BeginWindowBatch,
    CommitBatch,
    CommitWindowBatch,
    CoordinatorEndpoint,
    DiscardDeltas,
    EncodedRecords,
    FinishWrite,
    GetInitialOffset,
    GetIsolationMode,
    ListDeltas,
    ListWrites,
    PartitionResults,
    PlanPartitions,
    PollDeliveries,
    PollDeltas,
    Question,
    ReadRetries,
    ReadSplit,
    ReadStates,
    ReportFatalError,
    ReportProgress,
    StorePartitionResult,
    encode,
    read_question,
)
from postroad.pipeline.vectorized.partition import PartitionResult, decode_part
from postroad.pipeline.windows import WindowDeltaBuilder

logger = logging.getLogger("postroad.pipeline")

_AGAIN_ROOTS = 1_000
# Below this, more partitions cost more than they save.
_PARTITION_SEGMENTS = 500
# What workers may leave here for one batch; those of attempts that Spark gave up count too.
_STORED_BYTES_MAX = 4_096 * MIB
# Spark asks, looks whether the watermark has moved, and asks again.
_WINDOW_POLLS = 2
# What was found deadly comes again meanwhile, and is not found by another crash.
_CAREFUL_BATCHES = 50


class CoordinatorServer:
    """Answers what Spark's processes ask.

    Whoever connects must prove the token first, and cannot send more than a few bytes before. Off
    this machine everything goes through TLS.

    Args:
        program: the job.
        desk: its desk; open.
        bind: where to listen; on a cluster, an address that its machines can reach.
        advertise: the host that they are told, if it is another.
        limits: every maximum and timeout.
    """

    def __init__(
        self,
        program: CompiledJob,
        desk: JobCoordinator,
        bind: str = "127.0.0.1:0",
        *,
        advertise: str = "",
        limits: Limits = LIMITS,
    ) -> None:
        self._program = program
        self._desk = desk
        self._bind = to_address(bind)
        self._advertise = Address(advertise, 0) if advertise else None
        self._limits = limits
        self._token = secrets.token_urlsafe(24)
        self._service: MessagingService | None = None
        self._admitting = asyncio.Lock()
        self._asking = 0
        # What parts of the batch came to, by their names, and those of the one before, which may
        # still be to be settled.
        self._stored: dict[str, bytearray] = {}
        self._stored_before: dict[str, bytearray] = {}
        # The last batch that Spark began.
        self._batch: int | None = None
        # Whether Spark has said since it began a query how far it is.
        self._is_resumed = False
        self._ahead: asyncio.Task[None] | None = None
        self._is_in_batch = False
        # When a worker last gave a sign of life in the batch that Spark is at.
        self._alive_s: float | None = None
        self.idle_polls = 0
        """How often Spark asked for more since it began a batch."""
        # For so many more batches functions are tried first.
        self._careful_batches = 0
        # How often Spark asked for more since it began a batch of a window, and after which batch.
        self._window_polls: dict[str, tuple[int, int]] = {}
        self.fatal_error: str | None = None
        """Why workers cannot run the job, if they cannot."""

    async def start(self) -> CoordinatorEndpoint:
        """Begin to answer; returns where."""
        certificate = b""
        if not self._bind.is_loopback:
            certificate = make_certificate()
            if not certificate:
                logger.warning(
                    "the desk at %s talks in clear text, as cryptography is not installed: "
                    "whoever can read the network reads what goes through the job",
                    self._bind,
                )
        with CertificateFiles(certificate) as tls:
            self._service = MessagingService(
                CLUSTER,
                DESK,
                self._bind,
                advertise=self._advertise,
                tls=tls,
                limits=self._limits,
                secret=self._token,
            )
            self._service.serve(SUBJECT, self._answer)
            await self._service.start()
        return CoordinatorEndpoint(str(self._service.address), self._token, certificate)

    async def stop(self) -> None:
        """Answer no more."""
        if self._ahead is not None:
            self._ahead.cancel()
            await asyncio.gather(self._ahead, return_exceptions=True)
        if self._service is not None:
            await self._service.stop(grace=0)

    async def _answer(self, message: RawMessage) -> bytes:
        return encode(await self._answer_question(read_question(message.payload)))

    async def _answer_question(self, question: Question) -> object:
        match question:
            case PollDeliveries():
                return await self._latest(question.after, question.wait_s)
            case GetInitialOffset():
                return await self._desk.committed_offset()
            case PlanPartitions():
                await self._resume(question.after, question.upto)
                deliveries = await self._desk.uncommitted(question.after, question.upto)
                return balance_partitions(deliveries, self._desk.parallelism)
            case ReadSplit():
                return await self._read_slice(question.number)
            case ReadRetries():
                return await self._desk.retry_roots(question.number, question.after, _AGAIN_ROOTS)
            case ReadStates():
                return list((await self._desk.read_states(question.task, question.keys)).items())
            case GetIsolationMode():
                self._note_life()
                return self._careful_batches > 0
            case ReportProgress():
                self._note_life()
                return True
            case StorePartitionResult():
                self._store_result(question.name, question.part)
                return True
            case BeginBatch():
                return await self._begin(question.run, question.batch)
            case CommitBatch():
                return await self._settle(question)
            case ListWrites():
                return await self._desk.pending_writes()
            case FinishWrite():
                await self._desk.finish_write(question.id, question.failed)
                return True
            case PollDeltas():
                return await self._poll_deltas(question)
            case ListDeltas():
                return await self._desk.spark_windows.list_deltas(
                    question.window, question.after, question.upto
                )
            case DiscardDeltas():
                await self._desk.spark_windows.discard(question.window, question.upto)
                return True
            case BeginWindowBatch():
                self._window_polls[question.window] = (0, 0)
                return not await self._desk.spark_windows.is_committed(
                    question.run, question.window, question.batch
                )
            case CommitWindowBatch():
                await self._desk.spark_windows.commit_batch(
                    question.run, question.window, question.batch, question.files, question.failed
                )
                return True
            case ReportFatalError():
                self.fatal_error = question.reason
                return True

    def enable_isolation(self) -> None:
        """Have functions tried in a process of their own for a while."""
        self._careful_batches = _CAREFUL_BATCHES

    @property
    def silent_s(self) -> float:
        """How long no worker gave a sign of life in the batch that Spark is at; 0 between two."""
        alive_s = self._alive_s
        return 0.0 if alive_s is None else asyncio.get_running_loop().time() - alive_s

    def begin_query(self) -> None:
        """Spark begins anew: whatever it was at is over."""
        self.idle_polls = 0
        self._window_polls.clear()
        self._is_resumed = False
        self._is_in_batch, self._alive_s = False, None

    async def _resume(self, after: int, upto: int = 0) -> None:
        """Spark goes on behind a delivery: what it takes for done, and was not settled, was lost
        on the way here."""
        if self._is_resumed:
            return
        known = max(after, upto)
        if known > (last := await self._desk.last_delivery()):
            # It would wait for numbers that were given to others.
            self._refuse_store("delivery", known, last)
        self._is_resumed = True
        await self._desk.redeliver_lost(after)

    def _refuse_store(self, what: str, in_checkpoint: int, in_store: int) -> None:
        """End the job: its store was replaced by one that knows less than Spark's checkpoint."""
        self.fatal_error = (
            f"the store of the job is older than Spark's checkpoint: Spark is at {what} "
            f"{in_checkpoint}, and the store's last is {in_store}; bring the newer store back, or "
            "delete the store and the checkpoint, and the job starts from the beginning"
        )
        raise LookupError(self.fatal_error)

    def _note_life(self) -> None:
        if self._is_in_batch:
            self._alive_s = asyncio.get_running_loop().time()

    @property
    def is_idle(self) -> bool:
        """Whether Spark is done with what it had, and asks for more."""
        return self._asking > 0

    async def _latest(self, after: int, wait_s: float) -> int:
        self._asking += 1
        self.idle_polls += 1
        self._is_in_batch, self._alive_s = False, None
        try:
            async with self._admitting:
                await self._resume(after)
                ahead = await self._desk.uncommitted(after)
                if sum(it.segments for it in ahead) >= self._batch_segments:
                    return ahead[-1].number
                return await self._desk.poll_after(after, wait_s)
        finally:
            self._asking -= 1

    async def _poll_deltas(self, question: PollDeltas) -> int:
        polls, _ = self._window_polls.get(question.window, (0, 0))
        self._window_polls[question.window] = (polls + 1, question.after)
        return await self._desk.spark_windows.poll(question.window, question.after, question.wait_s)

    async def are_windows_idle(self) -> bool:
        """Whether Spark has taken all that was added to windows, and emitted what was due."""
        for name in self._desk.spark_windows.windows:
            polls, after = self._window_polls.get(name, (0, 0))
            # After the first it may have found that the watermark has moved.
            if polls < _WINDOW_POLLS or after < await self._desk.spark_windows.last_number(name):
                return False
        return True

    async def _read_slice(self, number: int) -> list[EncodedRecords]:
        found = await self._desk.uncommitted(number - 1, number)
        if not found:
            raise LookupError(f"delivery {number} is settled, or was delivered again since")
        chunks = await self._desk.read_chunks(found[0])
        return [EncodedRecords(it.source, list(it.positions), list(it.raws)) for it in chunks]

    async def _begin(self, run: str, batch: int) -> bool:
        self.idle_polls = 0
        self._is_in_batch, self._alive_s = True, None
        self._batch = batch
        self._stored_before, self._stored = self._stored, {}
        if self._ahead is None or self._ahead.done():
            self._ahead = asyncio.create_task(self._admit_ahead())
        committed = await self._desk.last_committed_batch(run)
        if batch > committed + 1 and self._has_spark_inputs:
            # Spark goes on with its readers only after a batch is committed.
            self._refuse_store("batch", batch, committed)
        return batch > committed

    @property
    def _has_spark_inputs(self) -> bool:
        tasks = self._program.graph.tasks
        return any(tasks[name].connector == "spark" for name in self._program.graph.inputs)

    @property
    def _batch_segments(self) -> int:
        """So many segments are a batch: there is no need to look for more."""
        tasks = self._program.graph.tasks
        inputs = (tasks[name].batch_size for name in self._program.graph.inputs)
        return min(inputs, default=1) * self._desk.parallelism

    async def _admit_ahead(self) -> None:
        """Deliver what the next batch will have, while Spark is at this one."""
        try:
            async with self._admitting:
                await self._desk.next_deliveries()
        except Exception:
            # Whoever asks for the next batch tries it again, and says so.
            logger.debug("nothing could be delivered ahead", exc_info=True)

    def _store_result(self, name: str, part: bytes) -> None:
        stored = (*self._stored.values(), *self._stored_before.values())
        if sum(map(len, stored)) + len(part) > _STORED_BYTES_MAX:
            raise MemoryError(
                f"the partitions of a batch left more than {_STORED_BYTES_MAX} bytes here; make "
                "batch_size smaller"
            )
        self._stored.setdefault(name, bytearray()).extend(part)

    def _take(self, parts: PartitionResults) -> list[PartitionResult]:
        stored = self._stored_before | self._stored
        left = [decode_part(stored[name]) for name in parts.left if name in stored]
        return [*map(decode_part, parts.inline), *left]

    async def _settle(self, question: CommitBatch) -> bool:
        parts = self._take(question.parts)
        if len(parts) < len(question.parts.inline) + len(question.parts.left):
            raise LookupError(f"not all parts of batch {question.batch} are here")
        deliveries = await self._find(parts)
        outcome = BatchResult(deliveries)
        windows = WindowDeltaBuilder(self._program.windows)
        for part in parts:
            outcome.failed += part.failed
            outcome.staged += part.staged
            outcome.read += part.read
            outcome.made += part.made
            outcome.window_files += part.window_files
            outcome.emitted += part.emitted
            outcome.states += part.states
            windows.merge(part.delta)
            add_counts(outcome.tasks, part.tasks)
        if self._program.gathering_tasks:
            # Several of their functions may have failed for one root, each elsewhere.
            outcome.failed = merge_failures(outcome.failed)
        outcome.delta = windows.delta
        outcome.staged += question.writes
        await self._desk.commit_batch(question.run, question.batch, outcome)
        # Nobody will ask for the rest of it.
        self._stored_before.clear()
        if question.batch == self._batch:
            self._stored.clear()
            self._is_in_batch, self._alive_s = False, None
        self._careful_batches = max(self._careful_batches - 1, 0)
        return True

    async def _find(self, parts: list[PartitionResult]) -> list[InputDelivery]:
        """What the parts had; deliveries that are gone are still named, to be refused."""
        numbers = {number for part in parts for number in part.deliveries}
        if not numbers:
            return []
        known = await self._desk.uncommitted(min(numbers) - 1, max(numbers))
        found = {it.number: it for it in known if it.number in numbers}
        return [found.get(number) or _gone(number) for number in sorted(numbers)]


def balance_partitions(
    deliveries: Sequence[InputDelivery], partitions: int
) -> list[list[InputDelivery]]:
    """Deliveries in at most so many parts of about the same size; the larger ones first."""
    total = sum(it.segments for it in deliveries)
    count = max(min(partitions, total // _PARTITION_SEGMENTS, len(deliveries)), 1)
    balanced: list[list[InputDelivery]] = [[] for _ in range(count)]
    loads = [0] * count
    for it in sorted(deliveries, key=lambda it: (-it.segments, it.number)):
        least = loads.index(min(loads))
        balanced[least].append(it)
        loads[least] += it.segments
    return [partition for partition in balanced if partition]


def _gone(number: int) -> InputDelivery:
    return InputDelivery(number, "", None, 0, 0, 0, 0)
