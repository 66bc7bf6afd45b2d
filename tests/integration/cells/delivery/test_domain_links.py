"""Tunnels as links between domains: what goes straight on, what is measured and counted."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import CellAddress, CellMessage, MessageExpiredError, NoRouteError, Route
from postroad.cells.delivery import domain_links as cell_links
from postroad.cells.delivery.domain_links import MESSAGE
from postroad.cells.delivery.envelope import MessageKind
from postroad.cells.routing.advertisements import AdvertisementUpdate, RouteAdvertisement
from tests.support.cells.nodes import Domains, Gate, Inbox, cut, forged_domain, link_of, quick
from tests.support.deadlines import DEADLINE_S, eventually


async def test_round_trips_are_measured_and_traffic_is_counted() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", Inbox())
        links = [link_of(domains["S1"], "C1"), link_of(domains["C1"], "S1")]
        before = [link.statistics() for link in links]
        for _ in range(10):
            await domains["S1"].call("echo@S2", b"x")
        await eventually(lambda: all(link.statistics().round_trip_s is not None for link in links))
        own, core = (link.statistics() for link in links)
        assert own.sent - before[0].sent == core.received - before[1].received == 10
        assert own.received - before[0].received == core.sent - before[1].sent == 10
        assert (own.waiting, own.refused, own.malformed) == (0, 0, 0)
        assert (core.domain.name, core.incarnation) == ("S1", domains["S1"].service.incarnation)
        assert own.round_trip_s is not None and 0 <= own.round_trip_s < 1


async def test_tunnel_cells_describe_themselves() -> None:
    async with Domains(1, 1) as domains:
        assert "tunnel-C1" in domains["S1"].cells
        info = await domains["S1"].run_command("tunnel-C1", "info")
        assert "tunnel to core C1" in info
        assert str(domains.services["C1"].address.port) in info


# What goes straight on, from one tunnel to another.


async def test_a_core_follows_every_change_of_its_routes() -> None:
    """It remembers where messages go; not for longer than that is right."""
    async with Domains(1, 3) as domains:
        core, caller = domains["C1"], domains["S1"]
        domains["S2"].add_function("who", lambda message: "S2")
        domains["S3"].add_function("who", lambda message: "S3")
        alias = Route.alias(CellAddress("who", "S2"), CellAddress("who", "S3"))
        for _ in range(3):
            for _ in range(3):
                assert await caller.call("who@S2") == "S2"
            core.change_routes(added=[alias])
            for _ in range(3):
                assert await caller.call("who@S2") == "S3"
            core.change_routes(deleted=[alias])


async def test_core_forwards_nothing_to_a_stopped_domain() -> None:
    async with Domains(1, 2) as domains:
        for _ in range(3):
            domains["S2"].add_function("echo", Inbox())
            for n in range(5):
                assert await domains["S1"].call("echo@S2", b"%d" % n, timeout=5) == b"%d" % n
            await domains["S2"].stop()
            with pytest.raises(NoRouteError):
                await domains["S1"].call("echo@S2", wait=False)
            await domains.start("S2")
            await domains.connected()


async def test_a_satellite_whose_tunnel_broke_is_reached_through_the_new_one() -> None:
    async with Domains(1, 2) as domains:
        domains["S2"].add_function("echo", Inbox())
        for n in range(3):
            assert await domains["S1"].call("echo@S2", b"%d" % n, timeout=5) == b"%d" % n
            await cut(domains["C1"], "S2")


async def test_forwarded_message_expires_too() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        inbox = domains.add("S1", "sink", Inbox())
        for _ in range(3):
            await forged.answer_to(forged.send("sink@S1", b"in time", ttl_ms=5_000))
        failure = await forged.failure_of(forged.send("sink@S1", b"late", ttl_ms=0))
        assert (failure.code, failure.domain) == (MessageExpiredError.code, "C1")
        assert b"late" not in inbox.payloads


async def test_forwarded_message_keeps_every_field_of_its_sender() -> None:
    async with Domains(1, 2) as domains:
        inbox = domains.add("S2", "sink", Inbox())
        for n in range(5):
            await domains["S1"].call(
                "sink@S2", {"n": n}, session=f"s{n}", headers={"n": str(n)}, timeout=5 + n
            )
        assert [message.body for message in inbox.messages] == [{"n": n} for n in range(5)]
        assert [message.session for message in inbox.messages] == [f"s{n}" for n in range(5)]
        assert [message.headers for message in inbox.messages] == [{"n": str(n)} for n in range(5)]
        assert {str(message.path) for message in inbox.messages} == {"System@S1:*@S1:*@C1"}


async def test_forwarded_message_does_not_overtake_queued_ones() -> None:
    async with Domains(1, 2, config=quick(link_messages_max=1_000)) as domains:
        inbox = domains.add("S2", "sink", Inbox())
        await domains["S1"].call("sink@S2", b"first")
        link = link_of(domains["C1"], "S2")
        link.tunnel.can_send = False
        for n in range(50):
            await domains["S1"].send("sink@S2", b"%d" % n)
        await eventually(lambda: link.statistics().waiting == 50)
        link.tunnel.can_send = True
        for n in range(50, 100):
            await domains["S1"].send("sink@S2", b"%d" % n)
        await eventually(lambda: link.statistics().waiting == 100)
        link.on_writable()
        await eventually(lambda: len(inbox.messages) == 101)
        assert inbox.payloads == [b"first", *(b"%d" % n for n in range(100))]


async def test_more_routes_than_the_cache_holds_are_all_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cell_links, "_FAST_PATHS_MAX", 400)
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        inbox = domains.add("S1", "sink", Inbox())
        count = 1_000
        for n in range(count):
            forged.send("sink@S1", b"%d" % n, source=forged.path(f"p{n}"))
            if n % 500 == 0:
                await asyncio.sleep(0)
        await eventually(
            lambda: sum(request.subject == MESSAGE for request in forged.requests) == count
        )
        assert all(envelope.kind is MessageKind.REPLY for envelope in forged.envelopes)
        assert inbox.payloads == [b"%d" % n for n in range(count)]


# News.


async def test_unacknowledged_update_is_resent_until_acknowledged() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        core.add_function("worker", Inbox(), consume=["work"])

        def snapshots() -> list[AdvertisementUpdate]:
            updates = [
                update for update in forged.updates if isinstance(update, AdvertisementUpdate)
            ]
            return [update for update in updates if update.advertisement.queues == ("work",)]

        await eventually(lambda: len(snapshots()) >= 2)
        assert await core.wait_routes_acknowledged(0.05) is False
        assert len(set(snapshots())) == 1
        await forged.acknowledge(core)
        assert await core.wait_routes_acknowledged(DEADLINE_S) is True
        count = len(snapshots())
        # Longer than the pause after which it came again before.
        await asyncio.sleep(0.5)
        assert len(snapshots()) == count


async def test_lost_advertisement_is_sent_again_after_a_check() -> None:
    """What is there is checked now and then."""
    async with Domains(1, 1) as domains:
        core, satellite = domains["C1"], domains["S1"]
        core.add_function("worker", Inbox(), consume=["work"])
        await eventually(lambda: satellite.table.queues("work"))
        peer = satellite.propagator.learner._peers["C1"]
        peer.advertisement, peer.ack = RouteAdvertisement(), type(peer.ack)()
        satellite.propagator.learner._mark_dirty("C1")
        satellite.propagator._process_outputs()
        assert not satellite.table.queues("work")
        await eventually(lambda: satellite.table.queues("work"))


async def test_changes_of_one_loop_iteration_are_sent_as_one_update() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        await forged.acknowledge(core)
        before = len(forged.updates)
        for n in range(200):
            core.add_function(f"worker-{n}", Inbox(), consume=[f"work-{n}"])
        await eventually(lambda: len(forged.updates) > before)
        update = forged.updates[before]
        assert isinstance(update, AdvertisementUpdate) and len(update.advertisement.queues) == 200


async def test_queue_is_reachable_once_routes_are_acknowledged() -> None:
    """Settling waits for everybody, so whoever settles first can be found by all at once."""
    async with Domains(2, 4) as domains:
        gate = Gate()
        gate.open()

        async def handler(message: CellMessage) -> bytes:
            return await gate(message)

        domains["S1"].add_function("worker", handler, consume=["work"])
        assert await domains["S1"].wait_routes_acknowledged()
        for name in ("S2", "S3", "S4", "C1", "C2"):
            assert await domains[name].call("work", b"x", wait=False) == b"x"
