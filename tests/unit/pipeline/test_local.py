"""A job in this process: everything is acknowledged or dead, and outputs have everything once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import (
    InputConnector,
    Job,
    JobCounters,
    JsonLinesInput,
    JsonLinesOutput,
    LocalRunner,
    MemoryInput,
    MemoryOutput,
    OutputConnector,
    RetryPolicy,
    Segment,
    Task,
    TaskType,
)
from postroad.pipeline.connectors import Committable, OutputWriter, Position, Split
from postroad.pipeline.coordinator.job_store import JobStore
from postroad.pipeline.coordinator.records import StoredRoot
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import opened
from tests.support.pipeline.crashes import Crash
from tests.support.pipeline.desk_jobs import JOB, dead_in

QUICK = RetryPolicy(attempts=3, first_s=0.001, max_s=0.01)


def job_of(functions: Sequence[str], **input_keys: object) -> Job:
    """A job that sends what its first function makes along the others, each to an output."""
    first, *others = functions
    tasks = [
        Task(name="in", type=TaskType.INPUT, connector="memory", retry=QUICK, **input_keys),  # type: ignore[arg-type]
        *(Task(name=name, type=TaskType.FUNCTION, fn=name) for name in functions),
        *(Task(name=f"to_{name}", type=TaskType.OUTPUT, connector="memory") for name in others),
    ]
    edges = [("in", first)]
    for name in others:
        edges += [(first, name), (name, f"to_{name}")]
    return Job(name=JOB, workflow=edges, catalog=tasks)


class Functions(Mapping[str, Callable[[Segment], object]]):
    """Functions by name, with a count of calls for each number."""

    def __init__(self, **functions: Callable[[Segment, int], object]) -> None:
        self._functions = functions
        self.calls: Counter[tuple[str, int]] = Counter()

    def __getitem__(self, name: str) -> Callable[[Segment], object]:
        def call(segment: Segment) -> object:
            self.calls[name, segment["n"]] += 1
            return self._functions[name](segment, self.calls[name, segment["n"]])

        return call

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)


def same(segment: Segment, attempt: int) -> Segment:
    return segment


def fail_twice(segment: Segment, attempt: int) -> Segment:
    if segment["n"] % 3 == 0 and attempt <= 2:
        raise ValueError(f"attempt {attempt}")
    return segment


def refuse_ten(segment: Segment, attempt: int) -> Segment:
    if segment["n"] == 10:
        raise ValueError("never ten")
    return segment


def numbers(output: MemoryOutput) -> list[int]:
    return sorted(segment["n"] for segment in output.segments)


async def run(
    functions: Functions,
    source: InputConnector,
    *outputs: OutputConnector,
    disk: MemoryDisk | None = None,
    **input_keys: object,
) -> JobCounters:
    """Run a job to its end; the first function has no output."""
    job, names = job_of(list(functions), **input_keys), list(functions)[1:]
    targets = {f"to_{name}": it for name, it in zip(names, outputs, strict=True)}
    store = MemoryStore(disk or MemoryDisk())
    runner = LocalRunner(job, {"in": source}, targets, store, find=functions.__getitem__)
    async with asyncio.timeout(DEADLINE_S):
        await runner.run()
    return runner.coordinator.counts


async def replay(disk: MemoryDisk, root: int) -> int:
    async with opened(MemoryStore(disk), JOB) as store:
        return await store.write(lambda ledger: JobStore(ledger.database, JOB).retry_dead(root, 0))


async def test_root_that_fails_comes_again_and_no_output_has_anything_twice() -> None:
    functions = Functions(first=same, left=same, right=fail_twice)
    left, right = Appending(), Appending()
    counts = await run(functions, MemoryInput({"n": n} for n in range(30)), left, right)
    assert sorted(left.numbers) == sorted(right.numbers) == list(range(30))
    assert functions.calls["left", 3] == 3, "the whole root came again"
    assert (counts.delivered, counts.acked, counts.failed) == (30, 30, 20)


class Appending(MemoryOutput):
    """An output that cannot tell what it has already."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def create_writer(self, stage: str) -> OutputWriter:
        return _AppendingStager(self.numbers)


class _AppendingStager(OutputWriter):
    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._numbers += [segment["n"] for segment in segments]

    def prepare_commit(self) -> Committable | None:
        return None


async def test_poison_segment_is_dead_with_its_history_until_it_is_replayed() -> None:
    disk, output = MemoryDisk(), MemoryOutput()
    source = MemoryInput({"n": n} for n in range(100))
    await run(Functions(first=same, last=refuse_ten), source, output, disk=disk)
    assert numbers(output) == [n for n in range(100) if n != 10]
    (dead,) = await dead_in(disk)
    assert dead.segment == b"\x81\xa1n\n"
    assert [(it.generation, it.task, it.error) for it in dead.history] == [
        (generation, "last", "ValueError: never ten") for generation in range(3)
    ]
    assert await replay(disk, dead.root) == 1
    await run(Functions(first=same, last=same), source, output, disk=disk)
    assert numbers(output) == list(range(100))
    assert await dead_in(disk) == []


async def test_what_was_delivered_before_a_crash_is_run_again() -> None:
    def crash_once(segment: Segment, attempt: int) -> Segment:
        if segment["n"] == 20 and attempt == 1:
            raise Crash
        return segment

    disk, output = MemoryDisk(), MemoryOutput()
    source = MemoryInput({"n": n} for n in range(50))
    functions = Functions(first=crash_once, last=same)
    with pytest.raises(Crash):
        await run(functions, source, output, disk=disk, batch_size=10)
    assert numbers(output) == list(range(20))
    await run(functions, source, output, disk=disk, batch_size=10)
    assert numbers(output) == list(range(50))
    assert functions.calls["first", 19] == 1


class Down(MemoryOutput):
    """Cannot be written to at first, and then does not show what is staged."""

    begins = publications = 0

    def create_writer(self, stage: str) -> OutputWriter:
        self.begins += 1
        if self.begins < 3:
            raise ConnectionRefusedError("down")
        return super().create_writer(stage)

    async def commit(self, staged: Committable) -> None:
        self.publications += 1
        if self.publications < 3:
            raise OSError("no space left")
        await super().commit(staged)


async def test_output_that_is_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.pipeline.local_runner._PAUSE_FIRST_S", 0.001)
    functions, output = Functions(first=same, last=same), Down()
    await run(functions, MemoryInput({"n": n} for n in range(5)), output)
    assert numbers(output) == list(range(5))
    assert functions.calls["first", 0] == 1
    assert (output.begins, output.publications) == (3, 3)


class Swallowing(MemoryInput):
    """Loses a cancellation, as libraries do that use asyncio.wait_for on Python 3.11."""

    is_bounded = False

    def __init__(self) -> None:
        super().__init__([])
        self.waiting = asyncio.Event()

    async def plan_splits(self, after: Position | None, segments: int) -> Sequence[Split]:
        if not self.waiting.is_set():
            self.waiting.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(DEADLINE_S)
        return []


async def test_runner_when_a_connector_swallows_its_cancellation_ends_all_the_same() -> None:
    source = Swallowing()
    functions = Functions(first=same, last=same)
    running = asyncio.create_task(run(functions, source, MemoryOutput()))
    await source.waiting.wait()
    running.cancel()
    done, _ = await asyncio.wait([running], timeout=DEADLINE_S / 2)
    assert done
    assert running.cancelled()


async def test_lines_that_are_no_segments_are_dead_and_stay_so(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b'{"n":3}\n\n{"n":4}')
    (tmp_path / "a.jsonl").write_bytes(b'{"n":0}\n{"n":1}\r\nno json\n[1]\n{"n":2}\n')
    functions, disk = Functions(first=same, last=same), MemoryDisk()

    async def run_once() -> list[StoredRoot]:
        source = JsonLinesInput(str(tmp_path / "*.jsonl"), split_bytes=10, settle_s=0)
        await run(functions, source, JsonLinesOutput(str(tmp_path / "out")), disk=disk)
        return sorted(await dead_in(disk), key=lambda root: root.segment)

    dead = await run_once()
    lines = b"".join(it.read_bytes() for it in sorted((tmp_path / "out").glob("*.jsonl")))
    assert sorted(lines.splitlines()) == [b'{"n":%d}' % n for n in range(5)]
    assert [it.segment for it in dead] == [b"\xc4\x03[1]", b"\xc4\x07no json"]
    assert all(it.history[0].error.startswith("it is no segment: ") for it in dead)
    for it in dead:
        await replay(disk, it.root)
    again = await run_once()
    assert [(it.root, it.segment) for it in again] == [(it.root, it.segment) for it in dead]
    assert functions.calls.total() == 10, "each segment once in both"
