"""A real Redis server on the loopback interface.

Most tests want `fresh_key()` on the server that all tests of a session share; one that stops or
disturbs the server takes one of its own: `redis_server()`.
"""

from __future__ import annotations

import atexit
import shutil
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.servers.process import ServerProcess, free_port

START_S = 90.0
POLL_S = 0.02

_numbers = count(1)


class RedisServer:
    """A server that can be paused, killed and started again on its data."""

    def __init__(self, directory: Path, more: Sequence[str] = ()) -> None:
        """`more` goes on its command line."""
        self._binary = find_binary()
        self._directory = directory
        self._more = more
        self._process: ServerProcess | None = None
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and return when it answers."""
        options = {
            "bind": "127.0.0.1",
            "port": self.port,
            "dir": self._directory,
            "save": "",
            # What was answered is in the file, so that killing it loses nothing.
            "appendonly": "yes",
            "appendfsync": "no",
        }
        command = [self._binary]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        process = self._process = ServerProcess([*command, *self._more])
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert process.status is None, f"the Redis server ended: {process.status}"
            assert time.monotonic() < deadline, "the Redis server does not start"
            time.sleep(POLL_S)

    def _answers(self) -> bool:
        """Whether it says something, be it that a password is needed, and not that it loads."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
        except OSError:
            return False
        return bool(answer) and not answer.startswith(b"-LOADING")

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
def redis_server(*more: str) -> Iterator[RedisServer]:
    """A running server of a test's own."""
    with TemporaryDirectory(prefix="redis-") as directory:
        server = RedisServer(Path(directory), more)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@cache
def shared_redis() -> RedisServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    stack = ExitStack()
    server = stack.enter_context(redis_server())
    atexit.register(stack.close)
    return server


def fresh_key() -> str:
    """A key that no other test uses."""
    return f"test-{next(_numbers)}"


def find_binary() -> str:
    """A server on the PATH; the test is skipped without."""
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("needs redis-server: apt-get install redis-server")
    return found
