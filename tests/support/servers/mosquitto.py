"""A real MQTT server on the loopback interface.

Tests share one unless they stop or disturb it; those take one of their own: `mosquitto_server()`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.servers.process import ServerProcess, free_port

START_S = 90.0
POLL_S = 0.02

# As root it would become another user, who may not read the directories of ours.
_CONFIG = """\
listener {port} 127.0.0.1
user root
persistence false
max_queued_messages 0
set_tcp_nodelay true
{more}
"""


class MosquittoServer:
    """A server that can be paused, killed and started again."""

    def __init__(self, directory: Path, more: str = "allow_anonymous true") -> None:
        """`more` goes into its configuration."""
        self._binary = find_binary()
        self._config = directory / "mosquitto.conf"
        self._process: ServerProcess | None = None
        self.port = free_port()
        self.url = f"mqtt://127.0.0.1:{self.port}"
        self._config.write_text(_CONFIG.format(port=self.port, more=more))

    def start(self) -> None:
        """Start and return when connections are accepted."""
        process = self._process = ServerProcess([self._binary, "-c", str(self._config)])
        deadline = time.monotonic() + START_S
        while not self._accepts():
            assert process.status is None, f"the MQTT server ended: {process.status}"
            assert time.monotonic() < deadline, "the MQTT server does not start"
            time.sleep(POLL_S)

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=2).close()
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
        assert self._process is not None, "start() the server first"
        return self._process


@contextmanager
def mosquitto_server(more: str = "allow_anonymous true") -> Iterator[MosquittoServer]:
    """A running server of a test's own."""
    with TemporaryDirectory(prefix="mosquitto-") as directory:
        server = MosquittoServer(Path(directory), more)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@cache
def shared_mosquitto() -> MosquittoServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    stack = ExitStack()
    server = stack.enter_context(mosquitto_server())
    atexit.register(stack.close)
    return server


def find_binary() -> str:
    """A server on the PATH; the test is skipped without."""
    # Debian has it where only root looks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    found = shutil.which("mosquitto", path=path)
    if found is None:
        pytest.skip("needs mosquitto: apt-get install mosquitto")
    return found
