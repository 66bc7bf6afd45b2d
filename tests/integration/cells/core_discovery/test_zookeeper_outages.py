"""Nodes and cores in a ZooKeeper that is killed, restarted or hangs.

Nobody is told of anything while it is away, nor after, of those that come back within four session
time-outs: everybody lost the connection, so everybody waits for the others to return.
"""

from __future__ import annotations

import asyncio
import signal
from itertools import product

import pytest

from tests.support.cells.zookeeper_registrants import (
    KINDS,
    Kind,
    Place,
    of_domains,
    of_nodes,
    running_trio,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S, zookeeper_client
from tests.support.tiers import sample

pytestmark = pytest.mark.slow
OUTAGES = sample([*product(["killed", "paused", "data lost"], KINDS)], 3)


@pytest.mark.parametrize(("outage", "kind"), OUTAGES)
async def test_server_outage_removes_no_entry(outage: str, kind: Kind, place: Place) -> None:
    server = place.server
    async with running_trio(kind, place) as trio:
        if outage == "paused":
            server.pause()
        else:
            server.kill()
        if outage == "data lost":
            server.lose_data()
            await asyncio.to_thread(server.start)
            await trio.one.until_registered(2)
            await trio.two.until_registered(2)
        else:
            await trio.connected(False)
            await holds_for(lambda: not trio.calls, "nothing is told", 1.2 * SESSION_TIMEOUT_S)
        if outage == "paused":
            server.resume()
        elif outage == "killed":
            await eventually(lambda: "refused" in trio.one.statistics.last_error, "the reason")
            await asyncio.to_thread(server.start)
        await trio.connected(True)
        # Whether a session still ends depends on who is quicker, the server or its client.
        with zookeeper_client(server) as client:
            await trio.entered(client)

        assert trio.calls == []
        await trio.see_newcomer()


@of_domains
async def test_registrant_lost_in_an_outage_is_removed(kind: Kind, place: Place) -> None:
    async with running_trio(kind, place, session_timeout_s=SESSION_TIMEOUT_S / 2) as trio:
        place.server.kill()
        await trio.connected(False)
        await trio.two.stop()
        await asyncio.to_thread(place.server.start)

        await trio.one.until_told()
        if kind.has_watchers:
            await trio.all[-1].until_told("C1")
        assert trio.one.statistics.is_connected


@of_nodes
async def test_server_down_at_the_start_is_used_when_it_is_there(kind: Kind, place: Place) -> None:
    place.server.kill()
    both = [kind(place, "C1"), kind(place, "S1" if kind.has_watchers else "C2")]
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*(registrant.start() for registrant in both))
    for registrant in both:
        assert registrant.calls == [frozenset()]
        assert not registrant.statistics.is_connected
        assert registrant.statistics.registrations == 0
        assert "refused" in registrant.statistics.last_error

    await asyncio.to_thread(place.server.start)
    await both[1].until_told("C1")
    await both[0].until_registered(1)
    for registrant in both:
        await registrant.stop()


@of_domains
async def test_paused_process_registers_again(kind: Kind, place: Place) -> None:
    witness = kind(place, "C1")
    await witness.start()
    async with kind.process(place, "C2") as process:
        await witness.until_told("C2")
        process.send_signal(signal.SIGSTOP)
        await witness.until_told()
        process.send_signal(signal.SIGCONT)
        await witness.until_told("C2")
    await witness.stop()


@of_nodes
async def test_stop_does_not_wait_for_a_server_that_hangs(kind: Kind, place: Place) -> None:
    async with running_trio(kind, place) as trio:
        place.server.pause()
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(registrant.stop() for registrant in trio.all))
        place.server.resume()
        with zookeeper_client(place.server) as client:
            path = kind.path(place.root)
            await eventually(lambda: client.get_children(path) == [], "withdrawn")
