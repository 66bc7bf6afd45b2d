"""Peers that flood tunnels and mailboxes, or tell of many routes: they wait, nobody else does."""

from __future__ import annotations

import asyncio

import pytest

from postroad.cells import CellDomain, CellPath, Role, Route
from postroad.cells.delivery import propagator as spreading_module
from postroad.cells.routing.advertisements import (
    NAMES_MAX,
    AdvertisementAck,
    AdvertisementUpdate,
    RouteAdvertisement,
)
from postroad.core.limits import ROUTES_AT_ONCE_MAX
from tests.support.cells.nodes import (
    Domains,
    ForgedDomain,
    Gate,
    Inbox,
    forged_domain,
    link_of,
    quick,
)
from tests.support.deadlines import eventually

NAMES = 2_048


def advertisement_of(tag: str, count: int = NAMES) -> RouteAdvertisement:
    names = [f"{tag}-{number}" for number in range(count)]
    return RouteAdvertisement.of(names, names, None, names)


def have_numbers(forged: ForgedDomain) -> list[int]:
    return [update.number for update in forged.updates if isinstance(update, AdvertisementAck)]


def routes_by(domain: CellDomain, peer: str) -> set[Route]:
    return {
        route for route in domain.table if route.target.is_domain and route.target.domain == peer
    }


@pytest.mark.parametrize("role", Role)
async def test_full_snapshots_are_applied_at_a_limited_rate(
    monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    monkeypatch.setattr(spreading_module, "ROUTE_NAMES_PER_S", 10)
    async with Domains(1, 1) as domains, forged_domain(domains["C1"], role=role) as forged:
        core = domains["C1"]
        core.add_function("echo", Inbox())
        changes: list[int] = []
        before = core.table

        def note() -> None:
            nonlocal before
            changes.append(len(set(core.table) ^ set(before)))
            before = core.table

        core.on_routes_changed(note)
        advertisements = [advertisement_of("a"), advertisement_of("b")]
        for number in range(1, 41):
            forged.advertise(number, advertisements[number % 2])
            # Those who call are served in between.
            assert await domains["S1"].call("echo@C1", b"x") == b"x"
        await eventually(lambda: have_numbers(forged))
        assert len(have_numbers(forged)) == 1
        # A slice in each turn of the loop.
        assert len(changes) >= 2 * NAMES // ROUTES_AT_ONCE_MAX
        assert max(changes) <= ROUTES_AT_ONCE_MAX


@pytest.mark.parametrize("count", [10, 500])
async def test_latest_snapshot_is_applied_in_the_end(
    monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Whether they are read at once or not."""
    monkeypatch.setattr(spreading_module, "ROUTE_NAMES_PER_S", 50 * count)
    async with Domains(1, 0) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        for number in range(1, 41):
            advertisement = advertisement_of(f"n{number}", count)
            forged.advertise(number, advertisement)
        await eventually(lambda: 40 in have_numbers(forged))
        assert len(have_numbers(forged)) < 10
        names = {route.cell for route in routes_by(core, "X")}
        assert names == {f"n40-{number}" for number in range(count)}


async def test_reconnected_tunnel_keeps_its_charge() -> None:
    async with Domains(1, 0) as domains:
        core = domains["C1"]
        async with forged_domain(core) as forged:
            forged.advertise(1, advertisement_of("a", 2_000))
            await eventually(lambda: have_numbers(forged) == [1])
        await eventually(lambda: not routes_by(core, "X"))
        async with forged_domain(core) as forged:
            forged.advertise(1, advertisement_of("b", 2_000))
            forged.send("System@C1", b"info", content_type="command")
            await eventually(lambda: forged.envelopes)
            assert not routes_by(core, "X")
            assert core.propagator._pending_updates.deadline() > core.dispatcher.loop.time()


async def test_small_updates_do_not_wait_for_large_ones() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        for number in range(1, 6):
            advertisement = advertisement_of(f"n{number}", NAMES_MAX)
            forged.advertise(number, advertisement)
        await eventually(lambda: routes_by(core, "X"))
        domains["S1"].add_function("quiet", Inbox(), consume=["little"])
        await eventually(lambda: core.table.queues("little"))
        assert have_numbers(forged) == []
        assert await core.call("little", b"x") == b"x"


async def test_malformed_update_of_any_size_is_dropped() -> None:
    async with Domains(1, 0) as domains, forged_domain(domains["C1"]) as forged:
        incarnation = forged.service.incarnation
        forged.send_encoded(b"\x94\x01" + b"x" * 5_000, "routes")
        await eventually(lambda: domains["C1"].statistics().malformed == 1)
        forged.send_update(AdvertisementUpdate(incarnation + 1, 1, advertisement_of("a", 500)))
        await eventually(lambda: domains["C1"].statistics().malformed == 2)
        forged.advertise(1, advertisement_of("b", 500))
        await eventually(lambda: have_numbers(forged) == [1])


async def test_a_satellite_that_floods_a_cell_leaves_room_for_the_others() -> None:
    async with Domains(1, 3, config=quick(mailbox_messages_max=40)) as domains:
        gate = domains.add("S2", "slow", Gate())
        mailbox = domains["S2"]._runner("slow").mailbox
        for _ in range(100):
            await domains["S1"].send("slow@S2", b"flood")
        await eventually(lambda: domains["S2"].statistics().refused == 85)
        assert len(mailbox) == 14
        calls = [
            asyncio.ensure_future(domains[name].call("slow@S2", name.encode()))
            for name in ("S3", "C1")
        ]
        await eventually(lambda: len(mailbox) == 16)
        gate.open()
        assert await asyncio.gather(*calls) == [b"S3", b"C1"]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("room", [{"mailbox_messages_max": 100}, {"mailbox_bytes_max": 100_000}])
async def test_peer_inventing_domains_has_one_share(role: Role, room: dict[str, int]) -> None:
    async with Domains(1, 1, config=quick(**room)) as domains:
        gate = domains.add("C1", "slow", Gate())
        runner = domains["C1"]._runner("slow")
        async with forged_domain(domains["C1"], role=role) as forged:
            for number in range(500):
                source = f"p@D{number}:*@D{number}:*@X" if role is Role.CORE else f"p{number}@X:*@X"
                forged.send("slow@C1", b"flood", source=CellPath.parse(source))
            count = domains["C1"].statistics
            await eventually(lambda: count().refused + len(runner.mailbox) + 1 == 500)
            held = len(runner.mailbox)
            assert held <= 50 or runner.mailbox.bytes <= 50_000
            calls = [
                asyncio.ensure_future(domains["S1"].call("slow@C1", b"%d" % n)) for n in range(5)
            ]
            await eventually(
                lambda: len(runner.mailbox) == held + 5 or any(call.done() for call in calls)
            )
            gate.open()
            assert await asyncio.gather(*calls) == [b"%d" % n for n in range(5)]


async def test_tunnel_flooded_with_invented_domains_accepts_others() -> None:
    config = quick(link_messages_max=100)
    async with (
        Domains(1, 2, config=config) as domains,
        forged_domain(domains["C1"], role=Role.CORE) as forged,
    ):
        domains.add("S2", "echo", Inbox())
        link = link_of(domains["C1"], "S2")
        link.tunnel.can_send = False
        for number in range(500):
            source = CellPath.parse(f"p@D{number}:*@D{number}:*@X")
            forged.send("echo@S2", b"flood", source=source, wants_reply=False)
        await eventually(lambda: link.statistics().waiting + link.statistics().refused == 500)
        assert link.statistics().waiting <= 50
        call = asyncio.ensure_future(domains["S1"].call("echo@S2", b"honest"))
        await eventually(lambda: link.statistics().waiting == 51 or call.done())
        link.tunnel.can_send = True
        link.on_writable()
        assert await call == b"honest"


async def test_replies_need_capacity_in_a_tunnel_but_no_share() -> None:
    """The work for them is done: half of the places would be five."""
    async with Domains(1, 2, config=quick(link_messages_max=10)) as domains:
        domains.add("S2", "echo", Inbox())
        link = link_of(domains["C1"], "S1")
        await domains["S1"].call("echo@S2", b"so that the way is known")
        link.tunnel.can_send = False
        payloads = [b"%d" % n for n in range(9)]
        calls = [
            asyncio.ensure_future(domains["S1"].call("echo@S2", payload)) for payload in payloads
        ]
        await eventually(
            lambda: link.statistics().waiting + domains["C1"].statistics().refused == 9
        )
        assert domains["C1"].statistics().refused == 0
        link.tunnel.can_send = True
        link.on_writable()
        assert await asyncio.gather(*calls) == payloads


async def test_queued_messages_without_payload_are_bounded() -> None:
    bytes_max = 100_000
    async with (
        Domains(1, 1, config=quick(link_bytes_max=bytes_max)) as domains,
        forged_domain(domains["C1"]) as forged,
    ):
        inbox = domains.add("S1", "echo", Inbox())
        link = link_of(domains["C1"], "S1")
        link.tunnel.can_send = False
        headers = {"a": "x" * 4_000, "b": "y" * 4_000}
        for _ in range(50):
            forged.send("echo@S1", headers=headers, wants_reply=False)
        await eventually(lambda: link.statistics().waiting + link.statistics().refused == 50)
        statistics = link.statistics()
        assert 8_000 * statistics.waiting < statistics.waiting_bytes <= bytes_max
        link.tunnel.can_send = True
        link.on_writable()
        await eventually(lambda: len(inbox.messages) == statistics.waiting)
