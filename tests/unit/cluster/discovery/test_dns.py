"""DNS discovery: forms of names, the local address among the results, failing resolvers."""

import asyncio
import socket
from collections import Counter
from typing import Any

import pytest

from postroad.cluster.discovery import DnsDiscovery
from postroad.core import Address
from tests.support.cluster.discovery_behaviour import OTHER, OWN, THIRD, Recorder
from tests.support.deadlines import DEADLINE_S, eventually

NEVER_S = 1_000.0


class Resolver:
    """Answers in place of the loop's resolver, for every name the same."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] | OSError = []
        self.queried: Counter[str] = Counter()
        self.is_free = asyncio.Event()
        self.is_free.set()
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.getaddrinfo)

    async def getaddrinfo(self, host: str, port: int, **_options: Any) -> Any:
        if host == OWN.host:
            return records([host], port)
        self.queried[host] += 1
        await self.is_free.wait()
        if isinstance(self.hosts, OSError):
            raise self.hosts
        return records(self.hosts, port)


def records(hosts: list[str], port: int) -> list[tuple[Any, ...]]:
    kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
    return [(*kind, (host, port)) for host in hosts]


@pytest.fixture
async def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    return Resolver(monkeypatch)


async def seeds_of(names: list[str], own: Address = OWN) -> frozenset[Address]:
    """What the real resolver makes of these names."""
    discovery, reported = DnsDiscovery(names), Recorder()
    await discovery.start("own", own, reported)
    await discovery.stop()
    assert len(reported.calls) == 1
    return reported.calls[0]


async def test_dns_name_of_any_form_yields_every_record_as_a_seed() -> None:
    for name, contact in [
        ("127.0.0.2", Address("127.0.0.2", 26502)),
        ("127.0.0.2:80", Address("127.0.0.2", 80)),
        ("::1", Address("::1", 26502)),
        ("[::1]", Address("::1", 26502)),
        ("[::1]:80", Address("::1", 80)),
    ]:
        assert await seeds_of([name]) == {contact}, name

    seeds = await seeds_of(["localhost:7002"])
    assert seeds
    assert seeds <= {Address("127.0.0.1", 7002), Address("::1", 7002)}

    for own, name in [
        (Address("localhost", 7001), "localhost:7001"),
        (Address("localhost", 7001), "127.0.0.1:7001"),
        (Address("0:0:0:0:0:0:0:1", 7001), "[::1]:7001"),
    ]:
        assert await seeds_of([name, "127.0.0.2:7001"], own) == {Address("127.0.0.2", 7001)}, name

    assert Address("127.0.0.1", 7002) in await seeds_of(
        ["localhost:7002"], Address("localhost", 7001)
    )


async def test_every_dns_record_is_a_seed(resolver: Resolver) -> None:
    resolver.hosts = ["10.0.0.1", "10.0.0.2", "10.0.0.1"]
    assert await seeds_of(["nodes.example:1"]) == {Address("10.0.0.1", 1), Address("10.0.0.2", 1)}


async def test_failed_dns_query_keeps_the_last_result_and_is_retried(resolver: Resolver) -> None:
    resolver.hosts = [OTHER.host]
    discovery, reported = (
        DnsDiscovery([f"nodes.example:{OTHER.port}"], interval_s=0.01),
        Recorder(),
    )
    await discovery.start("own", OWN, reported)
    resolver.hosts = socket.gaierror(socket.EAI_NONAME, "planted")
    await eventually(lambda: discovery.statistics().failures > 2, "it is queried again")
    assert reported.calls == [{OTHER}]
    assert not discovery.statistics().is_connected
    assert "cannot resolve nodes.example: " in discovery.statistics().last_error
    await discovery.stop()

    resolver.hosts = socket.gaierror(socket.EAI_AGAIN, "planted")
    discovery, reported = (
        DnsDiscovery([f"nodes.example:{OTHER.port}"], interval_s=NEVER_S),
        Recorder(),
    )
    await discovery.start("own", OWN, reported)
    assert reported.calls == [frozenset()]
    resolver.hosts = [OTHER.host]
    await reported.until(OTHER)
    await discovery.stop()

    resolver.hosts = socket.gaierror(socket.EAI_AGAIN, "planted")
    discovery, reported = (DnsDiscovery(["nodes.example", f"{OWN.host}:{THIRD.port}"]), Recorder())
    await discovery.start("own", OWN, reported)
    assert reported.calls == [{THIRD}]
    await discovery.stop()


async def test_hanging_resolver_has_one_query_in_flight(resolver: Resolver) -> None:
    resolver.hosts = [OTHER.host]
    resolver.is_free.clear()
    discovery = DnsDiscovery([f"nodes.example:{OTHER.port}"], interval_s=0.01, timeout_s=0.01)
    reported = Recorder()
    await discovery.start("own", OWN, reported)
    await eventually(lambda: discovery.statistics().failures > 3, "it is waited for again")
    assert resolver.queried["nodes.example"] == 1
    assert reported.calls == [frozenset()]

    resolver.is_free.set()
    await reported.until(OTHER)
    await discovery.stop()


async def test_discovery_stop_does_not_wait_for_a_hanging_resolver(resolver: Resolver) -> None:
    resolver.is_free.clear()
    discovery = DnsDiscovery(["nodes.example"], timeout_s=0.01)
    await discovery.start("own", OWN, Recorder())
    await asyncio.wait_for(discovery.stop(), DEADLINE_S)
