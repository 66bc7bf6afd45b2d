"""A node that is entered in ZooKeeper, as a process of its own that tests may pause or kill."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.cluster.discovery import ZooKeeperDiscovery
from postroad.core import Address
from tests.support.cluster.discovery_behaviour import OTHER
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S
from tests.support.source_tree import ROOT


@asynccontextmanager
async def registered_node(
    hosts: str, cluster: str, root: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this module until the end of the block; the node is at OTHER."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.cluster.registered_node", hosts, cluster, root),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def stay(hosts: str, cluster: str, root: str) -> None:
    """Be entered for as long as whoever started this process lives."""
    discovery = ZooKeeperDiscovery(hosts, cluster, root, session_timeout_s=SESSION_TIMEOUT_S)
    await discovery.start("process", OTHER, _ignore)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await discovery.stop()


def _ignore(_contacts: frozenset[Address]) -> None:
    """The others do not matter here."""


if __name__ == "__main__":
    asyncio.run(stay(*sys.argv[1:]))
