"""Nodes of a cluster on loopback, each with its agent, and waits for their views."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from postroad.cluster import (
    ClusterAgent,
    ClusterMessaging,
    Discovery,
    Member,
    MembershipConfig,
    MembershipEvent,
    MembershipEventType,
    StaticDiscovery,
)
from postroad.cluster.agent import SUBJECT
from postroad.cluster.membership import MemberRecord
from postroad.cluster.membership.gossip import SyncRequestPacket, decode_packet, encode_packet
from postroad.core.errors import MessagingError
from postroad.core.names import to_address
from postroad.net import Address, Limits, MessagingService, ProtocolConfig, TlsConfig
from tests.support.deadlines import DEADLINE_S, eventually
from tests.support.net.peers import LOOPBACK

CLUSTER = "cluster-tests"

USUAL = MembershipConfig()
"""The default. Changes are gossiped at once, so only failures take long."""
QUICK = MembershipConfig(
    probe_interval_s=0.1,
    probe_timeout_s=0.4,
    indirect_probe_delay_s=0.15,
    failure_timeout_s=0.8,
    confirmed_failure_timeout_s=0.5,
    gossip_interval_s=0.05,
    sync_interval_s=0.5,
    join_timeout_s=0.5,
)
"""For tests in which a node fails."""

both_transports = pytest.mark.parametrize("datagrams", [True, False], ids=["udp", "tcp-only"])


class Node:
    """A service, its agent, messages by name, and all events of the agent."""

    def __init__(self, service: MessagingService, agent: ClusterAgent) -> None:
        self.service = service
        self.agent = agent
        self.communication = ClusterMessaging(agent)
        self.changes: list[MembershipEvent] = []
        agent.add_listener(self.changes.append)

    @property
    def name(self) -> str:
        return self.service.name

    @property
    def address(self) -> Address:
        return self.service.address

    @property
    def names(self) -> set[str]:
        """The members it knows, itself included."""
        return {member.name for member in self.agent.members}

    def see(self, name: str) -> Member:
        """Return a member that it knows."""
        member = self.agent.member(name)
        assert member is not None, f"{self.name} knows only {self.names}"
        return member

    def reported(self, kind: MembershipEventType, name: str | None = None) -> list[MembershipEvent]:
        """The changes of one kind so far, of one member or of all."""
        return [
            change
            for change in self.changes
            if change.kind is kind and name in (None, change.member.name)
        ]

    async def until(self, condition: Callable[[Node], object], what: str) -> None:
        """Return as soon as the condition holds; it is checked after each event."""
        stream = self.agent.events()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition(self):
                    await anext(stream)
        except TimeoutError:
            raise AssertionError(
                f"{self.name} did not see that {what}: {self.agent.members}"
            ) from None
        finally:
            stream.close()

    async def eventually(self, condition: Callable[[Node], object]) -> None:
        """Poll the condition: for state without events."""
        await eventually(lambda: condition(self))

    async def until_knows(self, *names: str) -> None:
        """Wait until its members are these and itself."""
        expected = {self.name, *names}
        await self.until(lambda _: self.names == expected, f"the members are {expected}")

    async def until_meets(self, process: Member) -> None:
        """Wait until it knows this process under the member's name."""

        def has_met(_node: Node) -> bool:
            member = self.agent.member(process.name)
            return member is not None and member.instance == process.instance

        await self.until(has_met, f"{process} is there")

    async def until_removed(self, name: str) -> MembershipEvent:
        """Wait for the removal; return its event."""
        await self.until(
            lambda _: self.reported(MembershipEventType.REMOVED, name), f"{name} is gone"
        )
        return self.reported(MembershipEventType.REMOVED, name)[-1]

    async def crash(self) -> None:
        """Stop without a leave: neither send nor receive any more."""
        if self.agent.datagram_service is not None:
            await self.agent.datagram_service.stop()
        await self.service.stop(grace=0)

    async def stop(self) -> None:
        await self.agent.stop()
        await self.service.stop()


def make_node(
    service: MessagingService,
    *seeds: Address | Node,
    discovery: Discovery | None = None,
    **options: Any,
) -> Node:
    """A node on a started service; `options` are those of Agent."""
    addresses = [seed.address if isinstance(seed, Node) else seed for seed in seeds]
    options = {"config": USUAL} | options
    return Node(service, ClusterAgent(service, discovery or StaticDiscovery(addresses), **options))


@asynccontextmanager
async def running_service(
    name: str,
    *,
    cluster: str = CLUSTER,
    bind: Address | str = f"{LOOPBACK}:0",
    advertise: str | None = None,
    tls: TlsConfig | None = None,
    protocol: ProtocolConfig | None = None,
    secret: str | None = None,
) -> AsyncIterator[MessagingService]:
    limits = Limits(connect_timeout_s=1.0, stop_grace_s=1.0)
    while True:
        async with MessagingService(
            cluster, name, bind, advertise, tls=tls, limits=limits, protocol=protocol, secret=secret
        ) as service:
            # The system chooses a port that is free for TCP; others may use it for datagrams.
            if to_address(bind).port or service.bound_address.port not in udp_ports():
                yield service
                return


@asynccontextmanager
async def running_node(
    name: str,
    *seeds: Address | Node,
    discovery: Discovery | None = None,
    config: MembershipConfig = USUAL,
    datagrams: bool | None = None,
    properties: dict[str, str] | None = None,
    **service_options: Any,
) -> AsyncIterator[Node]:
    """A node that has joined; `service_options` are those of `running_service`."""
    async with running_service(name, **service_options) as service:
        node = make_node(
            service,
            *seeds,
            discovery=discovery,
            config=config,
            datagrams=datagrams,
            properties=properties,
        )
        async with node.agent:
            yield node


@asynccontextmanager
async def running_cluster(names: str, **options: Any) -> AsyncIterator[list[Node]]:
    """Nodes that know each other; the first is the seed of the others."""
    nodes: list[Node] = []
    async with AsyncExitStack() as stack:
        for name in names.split():
            seeds = nodes[:1]
            nodes.append(await stack.enter_async_context(running_node(name, *seeds, **options)))
        await all_know(nodes)
        yield nodes


def udp_ports() -> set[int]:
    """The ports of this machine at which datagrams are received."""
    with open("/proc/self/net/udp", encoding="ascii") as file:
        lines = file.read().splitlines()[1:]
    return {int(line.split()[1].rpartition(":")[2], 16) for line in lines}


async def all_know(nodes: Iterable[Node]) -> None:
    """Wait until each of the nodes knows exactly these nodes."""
    nodes = list(nodes)
    names = [node.name for node in nodes]
    for node in nodes:
        await node.until_knows(*names)


class Inbox:
    """A handler that stores its messages."""

    def __init__(self, node: Node, subject: str = "note") -> None:
        self.messages: list[tuple[bytes, str]] = []
        node.communication.subscribe(subject, self)

    def __call__(self, message: bytes, member: Member) -> None:
        self.messages.append((message, member.name))

    async def until(self, *messages: tuple[bytes, str]) -> None:
        await eventually(lambda: len(self.messages) >= len(messages))
        assert sorted(self.messages) == sorted(messages)


async def failure(call: Awaitable[object], kind: type[MessagingError]) -> MessagingError:
    with pytest.raises(kind) as caught:
        await asyncio.wait_for(call, 10)
    assert type(caught.value) is kind
    return caught.value


async def request_full_state(node: Node) -> dict[str, MemberRecord]:
    """Return the full state of a node, as it sends it to any node of the cluster."""
    probe = SyncRequestPacket(nonce=1, digest=b"")
    async with running_service("spy", cluster=node.service.cluster) as spy:
        reply = await spy.request(node.address, SUBJECT, encode_packet(probe))
    return {record.name: record for record in decode_packet(reply, records_max=100).records}
