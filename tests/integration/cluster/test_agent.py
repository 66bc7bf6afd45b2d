"""Cluster agents over real sockets: join, leave, crash, return, start and stop."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest

from postroad.cluster import (
    ClusterAgent,
    ClusterMessaging,
    ClusterTopics,
    MembershipConfig,
    MembershipEventType,
    StaticDiscovery,
    ZooKeeperDiscovery,
)
from postroad.core.errors import ConfigError, UsageError
from postroad.net import Address, MessagingService
from tests.support.cluster.nodes import (
    QUICK,
    Node,
    all_know,
    both_transports,
    make_node,
    running_cluster,
    running_node,
    running_service,
    udp_ports,
)
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import nothing_left
from tests.support.net.scripts import blackhole, unused_address
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S, disturbed_zookeeper, fresh_root

# Joining.


@pytest.mark.parametrize("names", ["a b", "a b c d e"])
@both_transports
async def test_nodes_find_each_other(names: str, datagrams: bool) -> None:
    async with nothing_left(), running_cluster(names, datagrams=datagrams) as nodes:
        for node in nodes:
            assert node.agent.members[0] == node.agent.local_member
            assert node.agent.local_member.name == node.name
            for other in nodes:
                member = node.see(other.name)
                assert member.address == other.address
                assert member.instance == other.agent.local_member.instance
                assert member.is_reachable
                assert node.agent.names_at(other.address) == [other.name]
            assert (node.address.port in udp_ports()) is datagrams
            assert (node.agent.datagram_service is not None) is datagrams


async def test_contact_of_a_contact() -> None:
    async with running_node("a") as a, running_node("b", a) as b, running_node("c", b) as c:
        await all_know([a, b, c])


async def test_all_start_at_once_with_one_list() -> None:
    async with (
        running_service("a") as first,
        running_service("b") as second,
        running_service("c") as third,
    ):
        services = [first, second, third]
        addresses = [service.address for service in services]
        nodes = [make_node(service, *addresses) for service in services]
        await asyncio.gather(*(node.agent.start() for node in nodes))
        await all_know(nodes)
        await asyncio.gather(*(node.agent.stop() for node in nodes))


async def test_node_with_an_unreachable_seed_starts_alone_and_joins_later() -> None:
    later = unused_address()
    async with running_node("early", later, config=QUICK) as early:
        assert early.names == {"early"}
        async with running_node("late", bind=later, config=QUICK) as late:
            await all_know([early, late])


async def test_contact_under_another_spelling() -> None:
    async with running_node("a") as a:
        spelled = Address("localhost", a.address.port)
        async with running_node("b", spelled) as b:
            await all_know([a, b])
            assert b.see("a").address == a.address


@pytest.mark.parametrize(
    ("bind", "advertise"),
    [("0.0.0.0:0", "127.0.0.1:0"), ("0.0.0.0:0", "localhost:0"), ("[::1]:0", None)],
    ids=["any address", "host name", "IPv6"],
)
async def test_addresses_of_all_kinds(bind: str, advertise: str | None) -> None:
    async with running_cluster("a b c", bind=bind, advertise=advertise, config=QUICK) as nodes:
        for node in nodes:
            await node.eventually(lambda node: len(node.agent.statistics().round_trips_s) == 2)
            assert not node.reported(MembershipEventType.REMOVED)


async def test_families_of_addresses_mix() -> None:
    """Datagrams do not go from one to the other, TCP does."""
    async with (
        running_node("a", config=QUICK) as a,
        running_node("b", a, bind="[::1]:0", config=QUICK) as b,
    ):
        await all_know([a, b])
        for node in (a, b):
            await node.eventually(
                lambda node: node.agent.statistics().counters.probes_by_stream >= 3
            )
            assert not node.reported(MembershipEventType.REMOVED)


async def test_agents_find_each_other_through_zookeeper() -> None:
    root = fresh_root()

    def discovery() -> ZooKeeperDiscovery:
        return ZooKeeperDiscovery(server.hosts, "found", root, session_timeout_s=SESSION_TIMEOUT_S)

    with disturbed_zookeeper() as server:
        async with (
            running_node("a", discovery=discovery()) as a,
            running_node("b", discovery=discovery()) as b,
        ):
            async with running_node("c", discovery=discovery()) as c:
                await all_know([a, b, c])
                statistics = c.agent.statistics().discovery
                assert (statistics.is_connected, statistics.registrations) == (True, 1)
                # Who is alive is not for ZooKeeper to say.
                server.pause()
                c.agent.set_properties({"role": "leader"})
                await a.until(lambda node: node.see("c").properties, "c leads")
                server.resume()
            await all_know([a, b])


async def test_clusters_do_not_mix(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running_node("a", cluster="one", config=QUICK) as first,
        running_node("b", first, cluster="one", config=QUICK) as second,
        running_node("a", first, second, cluster="two", config=QUICK) as alien,
        running_node("c", first, alien, cluster="two", config=QUICK) as fellow,
    ):
        await all_know([first, second])
        await all_know([alien, fellow])
        # Contacts that refuse are asked again; that changes nothing.
        await eventually(lambda: alien.agent.statistics().streams_failed >= 3)
        assert first.names == second.names == {"a", "b"}
        assert alien.names == fellow.names == {"a", "c"}
        assert first.service.statistics().protocol_errors_by_kind.keys() == {
            "HandshakeRejectedError"
        }
    assert "cluster" in caplog.text


# Properties.


async def test_properties_are_seen_changed_and_removed() -> None:
    async with (
        running_node("a", properties={"zone": "north", "role": "leader"}) as a,
        running_node("b", a) as b,
        running_node("c", a) as c,
    ):
        for node in (b, c):
            await node.until_knows("a", "b", "c")
            assert node.see("a").properties == {"zone": "north", "role": "leader"}
        a.agent.set_properties({"zone": "south", "role": None, "load": "3"})
        for node in (a, b, c):
            await node.until(lambda node: node.see("a").version == 1, "a has changed")
            assert node.see("a").properties == {"zone": "south", "load": "3"}
        # One who comes later does not learn of what was removed.
        async with running_node("d", c) as d:
            await d.until_knows("a", "b", "c")
            assert d.see("a").properties == {"zone": "south", "load": "3"}


@both_transports
async def test_large_properties(datagrams: bool) -> None:
    large = {f"key {number}": "ä" * 1_000 for number in range(8)}
    async with running_cluster("a b c", datagrams=datagrams) as (a, b, c):
        a.agent.set_properties(large)
        for node in (b, c):
            await node.until(lambda node: node.see("a").properties == large, "a is large")
        with pytest.raises(ConfigError, match=r"properties of \d+ bytes exceed the 16384 allowed"):
            a.agent.set_properties({"one": "x" * 16_000})
        with pytest.raises(ConfigError, match="must be a string"):
            a.agent.set_properties({"one": 1})  # type: ignore[dict-item]
        assert a.agent.local_member.properties == large


# Looking.


async def test_statistics_and_repr() -> None:
    async with running_service("a") as service:
        node = make_node(service, config=QUICK)
        assert repr(node.agent) == "<ClusterAgent a not started>"
        async with node.agent, running_node("b", node, config=QUICK) as other:
            await all_know([node, other])
            assert repr(node.agent) == "<ClusterAgent a member, 2 members>"
            await eventually(lambda: "b" in node.agent.statistics().round_trips_s)
            statistics = node.agent.statistics()
            assert (statistics.members, statistics.suspects) == (2, 0)
            assert statistics.counters.probes > 0
            assert statistics.counters.packets_sent > 0
            assert statistics.counters.packets_received > 0
            assert statistics.streams_dropped == 0
            assert statistics.discovery.seeds == 0
            assert other.agent.statistics().discovery.seeds == 1
            # A copy: what happens later does not change it.
            statistics.counters.rejected["anything"] = 1
            assert node.agent.statistics().counters.rejected == {}
        assert repr(node.agent) == "<ClusterAgent a left, 1 members>"


# Misuse.


async def test_use_before_start() -> None:
    async with running_service("a") as service:
        agent = ClusterAgent(service)
        for use in (
            lambda: agent.members,
            lambda: agent.local_member,
            lambda: agent.member("b"),
            lambda: agent.names_at(service.address),
            lambda: agent.datagram_service,
            agent.statistics,
            lambda: agent.contact(service.address),
        ):
            with pytest.raises(UsageError, match=r"is not running; call start"):
                use()
        with pytest.raises(UsageError, match=r"start\(\)"):
            await agent.wait_closed()
        await agent.stop()


async def test_properties_and_handlers_before_start() -> None:
    async with running_service("a") as service, running_node("b") as b:
        agent = ClusterAgent(
            service, StaticDiscovery([b.address]), properties={"role": "x", "old": "y"}
        )
        agent.set_properties({"role": "z", "old": None})
        communication = ClusterMessaging(agent)
        got: asyncio.Queue[bytes] = asyncio.Queue()
        communication.subscribe("early", lambda message, _member: got.put_nowait(message))
        topics = ClusterTopics(communication)
        topics.subscribe("news", lambda message, _member: got.put_nowait(message))
        async with agent:
            await b.until_knows("a")
            assert dict(b.see("a").properties) == {"role": "z", "topic:news": ""}
            await b.communication.send("a", "early", b"1", reliable=False)
            assert await asyncio.wait_for(got.get(), DEADLINE_S) == b"1"
            await ClusterTopics(b.communication).publish("news", b"2")
            assert await asyncio.wait_for(got.get(), DEADLINE_S) == b"2"
        with pytest.raises(UsageError, match="the agent of 'a' was stopped"):
            agent.set_properties({"role": "late"})


async def test_unusable_arguments() -> None:
    async with running_service("a") as service:
        for discovery in (["127.0.0.1:1"], "127.0.0.1:1"):
            with pytest.raises(ConfigError, match="pass StaticDiscovery"):
                ClusterAgent(service, discovery)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="must be a MessagingService, not 'a'"):
            ClusterAgent("a")  # type: ignore[arg-type]
        for properties in ("abc", {"": "x"}, {"key": 1}, {"a": "x" * 20_000}, {"a": "\ud800"}):
            async with nothing_left():
                with pytest.raises(ConfigError, match=r"property|properties"):
                    await ClusterAgent(service, properties=properties).start()  # type: ignore[arg-type]


async def test_node_that_stays_alone_says_why(caplog: pytest.LogCaptureFixture) -> None:
    quick = MembershipConfig(join_timeout_s=0.2)
    async with running_service("a") as service:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            address = Address(*nobody.getsockname())
            async with ClusterAgent(service, StaticDiscovery([address]), config=quick):
                assert "a joined alone and keeps trying: no seed has replied" in caplog.text
                assert f"to {address}" in caplog.text


async def test_agent_starts_once_on_a_service_that_runs() -> None:
    with pytest.raises(UsageError, match=r"start\(\) it first"):
        await ClusterAgent(MessagingService("cluster-tests", "a")).start()
    async with running_cluster("a b") as (a, b):
        with pytest.raises(UsageError, match=r"ClusterAgent a .* was started already"):
            await a.agent.start()
        await b.agent.stop()
        with pytest.raises(UsageError, match=r"ClusterAgent b .* was started already"):
            await b.agent.start()
        await a.until_knows()


@both_transports
async def test_second_agent_on_a_service_does_not_harm_the_first(datagrams: bool) -> None:
    async with running_cluster("a b", datagrams=datagrams) as (a, b):
        with pytest.raises(UsageError, match="service 'a' has an agent already"):
            await ClusterAgent(a.service, datagrams=datagrams).start()
        async with running_node("c", a, datagrams=datagrams) as c:
            await all_know([a, b, c])


# uvloop leaves the socket that it could not bind to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
async def test_port_busy_for_datagrams() -> None:
    async with running_service("a") as service:
        async with nothing_left():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as busy:
                busy.bind(service.address)
                with pytest.raises(ConfigError, match=f"datagram socket at {service.address}"):
                    await ClusterAgent(service).start()
        async with make_node(service).agent as agent:
            assert len(agent.members) == 1


# Stopping.


async def test_stop_is_idempotent_and_ends_waiting() -> None:
    async with nothing_left(), running_service("a") as service:
        agent = make_node(service).agent
        await agent.stop()
        await agent.start()
        waiting = asyncio.create_task(agent.wait_closed())
        await asyncio.gather(agent.stop(), agent.stop())
        await agent.stop()
        await waiting
        assert agent.failure is None
        assert service.address.port not in udp_ports()


async def test_stop_takes_bounded_time_without_a_reachable_peer() -> None:
    """The others have crashed, or the own service has stopped."""
    async with nothing_left(), running_cluster("a b c", config=QUICK) as (a, b, c):
        await b.service.stop()
        async with asyncio.timeout(DEADLINE_S):
            await b.agent.stop()
        await a.until_removed("b")
        await c.crash()
        async with asyncio.timeout(DEADLINE_S):
            await a.agent.stop()


async def test_cancelled_stop_can_be_finished() -> None:
    async with nothing_left(), blackhole() as contact, running_service("a") as service:
        # The contact is still being called when the node leaves.
        config = MembershipConfig(join_timeout_s=0.01)
        agent = make_node(service, contact, config=config).agent
        await agent.start()
        stopping = asyncio.create_task(agent.stop())
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        await agent.stop()
        try:
            await asyncio.wait_for(agent.wait_closed(), DEADLINE_S)
            assert service.address.port not in udp_ports()
        finally:
            if agent.datagram_service is not None:
                await agent.datagram_service.stop()


async def start_in_vain(
    service: MessagingService, contact: Address
) -> tuple[Node, asyncio.Task[None]]:
    """A node that waits for a contact which never answers."""
    node = make_node(service, contact, config=MembershipConfig(join_timeout_s=60))
    starting = asyncio.create_task(node.agent.start())
    await eventually(lambda: service.statistics().subscriptions == 1)
    await eventually(lambda: node.agent.statistics().discovery.seeds == 1)
    return node, starting


async def test_cancelled_start_leaves_nothing_open() -> None:
    async with blackhole() as contact, running_service("a") as service:
        async with nothing_left():
            node, starting = await start_in_vain(service, contact)
            assert service.address.port in udp_ports()
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert service.statistics().subscriptions == 0
            await node.agent.stop()
        async with make_node(service).agent as agent:
            assert len(agent.members) == 1


async def test_stop_during_start_ends_both() -> None:
    async with blackhole() as contact, running_service("a") as service, nothing_left():
        node, starting = await start_in_vain(service, contact)
        await node.agent.stop()
        done, _ = await asyncio.wait([starting], timeout=DEADLINE_S)
        starting.cancel()
        assert done


async def test_log_lists_the_members_after_the_join(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "postroad.cluster")
    async with running_cluster("a b") as (a, b):
        assert "a joined the cluster; members: a\n" in caplog.text
        assert "b joined the cluster; members: b, a\n" in caplog.text
        assert f"a: added b at {b.address}, alive" in caplog.text
        b.agent.set_properties({"role": "leader"})
        await a.until(lambda node: node.see("b").properties, "b leads")
    assert f"a: removed b at {b.address}, left" in caplog.text
    assert "properties" not in caplog.text
    assert StaticDiscovery([a.address]).statistics().seeds == 0
