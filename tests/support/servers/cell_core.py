"""A core of cells in a process of its own, which can be paused, killed and started again.

python -m tests.support.servers.cell_core 127.0.0.1:26502 C1
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from postroad import run
from postroad.cells import CellDomain, Role
from postroad.net import MessagingService
from tests.support.servers.process import ServerProcess, free_port

CLUSTER = "services"
NAME = "C1"
START_S = 90.0
POLL_S = 0.02

_ROOT = Path(__file__).parents[3]


class CoreServer:
    """The core."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"cells://{self.address}/{NAME}"
        self._process: ServerProcess | None = None

    def start(self) -> None:
        """Start and return when connections are accepted."""
        command = [sys.executable, "-m", "tests.support.servers.cell_core", self.address, NAME]
        process = self._process = ServerProcess(command, cwd=_ROOT)
        deadline = time.monotonic() + START_S
        while not self._is_listening():
            assert process.status is None, f"the core ended: {process.status}"
            assert time.monotonic() < deadline, "the core does not start"
            time.sleep(POLL_S)

    def _is_listening(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            return False
        return True

    def pause(self) -> None:
        """Make it hang: connections stay open and nothing is answered."""
        self._running().pause()

    def resume(self) -> None:
        self._running().resume()

    def kill(self) -> None:
        """End it at once, in whatever state it is."""
        if self._process is not None:
            self._process.stop()
        self._process = None

    def _running(self) -> ServerProcess:
        assert self._process is not None, "start() the core first"
        return self._process


@contextmanager
def core_server() -> Iterator[CoreServer]:
    """A running core of a test's own."""
    server = CoreServer()
    try:
        server.start()
        yield server
    finally:
        server.kill()


async def main(address: str, name: str) -> None:
    """Be a core until killed."""
    async with (
        MessagingService(CLUSTER, name, address) as service,
        CellDomain(service, role=Role.CORE),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
