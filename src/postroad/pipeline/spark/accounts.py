"""The account of a source or sink that a Spark user uses without a job: a desk in this process.

Spark calls from threads without an event loop, so the desk has a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from postroad.durable import store_at
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors.connector import Committable, InputConnector, OutputConnector
from postroad.pipeline.coordinator.coordinator import BatchResult, JobCoordinator
from postroad.pipeline.coordinator.records import InputDelivery
from postroad.pipeline.job import Job, Task, TaskType

T = TypeVar("T")

INPUT, OUTPUT = "in", "out"
_CALL_S = 60.0


class StandaloneCoordinator:
    """What was read or written under a name, and how far that is.

    Args:
        name: tells accounts in a store apart.
        store: a path or URL of the store.
        inputs: the input, if it is read.
        outputs: the output, if it is written.
        segments_max: what may be read and not committed.
        staged: what will be committed.
    """

    def __init__(
        self,
        name: str,
        store: str,
        inputs: Mapping[str, InputConnector],
        outputs: Mapping[str, OutputConnector],
        segments_max: int,
        staged: Sequence[Committable] = (),
    ) -> None:
        job = _job(name, inputs, outputs, segments_max)
        self._store = store_at(store)
        self._desk = JobCoordinator(CompiledJob(job), self._store, inputs, outputs)
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="account", daemon=True).start()
        self._call(self._open(name, [(OUTPUT, it) for it in staged]))

    def _call(self, doing: Coroutine[Any, Any, T], wait_s: float = 0.0) -> T:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(_CALL_S + wait_s)

    async def _open(self, name: str, staged: Sequence[tuple[str, Committable]]) -> None:
        await self._store.open(name)
        await self._desk.open(staged)

    def close(self) -> None:
        """Let the store go."""
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _close(self) -> None:
        await self._desk.close()
        await self._store.close()

    def initial_offset(self) -> int:
        """The number before the first delivery that is not settled."""
        return self._call(self._desk.committed_offset())

    def poll(self, after: int, wait_s: float) -> int:
        """The number of the last delivery, after waiting for one if there is none."""
        return self._call(self._desk.poll_after(after, wait_s), wait_s)

    def list_deliveries(self, after: int, upto: int) -> list[InputDelivery]:
        """What of a range of deliveries is to be read."""
        return self._call(self._desk.uncommitted(after, upto))

    def commit_input(self, upto: int) -> None:
        """Everything up to a delivery is done with."""
        deliveries = self._call(self._desk.uncommitted(0, upto))
        if deliveries:
            self._call(self._desk.commit_batch("read", upto, BatchResult(deliveries)))

    def commit_output(self, run: str, batch: int, staged: Iterable[Committable]) -> None:
        """Publish what a batch wrote, once."""
        outcome = BatchResult([], staged=[(OUTPUT, it) for it in staged])
        self._call(self._desk.commit_batch(run, batch, outcome))
        asyncio.run_coroutine_threadsafe(self._desk.commit_outputs(), self._loop).result()

    def abort_outputs(self, staged: Iterable[Committable]) -> None:
        """Throw away what was staged, unless it was committed."""
        self._call(self._desk.abort_outputs([(OUTPUT, it) for it in staged]))


def _job(
    name: str,
    inputs: Mapping[str, InputConnector],
    outputs: Mapping[str, OutputConnector],
    segments_max: int,
) -> Job:
    # Spark commits a batch when it has found out about the next one: there must be room for both.
    batch_size = max(segments_max // 2, 1)
    source = Task(
        name=INPUT, type=TaskType.INPUT, batch_size=batch_size, max_pending=2 * batch_size
    )
    target = Task(name=OUTPUT, type=TaskType.OUTPUT)
    catalog = [*([source] if inputs else []), *([target] if outputs else [])]
    return Job(name=name, workflow=[], catalog=catalog)
