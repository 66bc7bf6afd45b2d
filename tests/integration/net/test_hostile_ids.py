"""Peers that number their requests as no honest one does, on both event loops."""

from __future__ import annotations

import asyncio

import pytest

from postroad.net import Limits, MessagingService, RawMessage
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import CLUSTER, RawPeer, both_loops, echo_on, raw_client
from tests.support.wire.pairs import version3_frame
from tests.support.wire.raw_dialects import DIALECTS, Dialect

HANDLERS_MAX = 20
of_all = pytest.mark.parametrize("dialect", DIALECTS, ids=str)


class Crowd:
    """A handler that counts how many of it are at work, and answers some at once."""

    def __init__(self) -> None:
        self.begun = 0
        self.working = 0
        self.most = 0

    async def __call__(self, message: RawMessage) -> bytes:
        self.begun += 1
        self.working += 1
        self.most = max(self.most, self.working)
        try:
            if message.payload == b"long":
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)
        finally:
            self.working -= 1
        return b""


def make_service(dialect: Dialect, crowd: Crowd, **limits: float) -> MessagingService:
    settings = {"handlers_running_max": HANDLERS_MAX, "stop_grace_s": 0.1} | limits
    service = MessagingService(
        CLUSTER,
        "alpha",
        limits=Limits(**settings),  # type: ignore[arg-type]
        protocol=dialect.protocol,
    )
    service.serve("work", crowd)
    service.subscribe("note", crowd)
    return echo_on(service)


async def send_rounds(dialect: Dialect, peer: RawPeer, crowd: Crowd) -> None:
    """Requests of one id, after others of ids that could be the keys those are kept under."""
    await dialect.dial(peer)
    peer.send(dialect.request(5, "work", b"long"))
    count = HANDLERS_MAX - 2
    sign = -1 if (dialect.version, dialect.profile) in ((1, "documented"), (2, "documented")) else 1
    for first in range(1, 5 * count, count):
        for number in range(first, first + count):
            peer.send(dialect.request(sign * number, "work", b"short"))
        peer.send(dialect.request(5, "work", b"long") * count)
        await asyncio.sleep(0.03)
    await eventually(lambda: crowd.working >= HANDLERS_MAX, "all that may work do")


@both_loops
@of_all
async def test_the_limit_of_handlers_holds_and_all_end_when_the_service_stops(
    dialect: Dialect,
) -> None:
    crowd = Crowd()
    service = make_service(dialect, crowd)
    async with service, raw_client(service.address) as peer:
        await send_rounds(dialect, peer, crowd)
        assert service.statistics().handlers_running == HANDLERS_MAX
        await service.stop()
        assert crowd.working == 0
    assert crowd.most == HANDLERS_MAX


@both_loops
@of_all
async def test_handlers_end_with_their_connection(dialect: Dialect) -> None:
    crowd = Crowd()
    async with make_service(dialect, crowd) as service:
        async with raw_client(service.address) as peer:
            await dialect.dial(peer)
            # One less than the limit, at which nothing more is read.
            peer.send(dialect.request(5, "work", b"long") * (HANDLERS_MAX - 1))
            await eventually(lambda: crowd.working == HANDLERS_MAX - 1, "all are at work")
        await eventually(lambda: crowd.working == 0, "all ended")


@both_loops
@of_all
async def test_handler_tasks_expire_at_deadline(dialect: Dialect) -> None:
    crowd = Crowd()
    async with (
        make_service(dialect, crowd, handler_timeout_s=0.2) as service,
        raw_client(service.address) as peer,
    ):
        await dialect.dial(peer)
        # Version 3 tells a deadline with each; this one tells none.
        long = (
            version3_frame(1, b"worklong", short=4, id=5)
            if dialect.version == 3
            else dialect.request(5, "work", b"long")
        )
        peer.send(long * HANDLERS_MAX)
        await eventually(lambda: crowd.begun == HANDLERS_MAX, "all are at work")
        await eventually(lambda: crowd.working == 0, "all ended")
    assert crowd.most == HANDLERS_MAX


@both_loops
@of_all
async def test_one_way_handlers_end_in_time_after_their_peer_has_gone(dialect: Dialect) -> None:
    crowd = Crowd()
    async with make_service(dialect, crowd, handler_timeout_s=0.2) as service:
        async with raw_client(service.address) as peer:
            await dialect.dial(peer)
            note = (
                version3_frame(1, b"notelong", flags=1, short=4, word=0xFFFF_FFFF, id=5)
                if dialect.version == 3
                else dialect.request(5, "note", b"long")
            )
            # Some begin only when others have ended.
            peer.send(note * (HANDLERS_MAX + 5))
            await eventually(lambda: crowd.begun == HANDLERS_MAX, "those that may are at work")
        await eventually(lambda: crowd.begun == HANDLERS_MAX + 5, "the others began")
        await eventually(lambda: crowd.working == 0, "all ended")
        await eventually(
            lambda: service.statistics().server_connections == 0, "the link is forgotten"
        )
