"""Any job in plain Python does what its data says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import (
    FlowAction,
    FlowCondition,
    Job,
    LocalRunner,
    MemoryInput,
    Segment,
    Task,
    TaskType,
)
from postroad.pipeline.connectors.connector import encode_segment
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.functions import Function
from tests.property.pipeline_strategies import SOME
from tests.support.deadlines import DEADLINE_S
from tests.support.pipeline.desk_jobs import AT_ONCE, JOB, Appended

# Functions of a segment and of how often its root was delivered, so that both the job and the
# evaluation below know what they do.

Attempted: TypeAlias = Callable[[Segment, int], Any]


def same(segment: Segment, attempt: int) -> Segment:
    return segment


def nothing(segment: Segment, attempt: int) -> None:
    """Drop it."""


def halves(segment: Segment, attempt: int) -> list[Segment]:
    return [{**segment, "n": segment["n"] // 2}, {**segment, "n": segment["n"] // 2 + 1}]


def change(segment: Segment, attempt: int) -> Segment:
    segment["n"] += 1
    return segment


def refuse_odd(segment: Segment, attempt: int) -> Segment:
    if segment["n"] % 2:
        raise ValueError("odd")
    return segment


def refuse_at_first(segment: Segment, attempt: int, times: int) -> Segment:
    if segment["n"] % 3 and attempt <= times:
        raise TimeoutError("not yet")
    return segment


FUNCTIONS: Mapping[str, Attempted] = {
    "same": same,
    "nothing": nothing,
    "halves": halves,
    "change": change,
    "refuse_odd": refuse_odd,
    "refuse_once": partial(refuse_at_first, times=1),
    "refuse_twice": partial(refuse_at_first, times=2),
    "refuse_for_ever": partial(refuse_at_first, times=100),
}


def is_even(new: object, old: Segment) -> bool:
    return isinstance(new, dict) and new["n"] % 2 == 0


def is_small(new: object, old: Segment) -> bool:
    return isinstance(new, dict) and new["n"] < 4


def was_even(new: object, old: Segment) -> bool:
    return bool(old["n"] % 2 == 0)


def is_timeout(error: object, old: Segment) -> bool:
    return isinstance(error, TimeoutError)


def describe(error: Exception, segment: Segment) -> Segment:
    return {"id": segment["id"], "n": -1, "error": str(error)}


PREDICATES = {"is_even": is_even, "is_small": is_small, "is_timeout": is_timeout}
TABLE: Mapping[str, Function] = PREDICATES | {"was_even": was_even, "describe": describe}


# Jobs.


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A job of up to six functions; nothing that is made is without somewhere to go."""
    names = [f"t{number}" for number in range(draw(st.integers(0, 6)))]
    sources = ["in", *names]
    edges: list[tuple[str, str]] = []
    for place, name in enumerate(names, start=1):
        edges += [(it, name) for it in draw(some_of(sources[:place]))]
    for source in sources:
        is_leaf = all(it != source for it, _ in edges)
        outputs = draw(some_of(["out0", "out1"], at_least=int(is_leaf)))
        edges += [(source, it) for it in outputs]
    catalog = [
        Task(name="in", type=TaskType.INPUT, connector="memory", fn="deliver", retry=AT_ONCE)
    ]
    functions = st.sampled_from(sorted(FUNCTIONS))
    catalog += [Task(name=it, type=TaskType.FUNCTION, fn=draw(functions)) for it in names]
    catalog += [Task(name=it, type=TaskType.OUTPUT, connector="memory") for it in ("out0", "out1")]
    conditions = draw(st.lists(conditions_of(draw(st.permutations(edges))), max_size=4))
    return Job(name=JOB, workflow=edges, catalog=catalog, flow_conditions=conditions)


def some_of(names: list[str], at_least: int = 1) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), min_size=at_least, max_size=2, unique=True)


@st.composite
def conditions_of(draw: st.DrawFn, edges: list[tuple[str, str]]) -> FlowCondition:
    source = draw(st.sampled_from(edges))[0]
    children = [target for it, target in edges if it == source]
    to: Any = draw(st.one_of(st.sampled_from(["all", "none"]), some_of(children)))
    kind = draw(st.sampled_from(["plain", "plain", "exceptions", "retry"]))
    if kind == "retry":
        return FlowCondition(
            source=source,
            to="none",
            predicate="is_small",
            short_circuit=True,
            action=FlowAction.RETRY,
        )
    if kind == "exceptions":
        predicate = draw(st.sampled_from([None, "is_timeout", {"not": "is_timeout"}]))
        transform = draw(st.sampled_from([None, "describe"]))
        return FlowCondition(
            source=source,
            to=to,
            predicate=predicate,
            exceptions=True,
            short_circuit=True,
            post_transform=transform,
        )
    parts = st.sampled_from(["is_even", "was_even"])
    predicate = draw(st.sampled_from([None, "is_even", "is_small", {"not": draw(parts)}]))
    excluded = draw(st.sampled_from([[], ["extra"]]))
    is_last = draw(st.booleans())
    return FlowCondition(
        source=source, to=to, predicate=predicate, exclude_keys=excluded, short_circuit=is_last
    )


SEGMENTS = st.lists(st.integers(0, 9), max_size=8).map(
    lambda numbers: [{"id": id, "n": n, "extra": "x"} for id, n in enumerate(numbers)]
)


# What a job means, by another way: one root after the other, branch by branch, by recursion.


class Failed(Exception):
    """A branch came to nothing."""


Written: TypeAlias = dict[tuple[object, ...], tuple[str, str]]


class Meaning:
    """What comes of one delivery of a root."""

    def __init__(self, job: Job, attempt: int) -> None:
        self._job = job
        self._attempt = attempt
        self._functions = {
            it.name: FUNCTIONS[it.fn]
            for it in job.catalog
            if it.type is TaskType.FUNCTION and it.fn
        }
        self.written: Written = {}
        self.has_failed = False

    def follow(self, task: str, segment: Segment, path: tuple[object, ...]) -> None:
        """A segment comes to a task; the path says what it was made of."""
        if task.startswith("out"):
            self.written[(*path, task)] = (task, repr(sorted(segment.items())))
            return
        try:
            made = self._make(task, segment)
        except Failed:
            self.has_failed = True
            return
        for place, (new, targets) in enumerate(made):
            for target in targets:
                self.follow(target, dict(new), (*path, task, place))

    def _make(self, task: str, segment: Segment) -> list[tuple[Segment, list[str]]]:
        conditions = [it for it in self._job.flow_conditions if it.source == task]
        given = dict(segment)
        try:
            made = self._functions.get(task, same)(given, self._attempt)
        except (ValueError, TimeoutError) as error:
            return [self._divert(task, given, error, conditions)]
        made = [] if made is None else made if isinstance(made, list) else [made]
        plain = [it for it in conditions if not it.exceptions]
        return [self._route(task, new, given, plain) for new in made]

    def _route(
        self, task: str, new: Segment, old: Segment, conditions: list[FlowCondition]
    ) -> tuple[Segment, list[str]]:
        children = [target for source, target in self._job.workflow if source == task]
        if not conditions:
            return new, children
        chosen = [it for it in conditions if holds(it.predicate, new, old)]
        last = next((it for it in chosen if it.short_circuit), None)
        if last is not None:
            if last.action is FlowAction.RETRY:
                raise Failed
            chosen = [last]
        targets = [it for it in children if any(named(it, one.to) for one in chosen)]
        excluded = {key for it in chosen for key in it.exclude_keys}
        return {key: value for key, value in new.items() if key not in excluded}, targets

    def _divert(
        self, task: str, segment: Segment, error: Exception, conditions: list[FlowCondition]
    ) -> tuple[Segment, list[str]]:
        for it in conditions:
            if it.exceptions and holds(it.predicate, error, segment):
                made = describe(error, segment) if it.post_transform else segment
                children = [target for source, target in self._job.workflow if source == task]
                return made, [child for child in children if named(child, it.to)]
        raise Failed


def holds(predicate: Any, new: object, old: Segment) -> bool:
    if predicate is None:
        return True
    if isinstance(predicate, dict):
        return not holds(predicate["not"], new, old)
    return bool(TABLE[predicate](new, old))


def named(name: str, to: str | list[str]) -> bool:
    return to == "all" or name in ([to] if isinstance(to, str) else to)


class Expected(NamedTuple):
    """What a job comes to in the end."""

    outputs: Counter[tuple[str, str]]
    dead: list[int]


def expect(job: Job, segments: list[Segment]) -> Expected:
    expected = Expected(Counter(), [])
    for segment in segments:
        written: Written = {}
        for attempt in range(1, AT_ONCE.attempts + 1):
            meaning = Meaning(job, attempt)
            meaning.follow("in", segment, ())
            # What an earlier attempt wrote is not written again.
            written = meaning.written | written
            if not meaning.has_failed:
                break
        else:
            expected.dead.append(segment["id"])
        expected.outputs.update(written.values())
    return expected


# And as it is done.


class Done(NamedTuple):
    """What a runner made of a job."""

    outputs: Counter[tuple[str, str]]
    dead: list[int]


async def carry_out(job: Job, segments: list[Segment], split_segments: int) -> Done:
    attempts: Counter[int] = Counter()

    def deliver(segment: Segment) -> Segment:
        attempts[segment["id"]] += 1
        return segment

    def find(name: str) -> Function:
        if name in TABLE:
            return TABLE[name]
        if name == "deliver":
            return deliver
        return lambda segment: FUNCTIONS[name](segment, attempts[segment["id"]])

    disk, outputs = MemoryDisk(), {"out0": Appended(), "out1": Appended()}
    inputs = {"in": MemoryInput(segments, split_segments)}
    async with asyncio.timeout(DEADLINE_S):
        await LocalRunner(job, inputs, outputs, MemoryStore(disk), find=find).run()
    written = Counter(
        (name, repr(sorted(segment.items())))
        for name, output in outputs.items()
        for segment in output.segments
    )
    return Done(written, await dead_in(disk, segments))


async def dead_in(disk: MemoryDisk, segments: list[Segment]) -> list[int]:
    """Ids of the dead letters, which are as they were read."""
    store = MemoryStore(disk)
    await store.open(JOB)
    try:
        dead = await store.read(lambda database: JobStore(database, JOB).list_dead(100))
    finally:
        await store.close()
    ids = {encode_segment(segment): segment["id"] for segment in segments}
    return sorted(ids[it.segment] for it in dead)


@SOME
@given(jobs(), SEGMENTS, st.integers(1, 4))
def test_a_runner_does_what_the_job_says(
    job: Job, segments: list[Segment], split_segments: int
) -> None:
    done = asyncio.run(carry_out(job, segments, split_segments))
    expected = expect(job, segments)
    assert done.dead == expected.dead
    assert done.outputs == expected.outputs
