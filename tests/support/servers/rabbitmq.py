"""A real RabbitMQ server on the loopback interface, with names, ports and data of its own.

It takes seconds to start, so tests share one wherever they can, also those that disturb it: they
take `revived_rabbitmq()`, which runs again whatever was done to it before.
"""

from __future__ import annotations

import atexit
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks.rabbitmq import epmd_command, find_rabbitmq, rabbitmq_environment, rabbitmq_url
from tests.support.servers.process import ServerProcess, free_port

START_S = 90.0
POLL_S = 0.05


class RabbitServer:
    """A server that can be paused, killed and started again on its data."""

    def __init__(self, directory: Path) -> None:
        self._binary = find_binary()
        self._log = directory / "server.log"
        self._epmd_port = free_port()
        self._names: ServerProcess | None = None
        self._process: ServerProcess | None = None
        self._is_paused = False
        self.port = free_port()
        self.url = rabbitmq_url(self.port)
        self._environment = rabbitmq_environment(
            directory, port=self.port, epmd_port=self._epmd_port, cluster_port=free_port()
        )

    def start(self) -> None:
        """Start and return when connections are accepted."""
        if self._names is None:
            self._names = ServerProcess(epmd_command(self._epmd_port), env=self._environment)
            self._await(self._names, self._epmd_port)
        with self._log.open("ab") as log:
            self._process = ServerProcess([self._binary], env=self._environment, stdout=log)
        self._await(self._process, self.port)

    def _await(self, process: ServerProcess, port: int) -> None:
        deadline = time.monotonic() + START_S
        while not _is_listening(port):
            assert process.status is None, f"RabbitMQ ended: {process.status}{self._last_words()}"
            assert time.monotonic() < deadline, f"RabbitMQ does not start:{self._last_words()}"
            time.sleep(POLL_S)

    def pause(self) -> None:
        """Make it hang: connections stay open and nothing is answered."""
        self._running().pause()
        self._is_paused = True

    def resume(self) -> None:
        self._running().resume()
        self._is_paused = False

    def kill(self) -> None:
        """End it at once, in whatever state it is."""
        if self._process is not None:
            self._process.stop()
        self._process = None
        self._is_paused = False

    def revive(self) -> None:
        """Have it running, whatever was done to it."""
        if self._process is None:
            self.start()
        elif self._is_paused:
            self.resume()

    def close(self) -> None:
        """End all its processes."""
        self.kill()
        if self._names is not None:
            self._names.stop()
        self._names = None

    def _running(self) -> ServerProcess:
        assert self._process is not None, "start() the server first"
        return self._process

    def _last_words(self) -> str:
        words = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n" + words[-2_000:]


@contextmanager
def rabbitmq_server() -> Iterator[RabbitServer]:
    """A running server of a test's own."""
    with TemporaryDirectory(prefix="rabbitmq-") as directory:
        server = RabbitServer(Path(directory))
        try:
            server.start()
            yield server
        finally:
            server.close()


@cache
def shared_rabbitmq() -> RabbitServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    return _start_for_all()


def revived_rabbitmq() -> RabbitServer:
    """The server of those that disturb it, running."""
    server = _disturbed()
    server.revive()
    return server


@cache
def _disturbed() -> RabbitServer:
    return _start_for_all()


def _start_for_all() -> RabbitServer:
    stack = ExitStack()
    server = stack.enter_context(rabbitmq_server())
    atexit.register(stack.close)
    return server


def find_binary() -> str:
    """The program that starts a server; the test is skipped without."""
    found = find_rabbitmq()
    if found is None:
        pytest.skip("needs rabbitmq-server: apt-get install rabbitmq-server")
    return found


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True
