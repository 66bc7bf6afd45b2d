"""Peers that tell wrong news of routes: nobody else's routes change, and all others go on."""

from __future__ import annotations

import pytest

from postroad.cells import CellAddress, NoRouteError, Role
from postroad.cells.delivery.domain_links import ROUTES
from postroad.cells.routing.advertisements import (
    AdvertisementAck,
    AdvertisementQuery,
    AdvertisementUpdate,
    RouteAdvertisement,
    ShutdownNotice,
    encode_routing_update,
)
from tests.support.cells.nodes import Domains, Inbox, beside_others, forged_domain
from tests.support.deadlines import eventually


async def test_update_of_another_incarnation_is_dropped() -> None:
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        for number, incarnation in enumerate((own - 1, own + 1, 0, 2**62)):
            forged.send_update(
                AdvertisementUpdate(incarnation, number + 1, RouteAdvertisement.of(["forged"]))
            )
            forged.send_update(ShutdownNotice(incarnation))
        await eventually(lambda: domains["C1"].statistics().malformed == 8)
        assert not domains["C1"].table.queues("forged")
        forged.advertise(1, RouteAdvertisement.of(["real"]))
        await eventually(lambda: domains["C1"].table.queues("real"))


async def test_stale_update_changes_nothing() -> None:
    async with beside_others() as (domains, forged):
        forged.advertise(5, RouteAdvertisement.of(["new"]))
        forged.advertise(4, RouteAdvertisement.of(["old"]))
        forged.send_update(AdvertisementQuery())
        await eventually(
            lambda: any(isinstance(update, AdvertisementAck) for update in forged.updates)
        )
        forged.advertise(4, RouteAdvertisement.of(["old"]))
        forged.send_update(AdvertisementQuery())
        await eventually(
            lambda: sum(isinstance(update, AdvertisementAck) for update in forged.updates) > 1
        )
        assert {
            update.number for update in forged.updates if isinstance(update, AdvertisementAck)
        } == {5}
        assert domains["C1"].table.queues("new") and not domains["C1"].table.queues("old")


async def test_ack_of_an_unsent_update_does_not_stop_resending() -> None:
    async with beside_others() as (domains, forged):
        own = domains["C1"].service.incarnation
        for ack in (
            AdvertisementAck(own + 5, 7, b"x"),
            AdvertisementAck(own, 2**60, b"y" * 16),
            AdvertisementAck(0, 0, b""),
            AdvertisementAck(own, 1, b""),
        ):
            forged.send_update(ack)
        domains["C1"].add_function("new", Inbox(), consume=["work"])
        await eventually(
            lambda: any(
                isinstance(update, AdvertisementUpdate) and "work" in update.advertisement.queues
                for update in forged.updates
            )
        )
        await eventually(lambda: domains["S1"].table.queues("work"))


async def test_update_with_invalid_names_is_dropped() -> None:
    async with beside_others() as (domains, forged):
        own = forged.service.incarnation
        good = encode_routing_update(
            AdvertisementUpdate(own, 1, RouteAdvertisement.of(["queue-a", "queue-b"]))
        )
        for old, new in (
            (b"queue-a", b"queue@a"),
            (b"queue-a", b"queue-z"),
            (b"queue-b", b"q:e*e b"),
        ):
            assert old in good
            forged.send_encoded(good.replace(old, new), ROUTES)
        await eventually(lambda: domains["C1"].statistics().malformed == 3)
        assert "X" not in {
            route.target.domain for route in domains["C1"].table if route.cell != "*"
        }


async def test_satellite_cannot_advertise_other_domains() -> None:
    """Only cores have tunnels that are of use to others."""
    async with beside_others() as (domains, forged):
        forged.advertise(1, RouteAdvertisement.of(["work"], domains=["C1", "S1", "S2", "S9"]))
        await eventually(lambda: domains["C1"].table.queues("work"))
        for name in ("S1", "S2", "S9"):
            targets = {route.target for route in domains["C1"].table.domains(name)}
            assert CellAddress.of_domain("X") not in targets
        with pytest.raises(NoRouteError):
            await domains["C1"].call("a@S9", wait=False)


async def test_a_core_cannot_take_over_domains_that_are_connected() -> None:
    async with beside_others(Role.CORE) as (domains, forged):
        forged.advertise(1, RouteAdvertisement.of(["work"], domains=["C1", "S1", "S2", "S9"]))
        await eventually(lambda: domains["C1"].table.domains("S9"))
        assert await domains["C1"].call("echo@S2", b"x") == b"x"
        assert not forged.envelopes


async def test_queue_advertised_by_a_peer_does_not_hide_a_cell() -> None:
    async with beside_others() as (domains, forged):
        forged.advertise(1, RouteAdvertisement.of(["System", "echo"], ["System", "echo"]))
        await eventually(lambda: domains["C1"].table.queues("echo"))
        for n in range(20):
            assert await domains["C1"].call("echo", b"%d" % n) == b"%d" % n
        assert not forged.envelopes


async def test_stopping_core_loses_its_default_route() -> None:
    async with (
        Domains(1, 1, may_be_cores=["C1", "C9"]) as domains,
        forged_domain(domains["S1"], "C9", role=Role.CORE) as core,
    ):
        core.advertise(1, RouteAdvertisement())
        await eventually(lambda: len(domains["S1"].table.defaults()) == 2)
        core.send_update(ShutdownNotice(core.service.incarnation))
        await eventually(lambda: len(domains["S1"].table.defaults()) == 1)
        await eventually(
            lambda: any(
                isinstance(update, AdvertisementAck) and update.acknowledges_shutdown
                for update in core.updates
            )
        )
        # It can still be asked for what only it has.
        assert "C9" in domains["S1"].links.by_domain


async def test_repeated_name_conflicts_are_logged_at_a_limited_rate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with beside_others() as (domains, forged):
        await forged.acknowledge(domains["C1"])
        for _ in range(20):
            forged.send_update(AdvertisementAck((1 << 63) - 1, 1, b""))
            reply = await forged.answer_to(forged.send("echo@C1", b"heard"))
            assert reply.payload == b"heard"
        assert caplog.text.count("X has an advertisement of another process named C1") == 1
