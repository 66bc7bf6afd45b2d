"""Peers that tell of many routes, again and again: they wait, and nobody else does."""

from __future__ import annotations

import pytest

from postroad.cells import CellDomain, Role, Route
from postroad.cells.delivery import propagator as spreading_module
from postroad.cells.routing.advertisements import (
    NAMES_MAX,
    AdvertisementAck,
    AdvertisementUpdate,
    RouteAdvertisement,
)
from postroad.core.limits import ROUTES_AT_ONCE_MAX
from tests.support.cells.nodes import Domains, ForgedDomain, Inbox, forged_domain
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
            forged.send_update(
                AdvertisementUpdate(forged.service.incarnation, number, advertisements[number % 2])
            )
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
            forged.send_update(
                AdvertisementUpdate(forged.service.incarnation, number, advertisement)
            )
        await eventually(lambda: 40 in have_numbers(forged))
        assert len(have_numbers(forged)) < 10
        names = {route.cell for route in routes_by(core, "X")}
        assert names == {f"n40-{number}" for number in range(count)}


async def test_reconnected_tunnel_keeps_its_charge() -> None:
    async with Domains(1, 0) as domains:
        core = domains["C1"]
        async with forged_domain(core) as forged:
            forged.send_update(
                AdvertisementUpdate(forged.service.incarnation, 1, advertisement_of("a", 2_000))
            )
            await eventually(lambda: have_numbers(forged) == [1])
        await eventually(lambda: not routes_by(core, "X"))
        async with forged_domain(core) as forged:
            forged.send_update(
                AdvertisementUpdate(forged.service.incarnation, 1, advertisement_of("b", 2_000))
            )
            forged.send("System@C1", b"info", content_type="command")
            await eventually(lambda: forged.envelopes)
            assert not routes_by(core, "X")
            assert core.propagator._pending_updates.deadline() > core.dispatcher.loop.time()


async def test_small_updates_do_not_wait_for_large_ones() -> None:
    async with Domains(1, 1) as domains, forged_domain(domains["C1"]) as forged:
        core = domains["C1"]
        for number in range(1, 6):
            advertisement = advertisement_of(f"n{number}", NAMES_MAX)
            forged.send_update(
                AdvertisementUpdate(forged.service.incarnation, number, advertisement)
            )
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
        forged.send_update(AdvertisementUpdate(incarnation, 1, advertisement_of("b", 500)))
        await eventually(lambda: have_numbers(forged) == [1])
