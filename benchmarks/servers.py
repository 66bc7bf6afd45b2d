"""Server processes of contenders: on the loopback interface, ended with the harness."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import contextmanager
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from benchmarks.children import die_with_parent
from benchmarks.harness import BenchmarkFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

# Under strace a RabbitMQ takes several times as long as alone.
START_S = 120.0
POLL_S = 0.02
LAST_WORDS = 500


@contextmanager
def server_process(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    **account: Any,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends, under an account; what it says goes to `log`."""
    with (
        log.open("wb") as output,
        # The hook runs between fork and exec and only makes system calls, so it is safe here.
        subprocess.Popen[bytes](
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=partial(die_with_parent, os.getpid()),
            **account,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def await_start(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    """Return when the server is ready."""
    deadline = monotonic() + START_S
    while not is_ready():
        if process.poll() is not None:
            raise BenchmarkFailed(f"a server ended with {process.returncode}: {last_words(log)}")
        if monotonic() > deadline:
            raise BenchmarkFailed(f"a server did not start in {START_S:g} s: {last_words(log)}")
        sleep(POLL_S)


def last_words(log: Path) -> str:
    """The end of what a process has said."""
    return log.read_text(errors="replace").strip()[-LAST_WORDS:]


def is_listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Different ports that nobody uses now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
