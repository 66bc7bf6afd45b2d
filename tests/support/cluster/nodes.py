"""Nodes of a cluster on loopback, each with its agent, and waiting for what they see."""

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
"""What users get. News travel at once, so only failures take long."""
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
"""For tests in which somebody fails."""

both_ways = pytest.mark.parametrize("datagrams", [True, False], ids=["udp", "tcp-only"])


class Node:
    """A service, its agent, messages by name, and every change the agent told of."""

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
        """A member that it knows."""
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
        """Return as soon as the condition holds of this node; looked at after each change."""
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
        """The same for what no change tells of."""
        await eventually(lambda: condition(self))

    async def until_knows(self, *names: str) -> None:
        """These and itself are all it knows."""
        expected = {self.name, *names}
        await self.until(lambda _: self.names == expected, f"the members are {expected}")

    async def until_meets(self, process: Member) -> None:
        """It knows this very process under the member's name."""

        def has_met(_node: Node) -> bool:
            member = self.agent.member(process.name)
            return member is not None and member.instance == process.instance

        await self.until(has_met, f"{process} is there")

    async def until_removed(self, name: str) -> MembershipEvent:
        """The change that tells of the removal."""
        await self.until(
            lambda _: self.reported(MembershipEventType.REMOVED, name), f"{name} is gone"
        )
        return self.reported(MembershipEventType.REMOVED, name)[-1]

    async def crash(self) -> None:
        """Be gone without a goodbye: nothing comes in or out any more."""
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
            cluster,
            name,
            bind,
            advertise,
            tls=tls,
            limits=limits,
            protocol=protocol,
            secret=secret,
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
    """Nodes with the names, that know each other; the first is the contact of the others."""
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
    """Each of the nodes knows all of them, and nobody else."""
    nodes = list(nodes)
    names = [node.name for node in nodes]
    for node in nodes:
        await node.until_knows(*names)


class Inbox:
    """A consumer that keeps what it gets."""

    def __init__(self, node: Node, subject: str = "note") -> None:
        self.letters: list[tuple[bytes, str]] = []
        node.communication.subscribe(subject, self)

    def __call__(self, message: bytes, member: Member) -> None:
        self.letters.append((message, member.name))

    async def until(self, *letters: tuple[bytes, str]) -> None:
        await eventually(lambda: len(self.letters) >= len(letters))
        assert sorted(self.letters) == sorted(letters)


async def failure(call: Awaitable[object], kind: type[MessagingError]) -> MessagingError:
    with pytest.raises(kind) as caught:
        await asyncio.wait_for(call, 10)
    assert type(caught.value) is kind
    return caught.value


async def spy_out(node: Node) -> dict[str, MemberRecord]:
    """All that the node knows of members, as it tells any node of the cluster that asks."""
    question = SyncRequestPacket(nonce=1, digest=b"")
    async with running_service("spy", cluster=node.service.cluster) as spy:
        answer = await spy.request(node.address, SUBJECT, encode_packet(question))
    return {record.name: record for record in decode_packet(answer, records_max=100).records}
