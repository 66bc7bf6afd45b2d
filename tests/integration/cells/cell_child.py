"""A satellite as a process of its own, which tests may pause: `python -m … NAME CORE ADDRESS`.

Its cell `echo` answers, and consumes `work`. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.cells import CellDomain, Role, StaticLocations
from postroad.core import Address
from postroad.net import MessagingService
from tests.support.cells.nodes import CLUSTER, LIMITS, QUICK
from tests.support.source_tree import ROOT


@asynccontextmanager
async def child_domain(
    name: str, core: str, address: Address
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a satellite of a core until the end of the block."""
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.cells.cell_child", name, core, str(address)),
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


async def stay(name: str, core: str, address: str) -> None:
    """Be a domain for as long as whoever started this process lives."""
    locations = StaticLocations({core: [address]})
    async with (
        MessagingService(CLUSTER, name, limits=LIMITS) as service,
        CellDomain(service, role=Role.SATELLITE, locations=locations, config=QUICK) as domain,
    ):
        domain.add_function("echo", lambda message: message.payload, consume=["work"])
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(stay(*sys.argv[1:]))
