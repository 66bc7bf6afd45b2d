"""An input on a queue in memory, with a clock that can be set, for tests of what it does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from postroad.durable import DurableQueuesConfig, MemoryDisk, MemoryStore, Store, StoredMessage
from postroad.pipeline import QueueInput
from postroad.pipeline.connectors import Position, Split
from tests.support.durable.nodes import QUEUE, make_letter, opened

NODE = "alpha"


class Reading:
    """A queue that is being read, as a desk reads it."""

    def __init__(self, store: Store, connector: QueueInput, after: Position | None = None) -> None:
        self.store = store
        self.connector = connector
        self.after = after

    async def cut(self, segments: int = 1_000) -> list[Split]:
        """Cut and admit."""
        slices = list(await self.connector.plan_splits(self.after, segments))
        if slices:
            self.after = as_json(slices[-1].next_position)
        return slices

    def ids(self, slices: Iterable[Split]) -> list[int | str]:
        """The letters of slices, as they are read."""
        places = [as_json(it.position) for it in slices]
        return [id for it in places for chunk in self.connector.read(it) for id in chunk.positions]

    async def settle(self, slices: Sequence[Split]) -> None:
        places = [as_json(it.position) for it in slices]
        for place in places:
            await self.store.write(lambda ledger, it=place: self.connector.commit(ledger, it))  # type: ignore[misc]
        await self.connector.on_committed(places)

    async def read_all(self) -> list[int | str]:
        """Cut, read and settle until there is nothing."""
        found: list[int | str] = []
        while slices := await self.cut():
            found += self.ids(slices)
            await self.settle(slices)
        return found


def as_json(place: Position) -> Position:
    """A place as it comes back from the account of a job."""
    found: Position = msgspec.json.decode(msgspec.json.encode(place))
    return found


@asynccontextmanager
async def reading(
    disk: MemoryDisk | None = None,
    unsettled: Iterable[Split] = (),
    after: Position | None = None,
    *,
    bounded: bool = False,
    config: DurableQueuesConfig | None = None,
) -> AsyncIterator[Reading]:
    """A process that reads the queue."""
    async with opened(MemoryStore(disk), NODE, config) as store:
        connector = QueueInput(store, QUEUE, bounded=bounded)
        await connector.open([as_json(it.position) for it in unsettled])
        try:
            yield Reading(store, connector, after)
        finally:
            await connector.close()


def letters(*ids: int) -> list[StoredMessage]:
    return [make_letter(id, body=b'{"n":%d}' % id) for id in ids]
