"""A job in this process: everything is acknowledged or dead, and outputs have everything once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from postroad.durable import MemoryDisk, MemoryStore
from postroad.pipeline import (
    Job,
    LinesInput,
    LinesOutput,
    LocalRunner,
    RetryPolicy,
    Segment,
    SeqInput,
    SeqOutput,
    Task,
    TaskType,
)
from postroad.pipeline.media import Staged, Stager
from postroad.pipeline.pen import Pen
from postroad.pipeline.records import PenRoot
from tests.support.deadlines import DEADLINE_S

QUICK = RetryPolicy(attempts=3, first_s=0.001, max_s=0.01)


def job_of(functions: Sequence[str], **input_keys: object) -> Job:
    """A job that sends what its first function makes along the others, each to an output."""
    first, *others = functions
    tasks = [
        Task(name="in", type=TaskType.INPUT, medium="seq", retry=QUICK, **input_keys),  # type: ignore[arg-type]
        *(Task(name=name, type=TaskType.FUNCTION, fn=name) for name in functions),
        *(Task(name=f"to_{name}", type=TaskType.OUTPUT, medium="seq") for name in others),
    ]
    edges = [("in", first)]
    for name in others:
        edges += [(first, name), (name, f"to_{name}")]
    return Job(name="job", workflow=edges, catalog=tasks)


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


def numbers(output: SeqOutput) -> list[int]:
    return sorted(segment["n"] for segment in output.segments)


async def run(runner: LocalRunner) -> None:
    async with asyncio.timeout(DEADLINE_S):
        await runner.run()


async def dead_in(store: MemoryStore) -> list[PenRoot]:
    await store.open()
    try:
        return await store.read(lambda database: Pen(database, "job").dead(100))
    finally:
        await store.close()


async def test_a_root_that_fails_comes_again_and_no_output_has_anything_twice() -> None:
    functions = Functions(first=same, left=same, right=fail_twice)
    outputs = {"to_left": Appending(), "to_right": Appending()}
    runner = LocalRunner(
        job_of(list(functions)),
        {"in": SeqInput({"n": n} for n in range(30))},
        outputs,
        find=functions.__getitem__,
    )
    await run(runner)
    assert sorted(outputs["to_left"].numbers) == sorted(outputs["to_right"].numbers)
    assert sorted(outputs["to_right"].numbers) == list(range(30))
    assert functions.calls["left", 3] == 3, "the whole root came again"
    counts = runner.desk.counts
    assert (counts.delivered, counts.acked, counts.failed) == (30, 30, 20)


class Appending(SeqOutput):
    """An output that cannot tell what it has already."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: list[int] = []

    def begin(self, stage: str) -> Stager:
        return _AppendingStager(self.numbers)


class _AppendingStager(Stager):
    def __init__(self, numbers: list[int]) -> None:
        self._numbers = numbers

    def write(self, ids: Sequence[int], segments: Sequence[Segment]) -> None:
        self._numbers += [segment["n"] for segment in segments]

    def finish(self) -> Staged | None:
        return None


async def test_a_poison_segment_is_dead_with_its_history_and_the_rest_flows_on() -> None:
    disk = MemoryDisk()
    functions = Functions(first=same, last=refuse_ten)
    output = SeqOutput()
    inputs = {"in": SeqInput({"n": n} for n in range(100))}
    job = job_of(list(functions))
    await run(
        LocalRunner(job, inputs, {"to_last": output}, MemoryStore(disk), find=functions.__getitem__)
    )
    assert numbers(output) == [n for n in range(100) if n != 10]
    (dead,) = await dead_in(MemoryStore(disk))
    assert dead.segment == b"\x81\xa1n\n"
    assert [(it.generation, it.task, it.error) for it in dead.history] == [
        (generation, "last", "ValueError: never ten") for generation in range(3)
    ]


async def test_a_dead_letter_may_be_replayed() -> None:
    disk, functions = MemoryDisk(), Functions(first=same, last=refuse_ten)
    output = SeqOutput()
    inputs = {"in": SeqInput([{"n": 10}])}
    job = job_of(list(functions))
    await run(
        LocalRunner(job, inputs, {"to_last": output}, MemoryStore(disk), find=functions.__getitem__)
    )
    (dead,) = await dead_in(MemoryStore(disk))
    store = MemoryStore(disk)
    await store.open()
    assert await store.write(lambda ledger: Pen(ledger.database, "job").replay(dead.root, 0)) == 1
    await store.close()
    mended = Functions(first=same, last=same)
    await run(
        LocalRunner(job, inputs, {"to_last": output}, MemoryStore(disk), find=mended.__getitem__)
    )
    assert numbers(output) == [10]
    assert await dead_in(MemoryStore(disk)) == []


async def test_what_was_delivered_before_a_crash_is_run_again() -> None:
    disk = MemoryDisk()
    output = SeqOutput()
    inputs = {"in": SeqInput({"n": n} for n in range(50))}

    def crash_once(segment: Segment, attempt: int) -> Segment:
        if segment["n"] == 20 and attempt == 1:
            raise Crash
        return segment

    functions = Functions(first=crash_once, last=same)
    job = job_of(list(functions), batch_size=10)
    with pytest.raises(Crash):
        await run(
            LocalRunner(
                job, inputs, {"to_last": output}, MemoryStore(disk), find=functions.__getitem__
            )
        )
    assert numbers(output) == list(range(20))
    await run(
        LocalRunner(job, inputs, {"to_last": output}, MemoryStore(disk), find=functions.__getitem__)
    )
    assert numbers(output) == list(range(50))
    assert functions.calls["first", 19] == 1


class Crash(BaseException):
    """Not even an exception: the process is gone."""


async def test_an_output_that_is_down_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.pipeline.local._PAUSE_FIRST_S", 0.001)
    output = Down()
    functions = Functions(first=same, last=same)
    await run(
        LocalRunner(
            job_of(list(functions)),
            {"in": SeqInput({"n": n} for n in range(5))},
            {"to_last": output},
            find=functions.__getitem__,
        )
    )
    assert numbers(output) == list(range(5))
    assert functions.calls["first", 0] == 1


class Down(SeqOutput):
    """Cannot be written to at first."""

    attempts = 0

    def begin(self, stage: str) -> Stager:
        self.attempts += 1
        if self.attempts < 3:
            raise ConnectionRefusedError("down")
        return super().begin(stage)


async def test_files_of_lines(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b'{"n":3}\n\n{"n":4}')
    (tmp_path / "a.jsonl").write_bytes(b'{"n":0}\n{"n":1}\r\nno json\n[1]\n{"n":2}\n')
    functions, disk = Functions(first=same, last=same), MemoryDisk()
    inputs = {"in": LinesInput(str(tmp_path / "*.jsonl"), slice_bytes=10)}
    outputs = {"to_last": LinesOutput(str(tmp_path / "out"))}
    runner = LocalRunner(
        job_of(list(functions)), inputs, outputs, MemoryStore(disk), find=functions.__getitem__
    )
    await run(runner)
    lines = b"".join(it.read_bytes() for it in sorted((tmp_path / "out").glob("*.jsonl")))
    assert sorted(lines.splitlines()) == [b'{"n":%d}' % n for n in range(5)]
    dead = await dead_in(MemoryStore(disk))
    assert sorted(it.segment for it in dead) == [
        b"\xc4\x03[1]",
        b"\xc4\x07no json",
    ]
    assert all(it.history[0].error.startswith("it is no segment: ") for it in dead)


async def test_an_output_that_cannot_be_published_to_is_waited_for() -> None:
    output = Unpublishable()
    functions = Functions(first=same, last=same)
    await run(
        LocalRunner(
            job_of(list(functions)),
            {"in": SeqInput({"n": n} for n in range(5))},
            {"to_last": output},
            find=functions.__getitem__,
        )
    )
    assert numbers(output) == list(range(5))
    assert output.attempts == 3


class Unpublishable(SeqOutput):
    """Takes what is staged, and does not show it at first."""

    attempts = 0

    async def publish(self, staged: Staged) -> None:
        self.attempts += 1
        if self.attempts < 3:
            raise OSError("no space left")
        await super().publish(staged)


async def test_what_never_was_a_segment_stays_dead_when_it_is_replayed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"no json")
    functions, disk = Functions(first=same, last=same), MemoryDisk()

    async def run_once() -> list[PenRoot]:
        inputs, outputs = {"in": LinesInput(str(tmp_path / "a.jsonl"))}, {"to_last": SeqOutput()}
        find, store = functions.__getitem__, MemoryStore(disk)
        await run(LocalRunner(job_of(list(functions)), inputs, outputs, store, find=find))
        return await dead_in(MemoryStore(disk))

    (dead,) = await run_once()
    store = MemoryStore(disk)
    await store.open()
    await store.write(lambda ledger: Pen(ledger.database, "job").replay(dead.root, 0))
    await store.close()
    (again,) = await run_once()
    assert (again.root, again.segment) == (dead.root, b"\xc4\x07no json")
    assert not functions.calls
