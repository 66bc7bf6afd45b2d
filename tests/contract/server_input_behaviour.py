"""What every input on a server does that keeps account of what was acknowledged, and may be down.

Inputs inherit `ServerInputBehaviour` with the `source` fixture of the other suites, and
`LonelyServerBehaviour` with a `lonely` fixture: a source on a server of its own.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from postroad.core.errors import ConfigError
from postroad.pipeline import InputConnector, LocalRunner, MemoryOutput
from postroad.pipeline.connectors import Position
from postroad.pipeline.coordinator.job_store import JobStore
from tests.contract.killed_jobs import run_with_kills
from tests.contract.pipeline_media_harness import (
    BATCH,
    JOB,
    SEGMENTS,
    Crash,
    Source,
    assert_once,
    count_to,
    job_of,
    numbers,
    plain,
    process_of,
)
from tests.support.deadlines import DEADLINE_S

POLL_S = 0.02


class Server(Protocol):
    """A server in a process of its own."""

    def start(self) -> None:
        """Start it on the data that it had."""

    def kill(self) -> None:
        """End it at once."""

    def pause(self) -> None:
        """Have it answer nothing."""

    def resume(self) -> None:
        """Have it answer again."""


class ServerSource(Source):
    """A source on a server."""

    server: Any
    kind: str
    """The name of the connector."""

    def options(self) -> dict[str, Any]:
        """Those of the connector."""
        raise AssertionError("each source has its own")

    def connector(self, **more: Any) -> InputConnector:
        """A new object."""
        raise AssertionError("each source has its own")

    async def unacknowledged(self) -> int:
        """How many segments the server knows to be delivered and not to be done."""
        raise AssertionError("each source has its own")

    async def delete(self) -> None:
        """Have all of it gone."""
        raise AssertionError("each source has its own")


async def eventually(look: Callable[[], Awaitable[object]], expected: object) -> None:
    """Wait until something is as it should be."""
    deadline = time.monotonic() + DEADLINE_S
    while (found := await look()) != expected:
        assert time.monotonic() < deadline, f"it is {found!r} and not {expected!r}"
        await asyncio.sleep(POLL_S)


class ServerInputBehaviour:
    """For inputs that acknowledge."""

    async def test_what_is_settled_is_acknowledged(self, source: ServerSource) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as process:
            held = await process.admit()
            assert await source.unacknowledged() > 0
            while len(process.received) < SEGMENTS - sum(it.segments for it in held):
                await process.settle(await process.admit())
            await eventually(source.unacknowledged, sum(it.segments for it in held))
            await process.settle(held)
            await eventually(source.unacknowledged, 0)

    async def test_acknowledgements_that_were_lost_are_made_up_for(
        self, source: ServerSource, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await source.put(count_to(SEGMENTS))

        async def crash(places: Sequence[Position]) -> None:
            raise Crash

        async with process_of(source) as first:
            held = await first.admit()
            monkeypatch.setattr(first.connector, "on_committed", crash)
            with pytest.raises(Crash):
                await first.settle(await first.admit())
        async with process_of(source) as second:
            later = await second.admit()
            unsettled = sum(it.segments for it in [*held, *later])
            await eventually(source.unacknowledged, unsettled)
            # Both count their batches from one, and the first one is settled already.
            await second.settle([])
            await second.settle_all(SEGMENTS - len(first.received))
            await eventually(source.unacknowledged, 0)
        assert_once([*first.received, *second.received], count_to(SEGMENTS))

    async def test_what_a_dead_process_had_fetched_comes_at_once(
        self, source: ServerSource
    ) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as first:
            await first.connector.plan_splits(None, SEGMENTS)
            assert await source.unacknowledged() == SEGMENTS
        async with process_of(source, batch_size=SEGMENTS) as second:
            deliveries = await second.desk.next_deliveries()
            assert sum(it.segments for it in deliveries) == SEGMENTS
            await second.settle(deliveries)
            await eventually(source.unacknowledged, 0)

    async def test_a_cut_that_was_never_admitted_is_cut_again(self, source: ServerSource) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as process:
            await process.settle(await process.admit())
            after = await process.store.read(lambda it: JobStore(it, JOB).position("in"))
            first = await process.connector.plan_splits(after, BATCH)
            assert list(await process.connector.plan_splits(after, BATCH)) == list(first)
            await process.settle_all(SEGMENTS)
        assert_once(process.received, count_to(SEGMENTS))

    async def test_who_waits_is_woken(self, source: ServerSource) -> None:
        async with process_of(source) as process:
            assert await process.desk.next_deliveries() == []
            waiting = asyncio.create_task(process.connector.wait(DEADLINE_S))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await source.put(count_to(1))
            # Sooner than whoever is not woken.
            async with asyncio.timeout(DEADLINE_S / 2):
                while not (deliveries := await process.desk.next_deliveries()):
                    await process.connector.wait(DEADLINE_S)
            waiting.cancel()
            await process.settle(deliveries)
        assert_once(process.received, count_to(1))

    async def test_waiting_ends_in_time(self, source: ServerSource) -> None:
        async with process_of(source) as process:
            assert await process.desk.next_deliveries() == []
            began = time.monotonic()
            async with asyncio.timeout(DEADLINE_S):
                await process.connector.wait(0.1)
            assert time.monotonic() - began > 0.05

    async def test_waiting_that_is_given_up_loses_nothing(self, source: ServerSource) -> None:
        async with process_of(source) as process:
            for n in range(5):
                assert await process.desk.next_deliveries() == []
                waiting = asyncio.create_task(process.connector.wait(DEADLINE_S))
                await asyncio.sleep(0.01 * n)
                waiting.cancel()
                await asyncio.wait([waiting])
                await source.put(count_to(n + 1, n))
                await process.settle(await process.admit())
        assert_once(process.received, count_to(5))

    async def test_an_end_where_it_was_at_the_beginning(self, source: ServerSource) -> None:
        await source.put(count_to(SEGMENTS))
        connector = source.connector(bounded=True)
        assert connector.is_bounded
        async with process_of(source, connector) as process:
            await source.put(count_to(SEGMENTS + 5, SEGMENTS))
            await process.settle_all(SEGMENTS)
            assert await process.desk.is_drained()
        async with process_of(source, source.connector(bounded=True)) as again:
            await again.settle_all(5)
        assert_once([*process.received, *again.received], count_to(SEGMENTS + 5))

    async def test_a_job_with_an_end_ends(self, source: ServerSource) -> None:
        await source.put(count_to(SEGMENTS))
        output, inputs = MemoryOutput(), {"in": source.connector(bounded=True)}
        async with asyncio.timeout(DEADLINE_S):
            await LocalRunner(job_of(), inputs, {"out": output}, source.store()).run()
        assert numbers(output.segments) == list(range(SEGMENTS))
        await eventually(source.unacknowledged, 0)

    async def test_a_slice_has_a_limited_length(self, source: ServerSource) -> None:
        await source.put(count_to(10))
        async with process_of(
            source, source.connector(split_bytes=60, split_segments=9)
        ) as process:
            deliveries = await process.admit()
            assert len(deliveries) > 2
            assert max(it.segments for it in deliveries) <= 3

    async def test_an_open_one_can_be_sent_to_another_process(self, source: ServerSource) -> None:
        await source.put(count_to(5))
        async with process_of(source) as process:
            places = [it.position for it in await process.admit() if it.position]
            other = pickle.loads(pickle.dumps(process.connector))
            assert [plain(other.read(it)) for it in places] == [
                plain(process.connector.read(it)) for it in places
            ]

    @pytest.mark.slow
    async def test_a_job_that_is_killed_again_and_again(
        self, source: ServerSource, tmp_path: Path
    ) -> None:
        await source.put(count_to(SEGMENTS))
        options = source.options() | {"bounded": True}
        assert await run_with_kills(tmp_path, source.kind, options) == list(range(SEGMENTS))
        await eventually(source.unacknowledged, 0)

    async def test_a_source_that_is_not_there(self, source: ServerSource) -> None:
        await source.delete()
        with pytest.raises(ConfigError, match=f"there is no stream '{source.options()['stream']}'"):
            await source.connector().open([])

    async def test_a_source_that_vanishes(self, source: ServerSource) -> None:
        await source.put(count_to(SEGMENTS))
        async with process_of(source) as process:
            (delivery, *_) = await process.admit()
            await source.delete()
            with pytest.raises(ConfigError, match=source.options()["stream"]):
                await process.desk.next_deliveries()
            with pytest.raises((ConfigError, OSError), match=source.options()["stream"]):
                await process.read([delivery])


class LonelyServerBehaviour:
    """For the same, when the server has troubles."""

    async def test_a_server_that_is_down(self, lonely: ServerSource) -> None:
        await lonely.put(count_to(SEGMENTS))
        async with process_of(lonely) as process:
            deliveries = await process.admit()
            lonely.server.kill()
            assert await process.desk.next_deliveries() == []
            with pytest.raises(ConnectionError):
                await process.read(deliveries)
            await process.connector.wait(0.01)
            # That it is settled is known to the job, and told when that is possible.
            await process.connector.on_committed([it.position for it in deliveries if it.position])
        with pytest.raises(ConnectionError):
            await lonely.connector().open([])

    async def test_a_server_that_is_killed_and_comes_back(self, lonely: ServerSource) -> None:
        await lonely.put(count_to(SEGMENTS))
        async with process_of(lonely) as process:
            await process.settle(await process.admit())
            held = await process.admit()
            lonely.server.kill()
            assert await process.desk.next_deliveries() == []
            lonely.server.start()
            await lonely.put(count_to(SEGMENTS + 5, SEGMENTS))
            await process.settle(held)
            await process.settle_all(SEGMENTS + 5)
            await eventually(lonely.unacknowledged, 0)
        assert_once(process.received, count_to(SEGMENTS + 5))

    async def test_a_server_that_answers_nothing(
        self, lonely: ServerSource, short_times: None
    ) -> None:
        await lonely.put(count_to(SEGMENTS))
        async with process_of(lonely) as process:
            deliveries = await process.admit()
            lonely.server.pause()
            try:
                # The rest of its last answer may have been on its way already.
                deliveries += await process.desk.next_deliveries()
                assert await process.desk.next_deliveries() == []
                with pytest.raises(TimeoutError):
                    await process.read(deliveries)
            finally:
                lonely.server.resume()
            await process.settle(deliveries)
            await process.settle_all(SEGMENTS)
        assert_once(process.received, count_to(SEGMENTS))
