"""One bridge manager at a time: the one that took over last, and where it is."""

from collections.abc import AsyncIterator

import pytest

from postroad.core import Address
from postroad.core.errors import FencedError
from postroad.durable import MemoryDisk, MemoryStore, Store
from postroad.durable.bridges.fencing import (
    acquire_fencing_token,
    check_fencing_token,
    find_manager,
)
from tests.support.durable.nodes import opened

NAME = "alpha.bridge"
HERE = Address("127.0.0.1", 4000)
THERE = Address("::1", 4001)


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
async def store(disk: MemoryDisk) -> AsyncIterator[Store]:
    async with opened(MemoryStore(disk)) as opened_store:
        yield opened_store


async def take(store: Store, name: str = NAME, address: Address = HERE) -> int:
    return await store.write(lambda ledger: acquire_fencing_token(ledger, name, address))


async def test_token_that_is_not_the_newest_is_fenced(store: Store) -> None:
    assert await store.read(find_manager) is None
    with pytest.raises(FencedError):
        await store.read(check_fencing_token, 1)
    token = await take(store)
    with pytest.raises(FencedError):
        await store.read(check_fencing_token, token + 1)
    first, second = await take(store), await take(store)
    assert second > first
    await store.read(check_fencing_token, second)
    with pytest.raises(FencedError, match=f"manager {second} has taken over from {first}"):
        await store.read(check_fencing_token, first)


async def test_last_manager_is_found(store: Store) -> None:
    for address in (HERE, THERE, Address("mail.example", 9)):
        await take(store, "another.bridge", Address("127.0.0.1", 1))
        await take(store, NAME, address)
        assert await store.read(find_manager) == (NAME, address), address


async def test_tokens_go_on_after_a_restart(disk: MemoryDisk) -> None:
    async with opened(MemoryStore(disk)) as store:
        first = await take(store)
    async with opened(MemoryStore(disk)) as store:
        assert await store.read(find_manager) == (NAME, HERE)
        assert await take(store) > first
