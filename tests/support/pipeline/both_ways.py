"""The same deliveries of a job, run root by root and many at a time, to be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from postroad.pipeline import Job, OutputConnector, Segment
from postroad.pipeline.compiled_job import CompiledJob
from postroad.pipeline.connectors import Committable, OutputWriter
from postroad.pipeline.connectors.connector import (
    InputConnector,
    Position,
    RawRecords,
    Split,
    UnwritableSegmentsError,
    decode_segment,
)
from postroad.pipeline.coordinator.records import FailedRoot, RootInput, decode_or_reject
from postroad.pipeline.functions import Function
from postroad.pipeline.vectorized.partition import SingleStagePartition
from postroad.pipeline.windows import JobWindowDelta
from tests.support.pipeline.plain_batch import PlainBatchExecutor, write_batch_output
from tests.support.pipeline.seen_windows import encode_delta

NOW_MS = 1_700_000_000_000

Written: TypeAlias = Counter[tuple[int, str]]
Refuse: TypeAlias = Callable[[Segment], bool]


def refuse_nothing(segment: Segment) -> bool:
    return False


class Kept(OutputConnector):
    """Keeps what is written, as it is at that moment.

    Args:
        refuses: what it says of segments that it cannot write.
        at_once: how many of those it finds before it gives up.
    """

    def __init__(self, refuses: Refuse = refuse_nothing, at_once: int = 100) -> None:
        self.refuses = refuses
        self.at_once = at_once
        self.written: Written = Counter()
        self.stages: list[str] = []
        self.abandoned = 0

    def create_writer(self, stage: str) -> OutputWriter:
        self.stages.append(stage)
        return _KeptStager(self)


class _KeptStager(OutputWriter):
    def __init__(self, output: Kept) -> None:
        self._output = output
        self._count = 0

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        output = self._output
        refused = [
            id for id, segment in zip(ids, segments, strict=True) if output.refuses(segment)
        ][: output.at_once]
        if refused:
            raise UnwritableSegmentsError({id: f"{id} is refused" for id in refused})
        for id, segment in zip(ids, segments, strict=True):
            output.written[id, tell(segment)] += 1
        self._count += len(ids)

    def prepare_commit(self) -> Committable | None:
        return {"count": self._count} if self._count else None

    def abort(self) -> None:
        self._output.abandoned += 1


def tell(segment: Segment) -> str:
    """What a segment is, whatever it has, with the order of its keys."""
    return repr(list(segment.items()))


class RawInput(InputConnector):
    """Gives chunks as they are; decodes them in its own way."""

    def __init__(self, decoder: Callable[[bytes], Segment] = decode_segment) -> None:
        self._decoder = decoder

    @property
    def decode(self) -> Callable[[bytes], Segment]:
        return self._decoder

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        return []

    def read(self, place: Position) -> Iterator[RawRecords]:
        return iter(())


class Slices(NamedTuple):
    """A slice of an input, as it was read."""

    task: str
    generation: int
    chunks: list[RawRecords]


class Failed(NamedTuple):
    """What of a failed root must be the same, whichever way it was run."""

    task: str
    generation: int
    payload: bytes
    published: list[int]
    is_permanent: bool
    failed_tasks: list[str]
    error: str | None
    """If it is the only one: which of several is the first is as it happens."""


class Comparable(NamedTuple):
    """What a batch came to."""

    written: dict[str, Written]
    failed: dict[int, Failed]
    delta: bytes


def make_program(job: Job, table: Mapping[str, Function]) -> CompiledJob:
    program = CompiledJob(job, table.__getitem__)
    program.start()
    return program


def run_one_by_one(
    program: CompiledJob,
    slices: Iterable[Slices],
    connector: InputConnector,
    outputs: Mapping[str, Kept],
) -> Comparable:
    """As a job is meant."""
    delivered = [root for it in slices for root in deliver(program, it, connector)]
    return run_delivered(program, delivered, outputs)


def run_delivered(
    program: CompiledJob, roots: Iterable[RootInput], outputs: Mapping[str, Kept]
) -> Comparable:
    """The same with roots, wherever they come from."""
    batch = PlainBatchExecutor(program)
    for it in roots:
        batch.process(it, NOW_MS)
    for name, output in outputs.items():
        write_batch_output(output, f"stage-{name}", name, batch)
    batch.mark_written(outputs)
    failed, delta = batch.finish(NOW_MS)
    return comparable(outputs, failed, delta)


def deliver(program: CompiledJob, slice: Slices, connector: InputConnector) -> Iterator[RootInput]:
    """As the desk does it."""
    for chunk in slice.chunks:
        for position, raw in zip(chunk.positions, chunk.raws, strict=True):
            root = program.ack_ids.root(slice.task, chunk.source, position)
            segment = decode_or_reject(raw, connector.decode)
            yield RootInput(root, slice.task, slice.generation, segment, raw=raw)


def run_fused(
    program: CompiledJob,
    slices: Iterable[Slices],
    connector: InputConnector,
    outputs: Mapping[str, Kept],
) -> Comparable:
    """As a part of a batch does it."""
    part = SingleStagePartition(program, outputs, "part")
    for number, it in enumerate(slices):
        part.process_split(number, it.task, it.generation, connector, it.chunks)
    outcome = part.finish()
    counts = {task: staged["count"] for task, staged in outcome.staged}
    written = {name: it.written.total() for name, it in outputs.items() if it.written}
    assert counts == written
    return comparable(outputs, outcome.failed, outcome.delta)


def comparable(
    outputs: Mapping[str, Kept], failed: Sequence[FailedRoot], delta: JobWindowDelta
) -> Comparable:
    """What must be the same, whichever way a batch was run."""
    by_root = {it.root: to_failed(it) for it in failed}
    assert len(by_root) == len(failed)
    return Comparable(
        {name: it.written for name, it in outputs.items()}, by_root, encode_delta(delta)
    )


def to_failed(it: FailedRoot) -> Failed:
    attempt = it.attempt
    assert attempt.generation == it.generation
    return Failed(
        it.task,
        it.generation,
        it.segment,
        it.published,
        it.is_permanent,
        sorted(attempt.missing),
        attempt.error if len(attempt.missing) < 2 else None,
    )
