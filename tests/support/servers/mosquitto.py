"""A real MQTT server on the loopback interface.

Tests share one unless they stop or disturb it; those take one of their own: `mosquitto_server()`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from tests.support.servers.process import LocalServer, ServerProcess, find_server

# As root it would become another user, who may not read the directories of ours.
_CONFIG = """\
listener {port} 127.0.0.1
user root
persistence false
max_queued_messages 0
set_tcp_nodelay true
{more}
"""


class MosquittoServer(LocalServer):
    """It keeps nothing."""

    def __init__(self, directory: Path, more: str = "allow_anonymous true") -> None:
        """`more` goes into its configuration."""
        super().__init__(directory, "mqtt")
        self._binary = find_server("mosquitto", "mosquitto")
        self._config = directory / "mosquitto.conf"
        self._config.write_text(_CONFIG.format(port=self.port, more=more))

    def launch(self) -> ServerProcess:
        return ServerProcess([self._binary, "-c", str(self._config)])


def mosquitto_server(*more: str) -> AbstractContextManager[MosquittoServer]:
    """A running server of a test's own; without more, everybody is let in."""
    return MosquittoServer.running(*more)


@cache
def shared_mosquitto() -> MosquittoServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    return MosquittoServer.until_exit()
