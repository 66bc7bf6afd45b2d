"""What every connector of pipelines does: each kind inherits the suites that it can keep.

An input has a `source` fixture and inherits `InputBehaviour`, and `PortableInputBehaviour`,
`UnboundedBehaviour` and `UndecodableBehaviour` where they apply. An output has a `target` fixture
and inherits `OutputBehaviour`, and `UnwritableBehaviour` and `PortableOutputBehaviour` likewise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import pytest

from postroad.pipeline import LocalRunner, MemoryInput
from postroad.pipeline.connectors import Committable, Position, UnwritableSegmentsError
from postroad.pipeline.coordinator.batch_result import BatchResult
from postroad.pipeline.coordinator.committer import writer_id_prefix
from postroad.pipeline.coordinator.job_store import JobStore
from tests.contract.pipeline_media_harness import (
    BATCH,
    JOB,
    RUN,
    SEGMENTS,
    Crash,
    Source,
    Target,
    assert_once,
    count_to,
    dead_in,
    die_while_staging,
    in_order,
    job_of,
    numbers,
    opened,
    parts_of,
    plain,
    process_of,
    read_elsewhere,
    run_job,
    settling,
    stage,
    stage_elsewhere,
)
from tests.support.deadlines import DEADLINE_S

__all__ = [
    "JOB",
    "SEGMENTS",
    "InputBehaviour",
    "OutputBehaviour",
    "PortableInputBehaviour",
    "PortableOutputBehaviour",
    "Source",
    "Target",
    "UnboundedBehaviour",
    "UndecodableBehaviour",
    "UnwritableBehaviour",
    "count_to",
    "job_of",
]

# Inputs.


class InputBehaviour:
    """For every input."""

    async def test_each_segment_comes_once_in_slices_of_a_limited_length(
        self, source: Source
    ) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source, batch_size=3) as process:
            deliveries = await process.admit()
            places = [it.position for it in deliveries if it.position is not None]
            assert 1 <= sum(it.segments for it in deliveries) <= 3
            assert len(await process.read(deliveries)) == sum(it.segments for it in deliveries)
            # A slice is the same whenever it is read.
            first = [plain(process.connector.read(it)) for it in places]
            assert [plain(process.connector.read(it)) for it in places] == first
            await process.settle(deliveries)
            # The input may hear of it twice.
            await process.connector.on_committed(places)
            await process.settle_all(SEGMENTS)
        assert_once(process.received, count_to(SEGMENTS))

    async def test_a_batch_for_several_cores_has_a_split_for_each(self, source: Source) -> None:
        for start in range(0, SEGMENTS, 5):
            await source.put(count_to(SEGMENTS)[start : start + 5])
        async with process_of(source, batch_size=5) as process:
            process.desk.parallelism = 4
            deliveries = await process.admit()
            assert sum(it.segments for it in deliveries) <= 20
            assert len(deliveries) >= 4
            await process.settle(deliveries)
            await process.settle_all(SEGMENTS)
        assert_once(process.received, count_to(SEGMENTS))

    async def test_what_was_admitted_and_not_settled_is_read_again(self, source: Source) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as first:
            await first.settle(await first.admit())
            lost = await first.read([*await first.admit(), *await first.admit()])
        async with process_of(source) as second:
            again = await second.read(await second.desk.uncommitted())
            assert [it.root for it in again] == [it.root for it in lost]
            assert [it.segment for it in again] == [it.segment for it in lost]
            await second.settle_all(SEGMENTS - len(first.received))
        assert_once([*first.received, *second.received], count_to(SEGMENTS))

    async def test_slices_may_be_settled_in_any_order(self, source: Source) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as first:
            held, later = await first.admit(), await first.admit()
            await first.settle(later)
            roots = [it.root for it in await first.read(held)]
        async with process_of(source) as second:
            assert [it.root for it in await second.read(await second.desk.uncommitted())] == roots
            await second.settle_all(SEGMENTS - len(first.received))
        assert_once([*first.received, *second.received], count_to(SEGMENTS))

    async def test_a_crash_between_cut_and_admission_loses_nothing(self, source: Source) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as first:
            await first.settle(await first.admit())
            after = await first.store.read(lambda it: JobStore(it, JOB).position("in"))
            await first.connector.plan_splits(after, BATCH)
        async with process_of(source) as second:
            await second.settle_all(SEGMENTS - len(first.received))
        assert_once([*first.received, *second.received], count_to(SEGMENTS))

    async def test_a_crash_after_the_very_first_cut_loses_nothing(self, source: Source) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as first:
            await first.connector.plan_splits(None, BATCH)
        async with process_of(source) as second:
            await second.settle_all(SEGMENTS)
        assert_once(second.received, count_to(SEGMENTS))

    async def test_a_crash_before_the_input_hears_of_the_settling(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await source.put(count_to(SEGMENTS))

        async def crash(places: Sequence[Position]) -> None:
            raise Crash

        async with process_of(source) as first:
            monkeypatch.setattr(first.connector, "on_committed", crash)
            with pytest.raises(Crash):
                await first.settle(await first.admit())
        async with process_of(source) as second:
            await second.settle_all(SEGMENTS - len(first.received))
        assert_once([*first.received, *second.received], count_to(SEGMENTS))

    async def test_a_job_from_end_to_end(self, source: Source) -> None:
        await source.put(count_to(SEGMENTS))
        segments, runner = await run_job(source, SEGMENTS)
        assert in_order(segments) == count_to(SEGMENTS)
        assert runner.coordinator.counts.delivered == SEGMENTS


class PortableInputBehaviour:
    """For inputs whose slices any process can read."""

    async def test_another_process_reads_the_same(self, source: Source) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as process:
            places = [it.position for it in await process.admit() if it.position is not None]
            here = [plain(process.connector.read(it)) for it in places]
            chunks = await asyncio.to_thread(read_elsewhere, source.connector(), places)
        assert [plain(it) for it in chunks] == here
        assert source.connector().is_portable


class UnboundedBehaviour:
    """For inputs that have no end."""

    async def test_what_comes_later_is_found(self, source: Source) -> None:
        await source.put(count_to(5))
        async with process_of(source) as process:
            await process.settle_all(5)
            assert not await process.desk.is_drained()
            await source.put(count_to(SEGMENTS, 5))
            await process.settle_all(SEGMENTS)
            assert_once(process.received, count_to(SEGMENTS))

    async def test_an_empty_source_is_waited_for(self, source: Source) -> None:
        async with process_of(source) as process:
            assert await process.desk.next_deliveries() == []
            await source.put(count_to(5))
            await process.settle_all(5)
            assert_once(process.received, count_to(5))


class UndecodableBehaviour:
    """For inputs that may have what is no segment."""

    async def test_what_is_no_segment_is_a_dead_letter_and_harms_no_other(
        self, source: Source
    ) -> None:
        await source.put(count_to(5))
        await source.put_undecodable()
        await source.put(count_to(10, 5))
        segments, _ = await run_job(source, 10)
        assert in_order(segments) == count_to(10)
        (dead,) = await dead_in(source.store())
        assert dead.history[0].error.startswith("it is no segment: ")
        assert isinstance(msgspec.msgpack.decode(dead.segment), bytes)


# Outputs.


class OutputBehaviour:
    """For every output."""

    async def test_only_what_was_settled_is_seen(self, target: Target) -> None:
        async with opened(target) as connector:
            stage(connector, "never settled", count_to(3))
        connector = target.connector()
        async with settling(target, connector) as desk:
            await desk.commit_batch("run", 1, BatchResult([]))
            assert await target.published() == []
            staged = [("out", stage(connector, name, part)) for name, part in parts_of(9)]
            await desk.commit_batch("run", 2, BatchResult([], staged=staged))
            assert in_order(await target.published()) == count_to(9)

    async def test_what_is_published_twice_is_seen_once(self, target: Target) -> None:
        connector = target.connector()
        async with settling(target, connector) as desk:
            staged = stage(connector, "0", count_to(5))
            await desk.commit_batch("run", 1, BatchResult([], staged=[("out", staged)]))
            await connector.commit(staged)
            other = stage(connector, "1", count_to(7, 5))
            await desk.commit_batch("run", 2, BatchResult([], staged=[("out", other)]))
            await connector.commit(staged)
        async with opened(target, [staged]) as again:
            await again.commit(staged)
            assert in_order(await target.published()) == count_to(7)

    async def test_a_batch_that_is_settled_twice_is_seen_once(self, target: Target) -> None:
        connector = target.connector()
        async with settling(target, connector) as desk:
            for attempt in range(2):
                staged = stage(connector, str(attempt), count_to(5))
                await desk.commit_batch("run", 1, BatchResult([], staged=[("out", staged)]))
            assert numbers(await target.published()) == list(range(5))
        assert await target.leftovers() == []

    async def test_what_is_empty_or_discarded_or_abandoned_leaves_nothing(
        self, target: Target
    ) -> None:
        async with opened(target) as connector:
            assert connector.create_writer(f"{RUN}-0").prepare_commit() is None
            assert await target.leftovers() == []
            staged = stage(connector, "1", count_to(3))
            await connector.abort(staged)
            await connector.abort(staged)
            assert await target.leftovers() == []
            connector.create_writer(f"{RUN}-2").abort()
            stager = connector.create_writer(f"{RUN}-3")
            stager.write([0], count_to(1))
            stager.abort()
            assert await target.published() == []
            assert await target.leftovers() == []

    async def test_what_a_crashed_process_staged_is_removed(self, target: Target) -> None:
        async with opened(target) as connector:
            wanted = stage(connector, "0", count_to(3))
            stage(connector, "1", count_to(5, 3))
        async with opened(target, [wanted]) as again:
            assert len(await target.leftovers()) <= 1
            await again.commit(wanted)
            assert await target.leftovers() == []

    async def test_what_another_job_staged_is_left_alone(self, target: Target) -> None:
        async with opened(target) as connector:
            other = stage(connector, "0", count_to(3), writer_id_prefix(f"{JOB}-2", "out"))
        async with settling(target, target.connector()) as desk:
            await desk.commit_batch("run", 1, BatchResult([], staged=[("out", other)]))
            assert in_order(await target.published()) == count_to(3)

    async def test_a_job_from_end_to_end(self, target: Target) -> None:
        inputs = {"in": MemoryInput(count_to(SEGMENTS))}
        runner = LocalRunner(job_of(), inputs, {"out": target.connector()}, target.store())
        async with asyncio.timeout(DEADLINE_S):
            await runner.run()
        assert in_order(await target.published()) == count_to(SEGMENTS)
        assert await target.leftovers() == []

    async def test_a_crash_at_every_publication_doubles_nothing(
        self, target: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It dies when something is published and nobody has noted that."""
        inputs = {"in": MemoryInput(count_to(SEGMENTS))}
        for _ in range(3):
            connector = target.connector()
            publish = connector.commit

            async def publish_and_crash(
                staged: Committable, publish: Callable[[Committable], Awaitable[object]] = publish
            ) -> None:
                await publish(staged)
                raise Crash

            runner = LocalRunner(job_of(), inputs, {"out": connector}, target.store())
            with monkeypatch.context() as patched, pytest.raises(Crash):
                patched.setattr(connector, "commit", publish_and_crash)
                async with asyncio.timeout(DEADLINE_S):
                    await runner.run()
            await connector.close()
        runner = LocalRunner(job_of(), inputs, {"out": target.connector()}, target.store())
        async with asyncio.timeout(DEADLINE_S):
            await runner.run()
        assert in_order(await target.published()) == count_to(SEGMENTS)


class UnwritableBehaviour:
    """For outputs that cannot take every segment."""

    async def test_what_cannot_be_written_is_refused_and_the_rest_is_written(
        self, target: Target
    ) -> None:
        connector = target.connector()
        async with settling(target, connector) as desk:
            stager = connector.create_writer(f"{RUN}-0")
            first, third = count_to(1)[0], count_to(3, 2)[0]
            with pytest.raises(UnwritableSegmentsError) as refused:
                stager.write([10, 11, 12], [first, target.unwritable(), third])
            assert set(refused.value.reasons) == {11}
            assert refused.value.reasons[11]
            stager.write([10, 12], [first, third])
            staged = stager.prepare_commit()
            assert staged is not None
            await desk.commit_batch("run", 1, BatchResult([], staged=[("out", staged)]))
            assert in_order(await target.published()) == [first, third]


class PortableOutputBehaviour:
    """For outputs of which parts are staged by other processes."""

    async def test_what_another_process_staged_is_published(self, target: Target) -> None:
        connector = target.connector()
        async with settling(target, connector) as desk:
            staged = await asyncio.to_thread(
                stage_elsewhere, target.connector(), f"{RUN}-0", [7, 1 << 63], count_to(2)
            )
            assert staged is not None
            await desk.commit_batch("run", 1, BatchResult([], staged=[("out", staged)]))
            assert in_order(await target.published()) == count_to(2)

    async def test_what_a_killed_process_staged_is_removed(self, target: Target) -> None:
        async with opened(target):
            die_while_staging(target.connector(), "0", count_to(1_000))
            assert await target.published() == []
        async with opened(target):
            assert await target.leftovers() == []
            assert await target.published() == []
