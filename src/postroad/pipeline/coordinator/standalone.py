"""Records what was read or written without a job, for callers without an event loop."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from postroad.core.errors import ConfigError, StoreLockedError, StoreMismatchError
from postroad.durable import DurableQueuesConfig, Store
from postroad.durable.config import decode_config
from postroad.durable.store.store import NODE
from postroad.durable.store.tables.schema import read_meta
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import (
    Committable,
    InputConnector,
    OutputConnector,
    Position,
)
from postroad.pipeline.connectors.stream import EventLoopThread
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.job import Job, RetryPolicy, Task, TaskType

T = TypeVar("T")

INPUT, OUTPUT = "in", "out"
# Of a store that no node has made.
_OWNER = "postroad"
_CALL_TIMEOUT_S = 120.0
# How long to wait for others that have the store for a moment, and how often to look.
_LOCK_TIMEOUT_S = 30.0
_LOCK_RETRY_S = 0.05
_POLL_INTERVAL_S = 0.2


def read_config(store: Store) -> DurableQueuesConfig:
    """The settings of the node that a store belongs to; the store need not be open.

    Raises:
        StoreUnavailableError: there is no such store.
    """
    with closing(store.connect_reader()) as database:
        config = read_meta(database, "config")
    return DurableQueuesConfig() if config is None else decode_config(config)


class StandaloneCoordinator:
    """What was read or written under a name.

    Args:
        name: tells readers and writers of a store apart.
        store: where it is recorded; not open.
        input: what is read, if anything is.
        output: what is written, if anything is.
        max_pending: how many segments may be read and not committed.
        is_node_store: whether queues of the store are read or written. Only one process may do so
            at a time, so the store is open during each call only, and never while its node runs.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        input: InputConnector | None = None,
        output: OutputConnector | None = None,
        max_pending: int = 1,
        is_node_store: bool = False,
    ) -> None:
        self._name = name
        self._store = store
        self._inputs = {} if input is None else {INPUT: input}
        self._outputs = {} if output is None else {OUTPUT: output}
        self._program = CompiledJob(_make_job(name, self._inputs, self._outputs, max_pending))
        self._is_node_store = is_node_store
        self._thread = EventLoopThread("postroad-coordinator")
        self._coordinator: JobCoordinator | None = None

    def close(self) -> None:
        """Let the store go."""
        try:
            self._thread.call(self._close(), _CALL_TIMEOUT_S)
        finally:
            self._thread.close()

    # Reading.

    def initial_offset(self) -> int:
        """The number before the first delivery that is not committed."""
        return self._call(JobCoordinator.committed_offset)

    def poll(self, after: int, wait_s: float) -> int:
        """The number of the last delivery, after waiting for one if there is none.

        Raises:
            ConfigError: the store has never given out the number to wait after.
        """

        async def poll(coordinator: JobCoordinator) -> int:
            await _check_offset(coordinator, after)
            return await coordinator.poll_after(after, 0.0 if self._is_node_store else wait_s)

        if not self._is_node_store:
            return self._call(poll, wait_s)
        deadline_s = time.monotonic() + wait_s
        while True:
            latest = self._call(poll)
            if latest > after or time.monotonic() >= deadline_s:
                return latest
            # Others may have the store meanwhile.
            time.sleep(_POLL_INTERVAL_S)

    def list_deliveries(self, after: int, upto: int) -> list[InputDelivery]:
        """What of a range of deliveries is to be read; raises ConfigError likewise."""

        async def find(coordinator: JobCoordinator) -> list[InputDelivery]:
            await _check_offset(coordinator, upto)
            return await coordinator.uncommitted(after, upto)

        return self._call(find)

    def commit_input(self, upto: int) -> None:
        """Everything up to a delivery is done with."""

        async def commit(coordinator: JobCoordinator) -> None:
            if deliveries := await coordinator.uncommitted(0, upto):
                await coordinator.commit_batch("read", upto, BatchResult(deliveries))

        self._call(commit)

    def list_positions(self, segments: int) -> list[Position]:
        """Where everything is that can be read now, without taking it."""

        async def plan(coordinator: JobCoordinator) -> list[Position]:
            connector, positions = self._inputs[INPUT], []
            after: Position | None = None
            while splits := await connector.plan_splits(after, segments):
                positions += [split.position for split in splits]
                after = splits[-1].next_position
            return positions

        return self._call(plan)

    # Writing.

    def commit_output(self, run: str, batch: int, staged: Sequence[Committable]) -> None:
        """Publish what a batch of a run wrote, once.

        Raises:
            ConfigError: a later batch of that run was committed before.
            OSError: it is recorded, and cannot be published now.
        """

        async def commit(coordinator: JobCoordinator) -> None:
            last = await self._store.read(
                lambda database: JobStore(database, self._name).last_committed_batch(run)
            )
            if batch < last:
                raise ConfigError(
                    f"batch {batch} comes after batch {last} of the same query was committed:"
                    " its checkpoint was rolled back or copied; use a fresh checkpoint"
                )
            result = BatchResult([], staged=[(OUTPUT, it) for it in staged])
            await coordinator.commit_batch(run, batch, result)
            await coordinator.commit_outputs()
            if (await coordinator.status()).unpublished:
                raise OSError(f"batch {batch} is committed, and its output cannot be written now")

        self._call(commit, staged=staged)

    def abort_outputs(self, staged: Sequence[Committable]) -> None:
        """Throw away what was staged, unless it was committed."""
        self._call(lambda it: it.abort_outputs([(OUTPUT, one) for one in staged]), staged=staged)

    # Calls.

    def _call(
        self,
        act: Callable[[JobCoordinator], Awaitable[T]],
        wait_s: float = 0.0,
        staged: Sequence[Committable] = (),
    ) -> T:
        timeout_s = _CALL_TIMEOUT_S + _LOCK_TIMEOUT_S + wait_s
        return self._thread.call(self._run(act, staged), timeout_s)

    async def _run(
        self, act: Callable[[JobCoordinator], Awaitable[T]], staged: Sequence[Committable]
    ) -> T:
        if self._coordinator is None:
            self._coordinator = await self._open(staged)
        try:
            return await act(self._coordinator)
        finally:
            if self._is_node_store:
                await self._close()

    async def _open(self, staged: Sequence[Committable]) -> JobCoordinator:
        await self._open_store()
        try:
            coordinator = JobCoordinator(self._program, self._store, self._inputs, self._outputs)
            await coordinator.open([(OUTPUT, it) for it in staged])
        except BaseException:
            await self._store.close()
            raise
        return coordinator

    async def _open_store(self) -> None:
        deadline_s = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                return await self._try_open_store()
            except StoreLockedError as error:
                if time.monotonic() >= deadline_s:
                    raise StoreLockedError(f"{error}; {self._advice}") from None
            await asyncio.sleep(_LOCK_RETRY_S)

    async def _try_open_store(self) -> None:
        if self._is_node_store:
            return await self._store.open(role=NODE)
        # A reader has the store as long as it reads, a writer for a moment.
        reader = hashlib.blake2b(self._name.encode(), digest_size=6).hexdigest()
        role = f"reader-{reader}" if self._inputs else "writer"
        try:
            await self._store.open(_OWNER, role=role)
        except StoreMismatchError:
            await self._store.open(role=role)

    @property
    def _advice(self) -> str:
        if self._is_node_store:
            return (
                "the queues of a running node are read and written by the node itself: run a job"
                " there, or stop it"
            )
        return f"if that is another reader named {self._name!r}, give one of them another name"

    async def _close(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            try:
                await coordinator.close()
            finally:
                await self._store.close()


async def _check_offset(coordinator: JobCoordinator, number: int) -> None:
    last = await coordinator.last_delivery()
    if number > last:
        raise ConfigError(
            f"the checkpoint of the query is at delivery {number}, and the last that its store"
            f" knows is {last}: the store was deleted or replaced; bring it back, or use a fresh"
            " checkpoint, and everything that the store does not know is read again"
        )


def _make_job(
    name: str,
    inputs: Mapping[str, InputConnector],
    outputs: Mapping[str, OutputConnector],
    max_pending: int,
) -> Job:
    # Spark commits a batch when it has found out about the next one: there must be room for both.
    batch_size = max(max_pending // 2, 1)
    source = Task(
        name=INPUT, type=TaskType.INPUT, batch_size=batch_size, max_pending=2 * batch_size
    )
    target = Task(name=OUTPUT, type=TaskType.OUTPUT, retry=RetryPolicy(attempts=1))
    catalog = [*([source] if inputs else []), *([target] if outputs else [])]
    return Job(name=name, workflow=[], catalog=catalog)
