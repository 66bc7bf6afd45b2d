"""A core that is a member of the cluster, as a process of its own that tests may pause."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from postroad.cells import Domain, Role
from postroad.cells.locations import CoreLocation, MembershipLocations
from postroad.core import Address
from tests.support.cluster.nodes import running_node
from tests.support.source_tree import ROOT


@asynccontextmanager
async def core_member(name: str, contact: Address) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run this module until the end of the block."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.cells.core_member", name, str(contact)),
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


async def stay(name: str, contact: str) -> None:
    """Be a member and a core for as long as whoever started this process lives."""
    async with running_node(name, Address.parse(contact)) as node:
        locations = MembershipLocations(node.agent)
        await locations.start(Domain(name, Role.CORE), (node.address,), _ignore)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await locations.stop()


def _ignore(_cores: Mapping[str, CoreLocation]) -> None:
    """The others do not matter here."""


if __name__ == "__main__":
    asyncio.run(stay(*sys.argv[1:]))
