"""Routes changed by hand, who is told of it, and how many there may be."""

from __future__ import annotations

from itertools import product

import pytest

from postroad.cells import CellAddress, CellNotFoundError, NoRouteError, Route, RouteRejectedError
from postroad.cells.routing.advertisements import NAMES_MAX
from postroad.core.errors import RemoteHandlerError
from tests.support.cells.nodes import Domains, Inbox, link_of
from tests.support.deadlines import eventually

ECHO = CellAddress("echo", "C1")
ROUTES = [Route.to_domain("X", ECHO), Route.to_address(CellAddress("old", "Y"), ECHO)]
DESTINATIONS = ["foo@X", "old@Y"]


# Routes that need a tunnel.


async def test_route_by_a_cell_that_is_no_tunnel_is_refused() -> None:
    async with Domains(1, 1) as domains:
        core = domains["C1"]
        core.add_function("echo", Inbox())
        table = core.table
        for route in (*ROUTES, Route.default(ECHO)):
            for reject in (core.check_route, lambda route: core.change_routes(added=[route])):
                with pytest.raises(CellNotFoundError, match="echo@C1 is no tunnel"):
                    reject(route)
            line = f"route add -type={route.type.value} '{route.destination}' echo@C1"
            with pytest.raises(RemoteHandlerError, match="no tunnel"):
                await domains["S1"].run_command("System@C1", line)
            assert core.table is table


async def test_routes_by_a_tunnel_and_aliases_of_cells_are_taken() -> None:
    async with Domains(1, 2) as domains:
        core, inbox = domains["C1"], Inbox()
        core.add_function("echo", inbox)
        domains["S2"].add_function("old", inbox)
        alias = Route.alias(CellAddress("old", "Y"), ECHO)
        detour = Route.to_address(CellAddress("old", "Z"), CellAddress("tunnel-S2", "C1"))
        core.change_routes(added=[alias, detour])
        assert await domains["S1"].call("old@Y", b"by its other name") == b"by its other name"
        with pytest.raises(NoRouteError):
            # It came to S2, which is not Z.
            await domains["S1"].call("old@Z", wait=False)


async def test_message_that_finds_no_tunnel_is_answered_and_harms_no_tunnel() -> None:
    """Such a route may be left of a tunnel, or of a cell that was one."""
    async with Domains(1, 1) as domains:
        core = domains["C1"]
        core.add_function("echo", Inbox())
        link = link_of(core, "S1")
        core.dispatcher.registry.change_routes(added=ROUTES)
        for domain, destination in product((core, domains["S1"]), DESTINATIONS):
            for _ in range(2):
                with pytest.raises(
                    NoRouteError, match="cannot forward through echo: it is no tunnel"
                ):
                    await domain.call(destination, wait=False)
        assert link_of(core, "S1") is link
        assert await domains["S1"].call("echo@C1", b"x") == b"x"


# Listeners.


async def test_a_listener_that_raises_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with Domains(2, 1) as domains:
        core, sizes = domains["C1"], []

        def fail() -> None:
            raise RuntimeError("a listener of the user")

        core.on_routes_changed(fail)
        core.on_routes_changed(lambda: sizes.append(len(core.table)))
        domains["S1"].add_function("worker", Inbox(), consume=["early"])
        await eventually(lambda: core.table.queues("early"))
        assert sizes == [len(core.table)]
        core.add_function("worker", Inbox(), consume=["late"])
        assert await core.wait_routes_acknowledged()
        assert domains["C2"].table.queues("late")
        assert len(sizes) == 2
        assert "C1: a callback of on_routes_changed failed" in caplog.text


async def test_removed_listener_is_not_called() -> None:
    async with Domains(1, 0) as domains:
        core, events = domains["C1"], list[str]()
        leave = core.on_routes_changed(lambda: events.append("leaves"))

        def hear_once() -> None:
            events.append("once")
            leave_at_once()

        leave_at_once = core.on_routes_changed(hear_once)
        core.on_routes_changed(lambda: events.append("stays"))
        core.add_function("a", Inbox(), consume=["a"])
        assert events == ["leaves", "once", "stays"]
        leave()
        leave()
        core.consume("a", "b")
        assert events[3:] == ["stays"]


# How much a domain may offer.


async def test_more_queues_than_an_advertisement_holds_are_refused() -> None:
    async with Domains(1, 1) as domains:
        domain = domains["S1"]
        domain.add_function("worker", Inbox(), consume=["first"])
        table = domain.table
        too_many = [f"q{n}" for n in range(NAMES_MAX)]
        with pytest.raises(
            RouteRejectedError,
            match="cannot advertise the routes of domain S1: advertisement of 8193 names",
        ):
            domain.consume("worker", *too_many)
        assert domain.table is table
        with pytest.raises(RouteRejectedError, match="cannot advertise the routes of domain S1"):
            domain.add_function("other", Inbox(), consume=too_many)
        assert domain.table is table
        assert "other" not in domain.cells
        # And nothing hinders what comes after.
        domain.consume("worker", "second")
        assert await domain.wait_routes_acknowledged()
        assert domains["C1"].table.queues("first")
        assert domains["C1"].table.queues("second")


async def test_routes_to_other_domains_are_not_advertised() -> None:
    async with Domains(1, 0) as domains:
        core = domains["C1"]
        core.add_function("worker", Inbox())
        many = [f"q{n}" for n in range(NAMES_MAX)]
        elsewhere = CellAddress.of_domain("S1")
        core.change_routes(added=[Route.to_queue(name, elsewhere) for name in many])
        core.consume("worker", *many)
        assert len(core.table) == 2 * NAMES_MAX
