"""Entries of nodes and of cores in a real ZooKeeper: how they come, are mended and go."""

from __future__ import annotations

import logging
import signal
from typing import Any

import pytest

from tests.support.cells.zookeeper_registrants import (
    ADDRESSES,
    DomainRegistrant,
    Kind,
    NodeRegistrant,
    Place,
    of_both_kinds,
    of_domains,
    of_nodes,
    running_trio,
)
from tests.support.deadlines import eventually
from tests.support.net.raw_peers import holds_for
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S, zookeeper_client

pytestmark = pytest.mark.slow


@of_both_kinds
async def test_damaged_or_removed_entry_is_restored(kind: Kind, place: Place, client: Any) -> None:
    async with running_trio(kind, place) as trio:
        own = kind.path(place.root, "C1")
        mended = client.get(own)[0]
        for times, garbage in ((2, b""), (3, b"garbage")):
            client.set(own, garbage)
            await trio.one.until_registered(times)
            assert client.get(own)[0] == mended
        if kind is DomainRegistrant:
            assert trio.calls == [], "a core that was known is still believed"
        client.delete(own)
        await trio.one.until_registered(4)
        await trio.entered(client)
        await trio.see_newcomer()
        assert trio.one.longest_absence_s("C2") == 0
    assert client.get_children(kind.path(place.root)) == [], "withdrawn at once"


@of_both_kinds
async def test_entry_of_an_earlier_process_is_replaced_silently(kind: Kind, place: Place) -> None:
    """The window is nil: the new entry takes the place of the old one in one step."""
    witness, own = kind(place, "C2"), kind.path(place.root, "C1")
    await witness.start()
    with zookeeper_client(place.server) as earlier:
        earlier.create(own, kind.data(ADDRESSES["C1"]), ephemeral=True, makepath=True)
        await witness.until_told("C1")
        registrant = kind(place, "C1")
        await registrant.start()
        stat = earlier.exists(own)
        assert stat.ephemeralOwner == registrant.session_id != earlier.client_id[0]
        assert registrant.statistics.conflicts == 0
    # The session of the earlier life is over now.
    await registrant.stop()
    await witness.until_told()
    assert witness.calls == [set(), {"C1"}, set()]
    await witness.stop()


@of_both_kinds
async def test_entry_of_another_node_with_the_name_is_logged_and_awaited(
    kind: Kind, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    registrant, own = kind(place, "C1"), kind.path(place.root, "C1")
    with zookeeper_client(place.server) as foreign:
        foreign.create(own, kind.data(ADDRESSES["C9"]), ephemeral=True, makepath=True)
        await registrant.start()
        # A node is told where somebody is all the same; a core is never told of its own name.
        assert registrant.calls == [{"C9"} if kind is NodeRegistrant else set()]
        await eventually(lambda: registrant.statistics.conflicts > 1, "it is tried again")
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1
        assert "'C1' is registered by a node at 127.0.0.1:7009" in errors[0].getMessage()
        assert registrant.statistics.registrations == 0
    await registrant.until_registered(1)
    await registrant.until_told()
    await registrant.stop()


@of_both_kinds
async def test_session_closed_by_others_is_recreated(kind: Kind, place: Place, client: Any) -> None:
    """Its entry is gone then, which those who are connected see.

    It is back within a session time-out, the longest a client takes to notice that its session is
    not served any more; so whoever dials must not hang up within that time.
    """
    async with running_trio(kind, place) as trio:
        one, two, *watchers = trio.all
        before = one.session_id
        await one.expire()
        await one.until_registered(2)
        await trio.entered(client)
        assert one.session_id != before
        assert one.calls == [], "it is itself told of nothing"
        await trio.see_newcomer()
        for other in (two, *watchers):
            assert other.longest_absence_s("C1") < SESSION_TIMEOUT_S
        for watcher in watchers:
            assert watcher.longest_absence_s("C2") == 0


async def test_satellite_session_expiry_hides_no_core(place: Place) -> None:
    async with running_trio(DomainRegistrant, place) as trio:
        satellite = trio.all[-1]
        before = satellite.session_id
        await satellite.expire()
        await eventually(
            lambda: (
                satellite.session_id not in (None, 0, before) and satellite.statistics.is_connected
            ),
            "a new session",
        )
        await trio.see_newcomer()
        assert satellite.longest_absence_s("C1") == satellite.longest_absence_s("C2") == 0


@of_nodes
async def test_entry_of_a_killed_process_goes_with_its_session(
    kind: Kind, place: Place, client: Any
) -> None:
    witness = kind(place, "C1")
    await witness.start()
    async with kind.process(place, "C2") as process:
        await witness.until_told("C2")
        process.send_signal(signal.SIGKILL)
        await witness.until_told()
        assert client.get_children(kind.path(place.root)) == ["C1"]
    await witness.stop()


@of_domains
async def test_quick_restart_after_a_crash_is_not_noticed(kind: Kind, place: Place) -> None:
    """Not even when the session of the process that crashed is over."""
    witness, restarted = kind(place, "C1"), kind(place, "C2")
    await witness.start()
    async with kind.process(place, "C2") as process:
        await witness.until_told("C2")
        process.send_signal(signal.SIGKILL)
        await process.wait()
        await restarted.start()
        await restarted.until_registered(1)
        await holds_for(
            lambda: witness.calls == [set(), {"C2"}], "nothing is told", 1.6 * SESSION_TIMEOUT_S
        )
    await restarted.until_registered(1)
    await restarted.stop()
    await witness.stop()
