"""Hosts of a network of their own, made of Linux namespaces: addresses, names, cut cables.

The switch is in a namespace too: nothing is added to the network of this machine, parallel runs
have the same addresses and never meet, and the kernel removes everything with the last process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.servers.process import ServerProcess, find_server, send_signal

START_S = 30.0
_POLL_S = 0.01
_SUBNET = "10.89.7"
_DEVICE = "eth0"
_HOLD = "sleep infinity"
# Its input ends with us. It is on the host itself: the number of a namespace whose last process has
# ended may be given to another. What was just started may start another, so it looks repeatedly.
_GUARD = """
read nothing
own=$(readlink /proc/$$/ns/net)
for round in 1 2 3; do
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        if [ "$pid" != $$ ] && [ "$(readlink "$process/ns/net")" = "$own" ]; then
            kill -KILL "$pid"
        fi
    done
done 2> /dev/null
"""


class Host:
    """A namespace with one address, a name that nobody can resolve, and no way to elsewhere.

    Args:
        name: what `hostname` says there.
        address: of its only device; empty for the switch.
    """

    def __init__(self, name: str, address: str = "") -> None:
        self.name = name
        self.address = address
        script = f"hostname {name} && ip link set lo up && exec {_HOLD}"
        self._holder = ServerProcess(["unshare", "--net", "--uts", "sh", "-c", script])
        self._own = _namespace_of(os.getpid())
        self._guard: subprocess.Popen[bytes] | None = None
        deadline = time.monotonic() + START_S
        # It becomes that when all before is done.
        while command_of(self.pid).strip() != _HOLD:
            assert self._holder.status is None, f"host {name} does not start"
            assert time.monotonic() < deadline, f"host {name} does not start"
            time.sleep(_POLL_S)
        # Whatever runs there ends with us, also if we are killed.
        self._guard = subprocess.Popen(self.inside(["sh", "-c", _GUARD]), stdin=subprocess.PIPE)

    @property
    def pid(self) -> int:
        """The process that holds the namespaces."""
        return self._holder.pid

    def inside(self, command: Sequence[str]) -> list[str]:
        """A command line that becomes this command on the host."""
        return ["nsenter", "--target", str(self.pid), "--net", "--uts", "--", *command]

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end; `options` go to subprocess.run."""
        wanted: dict[str, Any] = {"capture_output": True, "text": True, "check": False} | options
        return subprocess.run(self.inside(command), **wanted)

    def spawn(self, command: Sequence[str], **options: Any) -> ServerProcess:
        """Start a process there; `options` go to Popen."""
        return ServerProcess(self.inside(command), **options)

    def processes(self, part: str = "") -> list[int]:
        """The processes of the host whose command line has this in it."""
        namespace = _namespace_of(self.pid)
        assert namespace and namespace != self._own, f"host {self.name} has no namespace"
        ours = {self.pid} if self._guard is None else {self.pid, self._guard.pid}
        pids = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - ours
        return [pid for pid in pids if _namespace_of(pid) == namespace and part in command_of(pid)]

    def send(self, number: signal.Signals, part: str = "") -> None:
        """Send a signal to such processes."""
        for pid in self.processes(part):
            send_signal(pid, number)

    def close(self) -> None:
        """End everything there; the namespaces go with it."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        if self._holder.status is None:
            self.send(signal.SIGKILL)
        self._holder.stop()


class Network:
    """A switch and the hosts on it, by their names."""

    def __init__(self) -> None:
        self.hosts: dict[str, Host] = {}
        self._switch = Host("switch")
        try:
            self._configure(self._switch, "ip link add bridge type bridge")
            self._configure(self._switch, "ip link set bridge up")
        except BaseException:
            self.close()
            raise

    def add(self, name: str) -> Host:
        """Connect another host."""
        host = Host(name, f"{_SUBNET}.{len(self.hosts) + 1}")
        self.hosts[name] = host
        cable = self._cable(name)
        link = f"ip link add {cable} type veth peer name {_DEVICE} netns {host.pid}"
        self._configure(self._switch, link)
        self._configure(self._switch, f"ip link set {cable} master bridge up")
        self._configure(host, f"ip addr add {host.address}/24 dev {_DEVICE}")
        self._configure(host, f"ip link set {_DEVICE} up")
        return host

    def cut(self, name: str) -> None:
        """Unplug a host: what is sent to it or by it is lost, and nobody is told."""
        # At the switch: a host whose own device is down knows at once.
        self._configure(self._switch, f"ip link set {self._cable(name)} nomaster")

    def mend(self, name: str) -> None:
        """Plug it in again."""
        self._configure(self._switch, f"ip link set {self._cable(name)} master bridge")

    def list_processes(self) -> list[str]:
        """The command lines of all that runs on the hosts."""
        return [command_of(pid) for host in self.hosts.values() for pid in host.processes()]

    def close(self) -> None:
        """End all hosts."""
        for host in [*self.hosts.values(), self._switch]:
            host.close()

    def _cable(self, name: str) -> str:
        return f"to{[*self.hosts].index(name)}"

    def _configure(self, host: Host, command: str) -> None:
        done = host.run(command.split())
        assert done.returncode == 0, f"{host.name}: {command}: {done.stderr.strip()}"


@contextmanager
def network_of(*names: str) -> Iterator[Network]:
    """A network of such hosts; the test is skipped where none can be made."""
    _require_namespaces()
    network = Network()
    try:
        for name in names:
            network.add(name)
        yield network
    finally:
        network.close()


def _require_namespaces() -> None:
    find_server("ip", "iproute2")
    for name in ("unshare", "nsenter"):
        find_server(name, "util-linux")
    trial = "ip link add trial0 type bridge && ip link add trial1 type veth peer name trial2"
    command = ["unshare", "--net", "--uts", "sh", "-c", trial]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"needs network namespaces, as root on Linux: {tried.stderr.strip()}")


def _namespace_of(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return ""


def command_of(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""
