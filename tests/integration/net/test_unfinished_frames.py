"""Peers that begin large frames and end none of them, on both event loops."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from postroad.core.limits import KIB, MIB
from postroad.net import Limits, MessagingService
from postroad.net.connections import connection as link_module
from postroad.wire import unfinished_frames
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import CLUSTER, RawPeer, both_loops, echo_on, raw_client
from tests.support.net.tls import Authority
from tests.support.wire.raw_dialects import DIALECTS, Dialect, Version3

TOTAL = 8 * MIB
LIMITS = Limits(
    frame_bytes_max=2 * MIB, unfinished_bytes_max=TOTAL, handshake_timeout_s=10, stop_grace_s=0.5
)
STALLERS = 12


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for room looks often."""
    monkeypatch.setattr(link_module, "_CAPACITY_CHECK_S", 0.02)
    monkeypatch.setattr(unfinished_frames, "_STALL_CHECK_INTERVAL_S", 0.02)


def server(dialect: Dialect, limits: Limits = LIMITS) -> MessagingService:
    return echo_on(MessagingService(CLUSTER, "alpha", limits=limits, protocol=dialect.protocol))


async def stall(
    stack: AsyncExitStack, service: MessagingService, dialect: Dialect, size: int
) -> RawPeer:
    """A peer that sends all of a large request but its end."""
    peer = await stack.enter_async_context(raw_client(service.address))
    await dialect.dial(peer)
    peer.send(dialect.request(1, "echo", bytes(size))[:-1])
    return peer


async def watch(service: MessagingService, peaks: list[int]) -> None:
    while True:
        peaks.append(service.statistics().unfinished_bytes)
        await asyncio.sleep(0)


@both_loops
@pytest.mark.parametrize("dialect", DIALECTS, ids=str)
async def test_frames_that_never_end_take_no_more_than_the_limit(dialect: Dialect) -> None:
    peaks: list[int] = []
    async with server(dialect) as service, AsyncExitStack() as stack:
        watching = asyncio.create_task(watch(service, peaks))
        for _ in range(STALLERS):
            await stall(stack, service, dialect, 2 * MIB - KIB)
        await eventually(
            lambda: service.statistics().protocol_errors_by_kind.get("FrameTooLargeError", 0) > 5,
            "stallers were cut off",
        )
        async with raw_client(service.address) as honest:
            await dialect.dial(honest)
            payload = bytes(2 * MIB - KIB)
            honest.send(dialect.request(1, "echo", payload))
            assert (await dialect.take_first_reply(honest)).payload == payload
        watching.cancel()
    assert max(peaks) <= TOTAL
    assert max(peaks) > 2 * MIB


@both_loops
async def test_frames_below_the_size_of_large_ones_count_too() -> None:
    dialect = Version3()
    limits = Limits(unfinished_bytes_max=512 * KIB, stop_grace_s=0.5)
    peaks: list[int] = []
    async with server(dialect, limits) as service, AsyncExitStack() as stack:
        watching = asyncio.create_task(watch(service, peaks))
        for _ in range(STALLERS):
            await stall(stack, service, dialect, 60 * KIB)
        await eventually(
            lambda: service.statistics().protocol_errors_by_kind.get("FrameTooLargeError", 0) > 5,
            "stallers were cut off",
        )
        watching.cancel()
    assert max(peaks) <= limits.unfinished_bytes_max


@both_loops
async def test_many_honest_peers_at_once_wait_for_each_other() -> None:
    payload = bytes(2 * MIB - KIB)
    async with server(Version3()) as service, AsyncExitStack() as stack:
        names = [f"n{index}" for index in range(STALLERS)]
        clients = [
            await stack.enter_async_context(MessagingService(CLUSTER, name, limits=LIMITS))
            for name in names
        ]
        replies = await asyncio.gather(
            *(client.request(service.address, "echo", payload, timeout=60) for client in clients)
        )
        assert all(reply == payload for reply in replies)
        assert service.statistics().protocol_errors == 0
        assert service.statistics().unfinished_bytes == 0


@both_loops
async def test_with_certificates_a_peer_with_many_connections_pays_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    dialect = Version3()
    async with AsyncExitStack() as stack:
        service = await stack.enter_async_context(
            echo_on(MessagingService(CLUSTER, "alpha", tls=authority.tls("alpha"), limits=LIMITS))
        )
        calm = await stack.enter_async_context(
            raw_client(service.address, authority.tls("calm").client_context())
        )
        peer_hello = dialect.introduction("calm")
        calm.send(dialect.opening(), peer_hello)
        await calm.expect(dialect.answer())
        request = dialect.request(1, "echo", bytes(MIB))
        calm.send(request[:-1])
        for _ in range(STALLERS):
            peer = await stack.enter_async_context(
                raw_client(service.address, authority.tls("greedy").client_context())
            )
            peer.send(dialect.opening(), dialect.introduction("greedy"))
            peer.send(dialect.request(1, "echo", bytes(2 * MIB - KIB))[:-1])
        await eventually(
            lambda: service.statistics().protocol_errors_by_kind.get("FrameTooLargeError", 0) > 5,
            "the greedy one was cut off",
        )
        calm.send(request[-1:])
        assert (await dialect.take_first_reply(calm)).payload == bytes(MIB)


@both_loops
@pytest.mark.parametrize("kind", [1, 2, 7], ids=["request", "reply", "goodbye"])
async def test_before_the_hello_only_small_frames_are_taken(kind: int) -> None:
    dialect = Version3()
    async with server(dialect) as service, raw_client(service.address) as peer:
        peer.send(dialect.opening())
        await peer.expect(dialect.answer())
        # It is refused by its header; nothing of its body need come.
        peer.send(dialect.oversized(kind, 4 * KIB + 17))
        await peer.until_closed()
        assert service.statistics().protocol_errors_by_kind == {"FrameTooLargeError": 1}
        assert service.statistics().unfinished_bytes == 0


@both_loops
async def test_unfinished_frames_closed_connection_releases_memory() -> None:
    dialect = Version3()
    async with server(dialect) as service:
        async with AsyncExitStack() as stack:
            await stall(stack, service, dialect, MIB)
            await stall(stack, service, dialect, 60 * KIB)
            await eventually(
                lambda: service.statistics().unfinished_bytes > MIB, "both frames have begun"
            )
        await eventually(lambda: service.statistics().unfinished_bytes == 0, "nothing is held")
