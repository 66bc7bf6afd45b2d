"""What windows must not fall for: commits that fail, and emissions that pass for one another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import Job, MemoryInput, MemoryOutput, Segment, TriggerType
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.coordinator.batch_result import BatchResult, CommitResult
from postroad.pipeline.coordinator.coordinator import JobCoordinator
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.window_store import EmittedRoot, emit_roots
from postroad.pipeline.functions import Function
from postroad.pipeline.windows import Extent, JobWindowState, WindowDeltaBuilder
from tests.property.pipeline_strategies import SOME

WINDOWS: list[dict[str, Any]] = [
    {"name": name, "task": "count", "type": "global", "aggregation": "count"} for name in "uv"
]
JOB = msgspec.convert(
    {
        "name": "job",
        "workflow": [["in", "count"], ["count", "out"]],
        "catalog": [
            {"name": "in", "type": "input", "connector": "memory", "batch_size": 1},
            {"name": "count", "type": "function", "fn": "count"},
            {"name": "out", "type": "output", "connector": "memory"},
        ],
        "windows": WINDOWS,
        "triggers": [{"window": "u", "on": "drained", "emit": "twice"}],
    },
    Job,
)


def same(segment: Segment) -> Segment:
    return segment


def twice(extent: Extent) -> list[Segment]:
    return [{"value": extent.value}] * 2


FUNCTIONS: Mapping[str, Function] = {"count": same, "twice": twice}


def program() -> CompiledJob:
    return CompiledJob(JOB, FUNCTIONS.__getitem__)


# Commits that fail.


class Failing:
    """A fault point that fails at chosen times."""

    def __init__(self, times: list[bool]) -> None:
        self._times = times

    def __call__(self, **facts: object) -> None:
        if self._times and self._times.pop(0):
            raise StoreUnavailableError("the disk is away")


async def count_despite(point: str, failures: list[list[bool]]) -> list[int]:
    """How many segments each window has after batches of one each, settled until they are."""
    store = MemoryStore(MemoryDisk())
    await store.open("job")
    source = MemoryInput({"n": n} for n in range(len(failures)))
    desk = JobCoordinator(program(), store, {"in": source}, {"out": MemoryOutput()})
    await desk.open()
    for batch, times in enumerate(failures):
        deliveries = await desk.next_deliveries()
        maker = WindowDeltaBuilder(program().windows)
        maker.add("count", None, {"n": batch})
        with faults.arm_fault_point(point, Failing(times)):
            while True:
                try:
                    settled = await desk.commit_batch(
                        "run", batch, BatchResult(deliveries, delta=maker.delta)
                    )
                    break
                except StoreUnavailableError:
                    continue
        assert settled in (CommitResult.NOW, CommitResult.BEFORE)
    rows = await store.read(lambda database: JobStore(database, "job").panes())
    await desk.close()
    await store.close()
    state = JobWindowState(program().windows, rows)
    return [it.value for it in state.on_drained()]


@pytest.mark.parametrize("point", ["durable.commit.before", "durable.commit.after"])
@SOME
@given(st.lists(st.lists(st.booleans(), max_size=3), min_size=1, max_size=5))
def test_a_commit_that_fails_leaves_nothing_in_windows(
    point: str, failures: list[list[bool]]
) -> None:
    """Segments are acknowledged when what they add is in the store, together with the news that
    they are done. A desk that lives on after a commit which failed must forget what it added in
    its memory: the batch comes again, and would count twice.
    """
    assert asyncio.run(count_despite(point, failures)) == [len(failures)]


# Emissions.

WHICH = st.tuples(
    st.sampled_from("uv"),
    st.sampled_from([None, "a", "b", 1, "1"]),
    st.sampled_from([0.0, 10.0, -10.0]),
    st.integers(1, 12),
)


def ids_of(window: str, group: object, lower: float, firing: int, value: int = 0) -> list[int]:
    extent = Extent(
        window=window,
        group=group,
        lower=lower,
        upper=lower + 10,
        value=value,
        segments=1,
        firing=firing,
        trigger=TriggerType.DRAINED,
        trigger_index=0,
    )
    made = list(emit_roots(program(), extent, 0))
    return [it.root for it in made if isinstance(it, EmittedRoot)]


@given(st.sets(WHICH, max_size=30))
def test_every_emission_is_a_root_of_its_own(
    emissions: set[tuple[str, object, float, int]],
) -> None:
    """What a trigger emits is a new root. Were its id the same as that of another window, group,
    stretch of time or firing, one would take the place of the other in the pen, or outputs would
    take it for something they have. The same emission, computed again, is the same root.
    """
    ids = [id for it in emissions for id in ids_of(*it)]
    assert len(set(ids)) == len(ids) == 2 * len(emissions)
    assert [id for it in emissions for id in ids_of(*it, value=1)] == ids
