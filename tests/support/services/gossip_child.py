"""A node that speaks TCP to others, as a process of its own that can be killed.

Usage: python -m tests.support.services.gossip_child <node> <urls as JSON> <service>...
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.services.transporters.tcp import TcpTransporter
from tests.support.services.gossip_nodes import LOCAL, GossipNode
from tests.support.source_tree import ROOT


async def run(node_id: str, urls: dict[str, str], services: list[str]) -> None:
    """Be there until the input ends."""
    transporter = TcpTransporter(urls, host=LOCAL, udp_discovery=False)
    node = GossipNode(node_id, transporter, services=services)
    await node.start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await node.stop()


@asynccontextmanager
async def child(node_id: str, urls: dict[str, str], *services: str) -> AsyncIterator[Process]:
    """A child that runs; it ends with the block, or with this process."""
    arguments = ("-m", "tests.support.services.gossip_child", node_id, json.dumps(urls), *services)
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:]))
