"""Server processes that tests start: never outliving the tests, stopped in mid-air at will."""

from __future__ import annotations

import atexit
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Self

import pytest

START_S = 90.0
STOP_S = 60.0
_POLL_S = 0.02
# Below those that systems give to whoever asks for any port: a server takes a while to start.
_PORTS = range(12_000, 32_000)
# One file for all processes of all runs of a user: what one was given is not given to another.
_LAST_PORT = Path(gettempdir(), f"postroad-test-port-{os.getuid()}")


class ServerProcess:
    """A running child of ours, with a guard that ends it when we are gone, however that came."""

    def __init__(
        self, command: Sequence[str], *, guard_signals: Sequence[str] = ("KILL",), **options: Any
    ) -> None:
        """`guard_signals` are sent in this order by the guard; `options` go to Popen."""
        silence = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen(command, **silence | options)
        self._guard = end_with_us(self._process.pid, guard_signals)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """What it ended with; None while it runs."""
        return self._process.poll()

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def pause(self) -> None:
        """Make it hang; when this returns, none of its threads runs."""
        self.send(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End it with a signal and wait until it is gone."""
        # The guard first: the number of a process that ended may be given to another.
        self._guard.kill()
        self._guard.communicate()
        self.send(number)
        self._process.wait(STOP_S)

    def children(self) -> dict[int, str]:
        """The processes it has started, each with its state as in proc(5): `Z` is a dead one."""
        states = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                text = path.read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            # The name in parentheses may hold anything, spaces and parentheses included.
            state, parent, *_ = text.rpartition(")")[2].split()
            if int(parent) == self.pid:
                states[int(path.parent.name)] = state
        return states


class LocalServer(ABC):
    """A server of the loopback interface; it can be paused, killed and started on its data again.

    Args:
        directory: where all of its files go.
        scheme: of its URL.
    """

    def __init__(self, directory: Path, scheme: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self._process: ServerProcess | None = None

    @abstractmethod
    def launch(self) -> ServerProcess:
        """Start its process."""

    def is_ready(self) -> bool:
        """Whether connections are accepted."""
        return is_listening(self.port)

    def last_words(self) -> str:
        """What helps to see why it does not start."""
        return ""

    def start(self) -> None:
        """Start and return when it is ready."""
        process = self._process = self.launch()
        deadline = time.monotonic() + START_S
        name = type(self).__name__
        while not self.is_ready():
            assert process.status is None, f"{name} ended: {process.status}{self.last_words()}"
            assert time.monotonic() < deadline, f"{name} does not start{self.last_words()}"
            time.sleep(_POLL_S)

    def pause(self) -> None:
        """Make it hang: connections stay open and nothing is answered."""
        self.process.pause()

    def resume(self) -> None:
        self.process.resume()

    def kill(self) -> None:
        """End it at once, in whatever state it is."""
        if self._process is not None:
            self._process.stop()
        self._process = None

    @property
    def process(self) -> ServerProcess:
        assert self._process is not None, "start() the server first"
        return self._process

    @classmethod
    @contextmanager
    def running(cls, *arguments: Any) -> Iterator[Self]:
        """A server of a test's own; `arguments` follow the directory."""
        with TemporaryDirectory(prefix=f"{cls.__name__}-") as directory:
            server = cls(Path(directory), *arguments)
            try:
                server.start()
                yield server
            finally:
                server.kill()

    @classmethod
    def until_exit(cls) -> Self:
        """A server that ends with this process."""
        stack = ExitStack()
        server = stack.enter_context(cls.running())
        atexit.register(stack.close)
        return server


def find_server(name: str, package: str) -> str:
    """A program on the PATH, or where Debian has it for root; the test is skipped without."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    program = shutil.which(name, path=path)
    if program is None:
        pytest.skip(f"needs {name}: apt-get install {package}")
    return program


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=2).close()
    except OSError:
        return False
    return True


def send_signal(pid: int, number: signal.Signals) -> None:
    """As os.kill, and nothing where the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A port of the loopback interface that nobody uses now, and no other test gets soon."""
    with open(_LAST_PORT, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        port = int(file.read() or secrets.choice(_PORTS))
        while True:
            port = port + 1 if port + 1 in _PORTS else _PORTS.start
            try:
                socket.create_server(("127.0.0.1", port)).close()
            except OSError:
                continue
            file.truncate(0)
            file.write(b"%d" % port)
            return port


def end_with_us(pid: int, signals: Sequence[str] = ("KILL",)) -> subprocess.Popen[bytes]:
    """Start a guard that sends a process these signals when we are gone, however that came."""
    # Its input ends with us.
    kills = "; ".join(f"kill -{name} {pid}" for name in signals)
    return subprocess.Popen(["sh", "-c", f"cat; {kills}"], stdin=subprocess.PIPE)
