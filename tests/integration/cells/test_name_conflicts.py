"""Two processes with the name of one domain: the later one has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from postroad.cells import CellDomain, Role, StaticCoreDiscovery
from postroad.core.errors import ConnectionClosedError
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK, Domains, ForgedDomain, Inbox
from tests.support.deadlines import eventually


@asynccontextmanager
async def another(domains: Domains, name: str) -> AsyncIterator[CellDomain]:
    """Another process with the name of a satellite, started later."""
    async with (
        MessagingService(CLUSTER, name, limits=LIMITS) as service,
        CellDomain(
            service, role=Role.SATELLITE, core_discovery=domains.locations(name), config=QUICK
        ) as domain,
    ):
        yield domain


async def test_later_domain_of_a_name_wins_and_the_older_is_notified() -> None:
    async with Domains(1, 2) as domains:
        older = domains["S1"]
        older.add_function("who", lambda message: b"older", consume=["work"])
        await domains.settled()
        async with another(domains, "S1") as later:
            later.add_function("who", lambda message: b"later", consume=["work"])
            assert later.service.incarnation > older.service.incarnation
            await eventually(lambda: "C1" in later.links.by_domain)
            await eventually(lambda: "C1" in older.dialer.failures)
            reason = older.dialer.failures["C1"]
            assert "a later process with the name S1 has a tunnel already" in reason
            for name in ("who@S1", "work"):
                assert await domains["S2"].call(name, timeout=5) == b"later"
            # It goes on like that, and the tunnel of the later one is left alone.
            tunnel = later.links.by_domain["C1"].tunnel
            older.dialer.failures.clear()
            await eventually(lambda: older.dialer.failures)
            assert later.links.by_domain["C1"].tunnel is tunnel
            assert await domains["S2"].call("who@S1", timeout=5) == b"later"
        # The older one keeps trying, and is the only one now.
        await eventually(lambda: "C1" in older.links.by_domain)
        assert await domains["S2"].call("who@S1", timeout=5) == b"older"


async def test_older_domain_cannot_take_the_name_back() -> None:
    async with (
        Domains(1, 0) as domains,
        MessagingService(CLUSTER, "S1", limits=LIMITS) as old,
        MessagingService(CLUSTER, "S1", limits=LIMITS) as new,
    ):
        for service in (old, new):
            service.set_hello_role("satellite", None)
        address = domains["C1"].service.address
        later = await ForgedDomain(new).connect(address)
        with pytest.raises(
            ConnectionClosedError, match="a later process with the name S1"
        ) as caught:
            await ForgedDomain(old).connect(address)
        assert not caught.value.retryable
        assert later.lost_because is None
        assert domains["C1"].links.by_domain["S1"].incarnation == new.incarnation


async def test_a_second_tunnel_of_one_process_takes_the_place_of_the_first() -> None:
    async with Domains(1, 0) as domains, MessagingService(CLUSTER, "S1", limits=LIMITS) as service:
        service.set_hello_role("satellite", None)
        domains["C1"].add_function("echo", Inbox())
        first = await ForgedDomain(service).connect(domains["C1"].service.address)
        second = await ForgedDomain(service).connect(domains["C1"].service.address)
        await eventually(lambda: first.lost_because is not None)
        assert first.lost_because is not None and "replaced" in first.lost_because
        reply = await second.answer_to(second.send("echo@C1", b"x"))
        assert reply.payload == b"x"
        assert domains["C1"].table.domains("S1")


async def test_domain_does_not_connect_to_itself() -> None:
    async with MessagingService(CLUSTER, "C1", limits=LIMITS) as service:
        cores = StaticCoreDiscovery({"C1": [service.address]})
        async with CellDomain(
            service, role=Role.CORE, core_discovery=cores, config=QUICK
        ) as domain:
            domain.add_function("echo", Inbox())
            assert await domain.call("echo@C1", b"x") == b"x"
            assert not domain.links.by_domain
            assert not domain.dialer.failures
