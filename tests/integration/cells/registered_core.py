"""A core that is entered in ZooKeeper, as a process of its own that tests may pause or kill."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from postroad.cells import Domain, Role
from postroad.cells.locations import CoreLocation, ZooKeeperLocations
from postroad.core import Address
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S
from tests.support.source_tree import ROOT


@asynccontextmanager
async def registered_core(
    hosts: str, cluster: str, core: CoreLocation
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this module until the end of the block."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    module = "tests.integration.cells.registered_core"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, hosts, cluster, core.name, str(core)),
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


async def stay(hosts: str, cluster: str, name: str, endpoint: str) -> None:
    """Be entered for as long as whoever started this process lives."""
    locations = ZooKeeperLocations(hosts, cluster, session_timeout_s=SESSION_TIMEOUT_S)
    await locations.start(Domain(name, Role.CORE), (Address.parse(endpoint),), _ignore)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await locations.stop()


def _ignore(_cores: Mapping[str, CoreLocation]) -> None:
    """The others do not matter here."""


if __name__ == "__main__":
    asyncio.run(stay(*sys.argv[1:]))
