"""A real RabbitMQ server on the loopback interface, with names, ports and data of its own.

It takes seconds to start. So there is one for all tests, also for those that disturb it: it runs
again for the next. Most of these only close the `Gate` in front of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Self

import pytest

from benchmarks.rabbitmq import epmd_command, find_rabbitmq, rabbitmq_environment, rabbitmq_url
from tests.support.servers.process import LocalServer, ServerProcess, free_port, is_listening


class RabbitServer(LocalServer):
    """The server, and the process that tells names of Erlang nodes."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "amqp")
        self._binary = find_binary()
        self._log = directory / "server.log"
        self._names: ServerProcess | None = None
        self._epmd_port = free_port()
        self.url = rabbitmq_url(self.port)
        self._environment = rabbitmq_environment(
            directory, port=self.port, epmd_port=self._epmd_port, cluster_port=free_port()
        )

    def launch(self) -> ServerProcess:
        if self._names is None:
            self._names = ServerProcess(epmd_command(self._epmd_port), env=self._environment)
            while not is_listening(self._epmd_port):
                assert self._names.status is None, f"epmd ended: {self._names.status}"
        with self._log.open("ab") as log:
            return ServerProcess([self._binary], env=self._environment, stdout=log)

    def last_words(self) -> str:
        return "\n" + self._log.read_text(errors="replace")[-2_000:]

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        with super().running() as server:
            try:
                yield server
            finally:
                if server._names is not None:
                    server._names.stop()

    def revive(self) -> Self:
        """Have it running, whatever was done to it."""
        if self._process is None:
            self.start()
        self.resume()
        return self


def shared_rabbitmq() -> RabbitServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    return _started().revive()


@cache
def _started() -> RabbitServer:
    return RabbitServer.until_exit()


def find_binary() -> str:
    """The program that starts a server; the test is skipped without."""
    program = find_rabbitmq()
    if program is None:
        pytest.skip("needs rabbitmq-server: apt-get install rabbitmq-server")
    return program
