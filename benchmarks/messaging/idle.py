"""What an accepted connection that says nothing costs the server in resident memory.

The clients are raw sockets that say hello as a node does and then stay silent, so that one process
can hold thousands of them.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.children import running
from benchmarks.harness import BenchmarkFailed, Comparison, Contender, Section
from benchmarks.messaging.job import Job
from benchmarks.messaging.peers import bare, ours

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.children import Announce
    from benchmarks.harness import Settings
    from benchmarks.messaging.processes import Peer

KIBIBYTE = 1024
BUDGET_KIB = 20.0
SPARE_FILES = 200
SETTLE_S = 1.0
ANSWER_TIMEOUT_S = 10.0


def section(settings: Settings) -> Section:
    """Kibibytes of server memory per idle connection."""
    count = min(settings.idle_connections, _raise_file_limit() - SPARE_FILES)
    job = Job("rate", settings.loop, settings.seconds, settings.warmup_s, settings.scratch)
    case = f"{count:,} idle connections, server memory each"
    postroad, floor = "postroad", "bare Protocol, no handshake"
    return Section(
        title=case,
        unit="KiB",
        contenders=[
            Contender(postroad, partial(_sample, ours, job, ours.greeting, count)),
            Contender(floor, partial(_sample, bare, job, bytes, count)),
        ],
        comparisons=[
            Comparison(case, postroad, "budget", goal=1.0, at_most=True, budget=BUDGET_KIB),
            Comparison(case, postroad, floor),
        ],
        rounds_max=3,
    )


def hold(announce: Announce, address: str, greeting: Callable[[], bytes], count: int) -> None:
    """Open the connections, see that they stay open, say so and keep them."""
    host, port = address.split(":")
    opening = greeting()
    connections = [_open((host, int(port)), opening) for _ in range(count)]
    time.sleep(SETTLE_S)
    announce(sum(map(_is_open, connections)))
    time.sleep(ANSWER_TIMEOUT_S)


def _sample(peer: Peer, job: Job, greeting: Callable[[], bytes], count: int) -> float:
    with running(peer.serve, job) as server:
        address = server.receive()
        before = _resident_bytes(server.pid)
        with running(hold, address, greeting, count) as clients:
            still_open = clients.receive(120.0)
            growth = _resident_bytes(server.pid) - before
            still_open = min(still_open, _open_files(server.pid))
    if still_open < count:
        raise BenchmarkFailed(f"only {still_open:,} of {count:,} connections stayed open")
    return growth / KIBIBYTE / count


def _open(address: tuple[str, int], greeting: bytes) -> socket.socket:
    connection = socket.create_connection(address, timeout=ANSWER_TIMEOUT_S)
    if greeting:
        connection.sendall(greeting)
        if not connection.recv(KIBIBYTE):
            raise ConnectionError("the server refused the greeting")
    return connection


def _is_open(connection: socket.socket) -> bool:
    """Silent or with data to read; an end of stream counts as closed."""
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except OSError:
        return False


def _resident_bytes(pid: int | None) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def _open_files(pid: int | None) -> int:
    """At least the connections it has accepted; those in the kernel's backlog do not count."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def _raise_file_limit() -> int:
    """Allow this process and its children as many open files as the system lets us."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
