"""A member of a cluster as a process: `python -m tests.chaos.cluster_node NAME [CONTACT …]`.

Prints its address, then one line of JSON for each change it sees. The times are those of the
machine's monotonic clock, which all its processes share. It ends when its input does.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

from postroad import run
from postroad.cluster import ClusterAgent, MembershipEvent, StaticDiscovery
from postroad.net import MessagingService

CLUSTER = "chaos"


def report(change: MembershipEvent) -> None:
    member = change.member
    say(json.dumps([time.monotonic(), change.kind.value, member.name, member.state.name]))


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def belong(name: str, seeds: list[str]) -> None:
    async with MessagingService(CLUSTER, name) as service:
        agent = ClusterAgent(service, StaticDiscovery(seeds))
        agent.add_listener(report)
        say(str(service.address))
        async with agent:
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    run(belong(sys.argv[1], sys.argv[2:]))
