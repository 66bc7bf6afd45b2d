"""Who dials whom, how often, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from postroad.cells import CellDomain, CellsConfig, CoreLocation, Role
from postroad.core import Address
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK, Domains, Inbox, cut, quick
from tests.support.deadlines import eventually

NOWHERE = Address("127.0.0.1", 1)


@asynccontextmanager
async def lonely(
    name: str = "S1", role: Role = Role.SATELLITE, config: CellsConfig = QUICK
) -> AsyncIterator[CellDomain]:
    """A domain that is told of no cores, but for what a test says."""
    async with (
        MessagingService(CLUSTER, name, limits=LIMITS) as service,
        CellDomain(service, role=role, config=config) as domain,
    ):
        yield domain


def at(name: str, *endpoints: Address) -> dict[str, CoreLocation]:
    return {name: CoreLocation(name, endpoints)}


@pytest.mark.parametrize(
    ("own", "role", "dialed"),
    [
        ("S1", Role.SATELLITE, {"A", "Z"}),
        ("M", Role.CORE, {"A"}),
        ("Zz", Role.CORE, {"A", "Z"}),
        ("0", Role.CORE, set()),
    ],
)
async def test_one_of_two_cores_dials(own: str, role: Role, dialed: set[str]) -> None:
    async with lonely(own, role) as domain:
        domain.dialer.set_cores(at("A", NOWHERE) | at("Z", NOWHERE))
        assert {name for name in ("A", "Z") if domain.dialer.should_dial(name)} == dialed
        await eventually(lambda: set(domain.dialer.failures) == dialed)


async def test_cores_are_connected_once() -> None:
    async with Domains(3, 0) as domains:
        for name in domains.by_name:
            assert set(domains[name].links.by_domain) == set(domains.by_name) - {name}
        opened = [service.statistics().connections_opened for service in domains.services.values()]
        assert opened == [0, 1, 2]


async def test_core_no_longer_listed_is_dialed_until_it_expires() -> None:
    async with lonely(config=quick(core_expiry_s=0.3)) as domain:
        domain.dialer.set_cores(at("C1", NOWHERE))
        await eventually(lambda: "C1" in domain.dialer.failures)
        domain.dialer.set_cores({})
        assert "C1" in domain.dialer.cores
        await eventually(lambda: "C1" not in domain.dialer.cores)
        assert not domain.dialer.failures
        # Who is told of again is dialed again.
        domain.dialer.set_cores(at("C1", NOWHERE))
        await eventually(lambda: "C1" in domain.dialer.failures)


async def test_working_tunnel_is_kept_whatever_discovery_reports() -> None:
    async with Domains(1, 1, config=quick(core_expiry_s=0.1)) as domains:
        domain = domains["S1"]
        domains["C1"].add_function("echo", Inbox())
        tunnel = domain.links.by_domain["C1"].tunnel
        domain.dialer.set_cores({})
        domain.dialer.set_cores(at("C1", NOWHERE))
        domain.dialer.set_cores({})
        await asyncio.sleep(0.4)
        assert domain.links.by_domain["C1"].tunnel is tunnel
        assert await domain.call("echo", b"x") == b"x"


async def test_moved_core_is_dialed_at_its_new_address() -> None:
    async with Domains(1, 0) as domains, lonely() as satellite:
        core = domains["C1"]
        core.add_function("echo", Inbox())
        satellite.dialer.set_cores(at("C1", NOWHERE))
        await eventually(lambda: "C1" in satellite.dialer.failures)
        satellite.dialer.set_cores(at("C1", core.service.address))
        assert await satellite.call("echo", b"x", timeout=5) == b"x"


async def test_other_node_at_the_address_of_a_core_is_refused() -> None:
    async with Domains(1, 0) as domains, lonely() as satellite:
        satellite.dialer.set_cores(at("C7", domains["C1"].service.address))
        await eventually(lambda: "C7" in satellite.dialer.failures)
        assert "expected node 'C7'" in satellite.dialer.failures["C7"]
        assert not satellite.links.by_domain
        await eventually(lambda: not domains["C1"].links.by_domain)


async def test_broken_tunnel_is_dialed_again_each_time() -> None:
    async with Domains(2, 1) as domains:
        domains["C1"].add_function("echo", Inbox())
        for _ in range(5):
            for peer in ("C1", "C2"):
                await cut(domains["S1"], peer)
            assert await domains["S1"].call("echo", b"x", timeout=5) == b"x"
            await domains.connected()


async def test_failed_dials_back_off() -> None:
    attempts: list[float] = []
    loop = asyncio.get_running_loop()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        attempts.append(loop.time())
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    address = Address(*server.sockets[0].getsockname())
    config = quick(redial_initial_delay_s=0.02, redial_max_delay_s=0.5)
    async with server, lonely(config=config) as domain:
        domain.dialer.set_cores(at("C1", address))
        await eventually(lambda: len(attempts) >= 7)
    pauses = [after - before for before, after in pairwise(attempts)]
    # There is chance in each of them, so only the trend is sure.
    assert sum(pauses[:2]) < sum(pauses[-2:])
