"""Server processes that tests start: never outliving the tests, stopped in mid-air at will."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

STOP_S = 60.0
# Below those that systems give to whoever asks for any port: a server takes a while to start.
_PORTS = range(12_000, 32_000)


class ServerProcess:
    """A running child of ours, with a guard that ends it when we are gone, however that came."""

    def __init__(
        self, command: Sequence[str], *, guard_signals: Sequence[str] = ("KILL",), **options: Any
    ) -> None:
        """`guard_signals` are sent in this order by the guard; `options` go to Popen."""
        silence = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self._process = subprocess.Popen(command, **silence | options)
        self._guard = _end_with_us(self._process.pid, guard_signals)

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


def send_signal(pid: int, number: signal.Signals) -> None:
    """As os.kill, and nothing where the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A port of the loopback interface that nobody uses now."""
    while True:
        port = secrets.choice(_PORTS)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port


def _end_with_us(pid: int, signals: Sequence[str]) -> subprocess.Popen[bytes]:
    # Its input ends with us.
    kills = "; ".join(f"kill -{name} {pid}" for name in signals)
    return subprocess.Popen(["sh", "-c", f"cat; {kills}"], stdin=subprocess.PIPE)
