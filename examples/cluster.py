"""Three nodes that find each other, talk by name, and notice when one of them falls silent.

Run it with `python -m examples.cluster`. They are three in one process to keep it short; nothing
changes when each is a program on a machine of its own.
"""

import asyncio
from contextlib import AsyncExitStack

from postroad import run
from postroad.cluster import (
    ClusterAgent,
    ClusterMessaging,
    ClusterTopics,
    Member,
    MembershipConfig,
    MembershipEventType,
    StaticDiscovery,
)
from postroad.net import MessagingService

# Shorter times than the default, so that nobody has to wait for the end.
QUICK = MembershipConfig(
    probe_interval_s=0.2,
    indirect_probe_delay_s=0.1,
    probe_timeout_s=0.4,
    failure_timeout_s=2.0,
    confirmed_failure_timeout_s=1.0,
    gossip_interval_s=0.05,
)


class Node:
    """Everything a member of a cluster consists of."""

    def __init__(self, name: str, seeds: list[str]) -> None:
        self.name = name
        self.heard: asyncio.Queue[str] = asyncio.Queue()
        self.service = MessagingService("example", name)
        self.agent = ClusterAgent(self.service, StaticDiscovery(seeds), config=QUICK)
        self.communication = ClusterMessaging(self.agent)
        self.topics = ClusterTopics(self.communication)

    async def start(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.service)
        await stack.enter_async_context(self.agent)
        self.communication.serve("greet", self._greet)
        self.topics.subscribe("weather", self._hear)
        print(f"{self.name} joined")

    def _greet(self, message: bytes, member: Member) -> bytes:
        return f"{self.name} greets {member.name}".encode()

    def _hear(self, message: bytes, member: Member) -> None:
        self.heard.put_nowait(f"{message.decode()}, says {member.name}")

    async def wait_for_listeners(self, count: int) -> None:
        """Names and subscriptions of others arrive by gossip, soon after they joined."""
        changes = self.agent.events()
        while len(self.topics.subscribers("weather")) < count:
            await anext(changes)
        names = sorted(member.name for member in self.agent.members)
        print(f"{self.name} knows {', '.join(names)}")

    async def fall_silent(self) -> None:
        """Close all sockets without a word to anybody, as if the machine had lost its power."""
        if self.agent.datagram_service is not None:
            await self.agent.datagram_service.stop()
        await self.service.stop(grace=0)


async def main() -> None:
    async with AsyncExitStack() as stack:
        alpha = Node("alpha", [])
        await alpha.start(stack)
        seeds = [str(alpha.service.address)]
        beta, gamma = Node("beta", seeds), Node("gamma", seeds)
        await beta.start(stack)
        await gamma.start(stack)
        for node in (alpha, beta, gamma):
            await node.wait_for_listeners(3)

        reply: bytes = await beta.communication.request("gamma", "greet", b"")
        print(f"beta got the reply: {reply.decode()}")
        await beta.topics.publish("weather", b"rain")
        for node in (alpha, beta, gamma):
            print(f"{node.name} hears: {await node.heard.get()}")

        changes = beta.agent.events()
        await gamma.fall_silent()
        print("gamma fell silent")
        async for change in changes:
            print(f"beta was told: {change}")
            if change.kind is MembershipEventType.REMOVED:
                break


if __name__ == "__main__":
    run(main())
