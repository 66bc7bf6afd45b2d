"""A real Redis server on the loopback interface.

Most tests want `fresh_key()` on the server that all tests of a session share; one that stops or
disturbs the server takes one of its own: `redis_server()`.
"""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from pathlib import Path

from tests.support.servers.process import LocalServer, ServerProcess, find_server

_numbers = count(1)


class RedisServer(LocalServer):
    """What was answered is in its file, so that killing it loses nothing."""

    def __init__(self, directory: Path, *more: str) -> None:
        """`more` goes on its command line."""
        super().__init__(directory, "redis")
        self._command = [find_server("redis-server", "redis-server"), "--bind", "127.0.0.1"]
        self._command += ["--port", str(self.port), "--dir", str(directory), "--save", ""]
        self._command += ["--appendonly", "yes", "--appendfsync", "no", *more]

    def launch(self) -> ServerProcess:
        return ServerProcess(self._command)

    def is_ready(self) -> bool:
        """Whether it says something, be it that a password is needed, and not that it loads."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
                connection.sendall(b"PING\r\n")
                answer = connection.recv(100)
        except OSError:
            return False
        return bool(answer) and not answer.startswith(b"-LOADING")


def redis_server(*more: str) -> AbstractContextManager[RedisServer]:
    """A running server of a test's own."""
    return RedisServer.running(*more)


@cache
def shared_redis() -> RedisServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    return RedisServer.until_exit()


def fresh_key() -> str:
    """A key that no other test uses."""
    return f"test-{next(_numbers)}"
