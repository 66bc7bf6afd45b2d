"""Queues of a node do what every connector does. The job keeps its account in the same store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import msgspec
import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import StoreUnavailableError
from postroad.durable import (
    MemoryDisk,
    MemoryStore,
    PostgresStore,
    SqliteStore,
    Store,
    StoredMessage,
)
from postroad.durable.store.backends.backend import StoreConnection
from postroad.durable.store.tables import queries as query
from postroad.pipeline import (
    InputConnector,
    LocalRunner,
    MemoryInput,
    OutputConnector,
    QueueInput,
    QueueOutput,
    Segment,
)
from tests.contract.pipeline_media_behaviour import (
    JOB,
    SEGMENTS,
    InputBehaviour,
    OutputBehaviour,
    PortableOutputBehaviour,
    Source,
    Target,
    UnboundedBehaviour,
    UndecodableBehaviour,
    UnwritableBehaviour,
    count_to,
    job_of,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import PEER, QUEUE, make_letter, put
from tests.support.servers.postgres import fresh_database

PAGE = 10


class Stores:
    """Stores of one node, one after the other, as processes would open them."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._make = make
        self._prepared: Store | None = None
        self._last: Store | None = None

    def next(self) -> Store:
        """For the next process."""
        self._last, self._prepared = self._prepared or self._make(), None
        return self._last

    def current(self) -> Store:
        """What a process has that is about to begin, or has begun."""
        if self._last is not None and self._last.is_open:
            return self._last
        if self._prepared is None:
            self._prepared = self._make()
        return self._prepared

    @asynccontextmanager
    async def borrow(self) -> AsyncIterator[Store]:
        """An open one."""
        if self._last is not None and self._last.is_open:
            yield self._last
            return
        store = self._make()
        await store.open(JOB)
        try:
            yield store
        finally:
            await store.close()


class Queue(Source):
    """A queue with several letters in each page, of two senders."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self._stores = Stores(make)
        self._numbers = count(1)

    def store(self) -> Store:
        return self._stores.next()

    async def put(self, segments: Sequence[Segment]) -> None:
        await self._put([msgspec.json.encode(it) for it in segments])

    async def put_undecodable(self) -> None:
        await self._put([b"no json"])

    async def _put(self, bodies: Sequence[bytes]) -> None:
        letters = [make_letter(next(self._numbers), body=it) for it in bodies]
        async with self._stores.borrow() as store:
            for start in range(0, len(letters), PAGE):
                sender = f"sender{start // PAGE % 2}"
                await put(store, *letters[start : start + PAGE], sender=sender)

    def connector(self) -> InputConnector:
        return QueueInput(self._stores.current(), QUEUE, split_segments=PAGE)


class QueueInputBehaviour(InputBehaviour, UnboundedBehaviour, UndecodableBehaviour):
    """For queues in every kind of store."""

    async def test_what_is_settled_takes_no_room(self, source: Queue) -> None:
        await source.put(count_to(SEGMENTS))
        output = QueueOutput(source._stores.current(), PEER, "out")
        inputs = {"in": QueueInput(source._stores.current(), QUEUE, bounded=True)}
        runner = LocalRunner(job_of(), inputs, {"out": output}, source.store())
        async with asyncio.timeout(DEADLINE_S):
            await runner.run()
        async with source._stores.borrow() as store:
            assert await store.read(query.sizes_by_sender) == {}
            assert len(await store.read(query.peek_outbox, PEER, 100)) == SEGMENTS


class TestInputInMemory(QueueInputBehaviour):
    @pytest.fixture
    def source(self) -> Source:
        disk = MemoryDisk()
        return Queue(lambda: MemoryStore(disk))


class TestInputInSqlite(QueueInputBehaviour):
    @pytest.fixture
    def source(self, tmp_path: Path) -> Source:
        return Queue(lambda: SqliteStore(tmp_path / "mail.db"))


class TestInputInPostgres(QueueInputBehaviour):
    @pytest.fixture
    def source(self) -> Iterator[Source]:
        with fresh_database() as dsn:
            yield Queue(lambda: PostgresStore(dsn))


class Outbox(Target):
    """What waits for a peer, or is in a queue of the node itself."""

    def __init__(self, peer: str) -> None:
        disk = MemoryDisk()
        self._stores = Stores(lambda: MemoryStore(disk))
        self._peer = peer

    def store(self) -> Store:
        return self._stores.next()

    def connector(self) -> OutputConnector:
        return QueueOutput(self._stores.current(), self._peer, "results")

    async def published(self) -> list[Segment]:
        async with self._stores.borrow() as store:
            letters = await store.read(self._find)
        assert {it.queue for it in letters} <= {"results"}
        return [msgspec.json.decode(it.body) for it in letters]

    def _find(self, database: StoreConnection) -> list[StoredMessage]:
        if self._peer == JOB:
            return query.peek_queue(database, "results", 1_000)
        return query.peek_outbox(database, self._peer, 1_000)


class QueueOutputBehaviour(OutputBehaviour, UnwritableBehaviour, PortableOutputBehaviour):
    """For queues of any node."""

    async def test_a_crash_at_every_publication_doubles_nothing(
        self, target: Target, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is left to publish here; so it is the commits that fail, one after the other."""
        inputs = {"in": MemoryInput(count_to(SEGMENTS))}
        failures = 0
        for at in range(1, 12):
            outage = Outage(at)
            runner = LocalRunner(job_of(), inputs, {"out": target.connector()}, target.store())
            with faults.arm_fault_point("durable.commit.before", outage):
                try:
                    async with asyncio.timeout(DEADLINE_S):
                        await runner.run()
                except StoreUnavailableError:
                    failures += 1
        assert failures > 4
        assert sorted(await target.published(), key=lambda it: it["n"]) == count_to(SEGMENTS)


class Outage:
    """Makes one commit fail."""

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, units: object) -> None:
        self._left -= 1
        if self._left == 0:
            raise StoreUnavailableError("away")


class TestOutputToAPeer(QueueOutputBehaviour):
    @pytest.fixture
    def target(self) -> Target:
        return Outbox(PEER)


class TestOutputToItself(QueueOutputBehaviour):
    @pytest.fixture
    def target(self) -> Target:
        return Outbox(JOB)
