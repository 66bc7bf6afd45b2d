"""Units that nobody waits for: written a moment later, all of them at once."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from postroad.core import fault_points as faults
from postroad.core.errors import NotRunningError, StoreUnavailableError
from postroad.durable import MemoryDisk, MemoryStore, Store
from postroad.durable.store import writer
from postroad.durable.store.mutations import FunctionMutation
from postroad.durable.store.tables.schema import read_meta, write_meta
from postroad.durable.store.tables.store_tables import StoreTables
from tests.support.deadlines import DEADLINE_S
from tests.support.durable.nodes import once, opened, raising


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
async def store(disk: MemoryDisk) -> AsyncIterator[Store]:
    async with opened(MemoryStore(disk)) as opened_store:
        # The first commit of all is over.
        await opened_store.write(lambda ledger: None)
        yield opened_store


@pytest.fixture
def never_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not urgent waits longer than any test."""
    monkeypatch.setattr(writer, "_LAZY_S", 3_600.0)


def noting(done: list[int], number: int) -> FunctionMutation[None]:
    """A unit that is known by its number."""

    def note(ledger: StoreTables) -> None:
        done.append(number)

    return FunctionMutation(note)


async def test_lazy_units_are_committed_together_in_their_order(store: Store) -> None:
    done: list[int] = []
    units = [noting(done, number) for number in range(20)]
    loop, before = asyncio.get_running_loop(), store.writer.commits
    began = loop.time()
    for unit in units:
        store.submit(unit, lazy=True)
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(unit.done for unit in units))
    assert done == list(range(20))
    assert store.writer.commits == before + 1
    # About 50 ms, as a timer of a loop may be a little early.
    assert loop.time() - began >= 0.04


async def test_lazy_units_wait_for_their_time_though_others_are_committed(
    store: Store, never_by_itself: None
) -> None:
    done: list[int] = []
    lazy, urgent = noting(done, 1), noting(done, 2)
    store.submit(lazy, lazy=True)
    store.submit(urgent)
    await urgent.done
    assert done == [2]
    assert not lazy.done.done()
    assert store.writer.last_queued is None


async def test_closing_commits_lazy_units_after_all_others(
    disk: MemoryDisk, never_by_itself: None
) -> None:
    done: list[int] = []
    units = [noting(done, number) for number in (1, 2, 3)]
    async with opened(MemoryStore(disk)) as store:
        store.submit(units[1], lazy=True)
        store.submit(units[2], lazy=True)
        store.submit(FunctionMutation(partial(_write, "kept")), lazy=True)
        store.submit(units[0])
        writer_ = store.writer
    await asyncio.gather(*(unit.done for unit in units))
    assert done == [1, 2, 3]
    with pytest.raises(NotRunningError):
        writer_.submit(noting(done, 4), lazy=True)
    async with opened(MemoryStore(disk)) as store:
        assert await store.read(read_meta, "kept") == "yes"


def _write(name: str, ledger: StoreTables) -> None:
    write_meta(ledger.database, name, "yes")


async def test_lazy_units_hear_of_a_commit_that_failed_and_others_come_later(store: Store) -> None:
    done: list[int] = []
    with faults.arm_fault_point(
        "durable.commit.before", once(raising(StoreUnavailableError("away")))
    ):
        lost = noting(done, 1)
        store.submit(lost, lazy=True)
        with pytest.raises(StoreUnavailableError):
            await asyncio.wait_for(lost.done, DEADLINE_S)
    later = noting(done, 2)
    store.submit(later, lazy=True)
    await asyncio.wait_for(later.done, DEADLINE_S)
    assert done == [1, 2]
