"""A core of cells in a process of its own, which can be paused, killed and started again.

python -m tests.support.servers.cell_core 127.0.0.1:26502 C1
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from postroad import run
from postroad.cells import CellDomain, Role
from postroad.net import MessagingService
from tests.support.servers.process import LocalServer, ServerProcess
from tests.support.source_tree import ROOT

CLUSTER = "services"
NAME = "C1"


class CoreServer(LocalServer):
    """The core."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "cells")
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"cells://{self.address}/{NAME}"

    def launch(self) -> ServerProcess:
        command = [sys.executable, "-m", "tests.support.servers.cell_core", self.address, NAME]
        return ServerProcess(command, cwd=ROOT)


def core_server() -> AbstractContextManager[CoreServer]:
    """A running core of a test's own."""
    return CoreServer.running()


async def main(address: str, name: str) -> None:
    """Be a core until killed."""
    async with (
        MessagingService(CLUSTER, name, address) as service,
        CellDomain(service, role=Role.CORE),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
