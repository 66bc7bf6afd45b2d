"""Domains that speak through TLS."""

from __future__ import annotations

from pathlib import Path

from postroad.cells import CellDomain, StaticCoreDiscovery
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK, Domains, Inbox
from tests.support.deadlines import eventually
from tests.support.net.tls import Authority


async def test_messages_and_routes_go_through_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with Domains(2, 2, tls=authority.tls) as domains:
        inbox = Inbox()
        domains["S2"].add_function("worker", inbox, consume=["work"], subscribe=["news"])
        await domains.settled()
        assert all(service.uses_tls for service in domains.services.values())
        for name in ("worker@S2", "work"):
            assert await domains["S1"].call(name, b"x") == b"x"
        domains["S1"].publish("news", b"y")
        await eventually(lambda: inbox.payloads == [b"x", b"x", b"y"])


async def test_a_domain_without_a_certificate_gets_no_tunnel(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with (
        Domains(1, 1, tls=authority.tls) as domains,
        MessagingService(CLUSTER, "S9", limits=LIMITS) as service,
    ):
        cores = StaticCoreDiscovery({"C1": [domains.services["C1"].address]})
        async with CellDomain(service, core_discovery=cores, config=QUICK) as plain:
            await eventually(lambda: "C1" in plain.dialer.failures)
            assert not plain.links.by_domain
        assert set(domains["C1"].links.by_domain) == {"S1"}
        domains["C1"].add_function("echo", Inbox())
        assert await domains["S1"].call("echo", b"x") == b"x"
