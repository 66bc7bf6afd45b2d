"""Processes for tests, forked from one that has imported everything: a start costs milliseconds.

    process = await spawn("tests.chaos.flow_node", "payer", directory)
    process.stdin.write(b"...")
    await process.stdout.readline()
    process.kill()
    await process.wait()  # -9
    process.close()

The module must have a function `main()` without parameters, which reads `sys.argv`. Each process
has its own pipes, environment, working directory and signal handlers, and ends as an interpreter
does. What it shares with others is what modules did when they were imported, and the seed of
hashes; with `is_cold=True` it shares nothing, and takes half a second of a core.

Every pytest process has one parent: `python -m tests.support.warm_parent`, with neither threads nor
an event loop. When the pytest process is gone, however that came, the parent kills its children.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from tests.support.deadlines import DEADLINE_S
from tests.support.source_tree import ROOT

LINE_BYTES_MAX = 1 << 24
_REQUEST_BYTES_MAX = 1 << 20
# What nodes import only when they need it, and then at each start.
_LAZY = ("concurrent.futures.thread", "encodings.idna", "encodings.utf_16_be", "psycopg", "uvloop")


class Process(asyncio.Protocol):
    """A child of the warm parent, as a test sees it: like `asyncio.subprocess.Process`.

    Attributes:
        pid: its number.
        stdin: where to write what it reads.
        stdout: what it prints.
    """

    stdin: asyncio.WriteTransport

    def __init__(self) -> None:
        self.pid = 0
        self.stdout = asyncio.StreamReader(LINE_BYTES_MAX)
        self._transports: list[asyncio.BaseTransport] = []
        self._news = b""
        self._is_there = asyncio.get_running_loop().create_future()
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def _connect(self, stdin: int, stdout: int, status: int) -> None:
        loop = asyncio.get_running_loop()
        reading, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self.stdout), os.fdopen(stdout, "rb", 0)
        )
        watching, _ = await loop.connect_read_pipe(lambda: self, os.fdopen(status, "rb", 0))
        self.stdin, _ = await loop.connect_write_pipe(
            asyncio.BaseProtocol, os.fdopen(stdin, "wb", 0)
        )
        self._transports = [reading, watching, self.stdin]
        await asyncio.wait_for(self._is_there, DEADLINE_S)

    def data_received(self, data: bytes) -> None:
        """The parent tells its number, and later what it ended with."""
        self._news += data
        pid, *status = self._news.splitlines()
        if not self._is_there.done():
            self.pid = int(pid)
            self._is_there.set_result(None)
        if status:
            self._ended.set_result(int(status[0]))

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self._is_there, self._ended):
            if not future.done():
                future.cancel("the warm parent is gone")

    @property
    def returncode(self) -> int | None:
        """What it ended with: negative if a signal killed it, None while it runs."""
        is_known = self._ended.done() and not self._ended.cancelled()
        return self._ended.result() if is_known else None

    async def wait(self) -> int:
        """Wait until it has ended."""
        return await asyncio.shield(self._ended)

    def send_signal(self, number: signal.Signals) -> None:
        """In vain if it has ended."""
        if not self._ended.done():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Let go of the pipes."""
        for transport in self._transports:
            transport.close()


async def spawn(
    module: str,
    *args: object,
    env: Mapping[str, str] | None = None,
    cwd: os.PathLike[str] = ROOT,
    is_cold: bool = False,
) -> Process:
    """Start `module.main()` in a process of its own; `env` is added to this one's environment."""
    (stdin, to_stdin), (from_stdout, stdout), (from_parent, status) = (os.pipe() for _ in range(3))
    request = {
        "module": module,
        "args": [str(arg) for arg in args],
        "env": {**os.environ, **(env or {})},
        "cwd": os.fspath(cwd),
        "is_cold": is_cold,
    }
    try:
        socket.send_fds(_warm_parent(), [json.dumps(request).encode()], [stdin, stdout, 2, status])
    finally:
        for file in (stdin, stdout, status):
            os.close(file)
    process = Process()
    await process._connect(to_stdin, from_stdout, from_parent)
    return process


@cache
def _warm_parent() -> socket.socket:
    """Started when first asked for, and ended with this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    with theirs:
        parent = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(_end, ours, parent)
    return ours


def _end(control: socket.socket, parent: subprocess.Popen[bytes]) -> None:
    control.close()
    parent.wait(DEADLINE_S)


# In the parent.


class _Parent:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        # By a file that can be read when a child has ended: its number, and where to tell of it.
        self._children: dict[int, tuple[int, int]] = {}

    def serve(self) -> dict[str, Any]:
        """Fork children until the tests are gone; returns only in a child: what it has to do."""
        while True:
            control = self._control.fileno()
            readable, _, _ = select.select([control, *self._children], [], [])
            for file in readable:
                if file == control:
                    text, files, _, _ = socket.recv_fds(self._control, _REQUEST_BYTES_MAX, 4)
                    if not text:
                        self._end()
                    request: dict[str, Any] = json.loads(text)
                    if self._fork(request["module"], files):
                        return request
                else:
                    self._reap(file)

    def _fork(self, module: str, files: list[int]) -> bool:
        """Whether this is the child."""
        _import_quietly(module)
        assert threading.active_count() == 1, f"{module} starts threads when it is imported"
        *standard, status = files
        # So that no collection of a child touches, and copies, the memory they share.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            for number, file in enumerate(standard):
                os.dup2(file, number)
            for file in (*files, self._control.detach(), *self._files()):
                os.close(file)
            return True
        for file in standard:
            os.close(file)
        os.write(status, b"%d\n" % pid)
        self._children[os.pidfd_open(pid)] = (pid, status)
        return False

    def _files(self) -> list[int]:
        return [*self._children, *(status for _, status in self._children.values())]

    def _reap(self, file: int) -> None:
        pid, status = self._children.pop(file)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        try:
            os.write(status, b"%d\n" % code)
        except BrokenPipeError:
            pass  # Nobody wants to know any more.
        os.close(file)
        os.close(status)

    def _end(self) -> None:
        for pid, _ in self._children.values():
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def _import_quietly(module: str) -> None:
    """Import it; if that fails, so it does in the child, which says why."""
    try:
        import_module(module)
    except Exception:
        return


def _become(module: str, args: list[str], env: dict[str, str], cwd: str, is_cold: bool) -> None:
    """Be the process that was asked for."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    path = os.environ["PYTHONPATH"]
    os.environ.clear()
    os.environ.update(env | {"PYTHONPATH": path})
    if is_cold:
        os.execv(sys.executable, [sys.executable, "-m", module, *args])
    sys.argv = [module, *args]
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)  # type: ignore[misc]  # They are new.
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, closefd=False)  # type: ignore[misc]
    import_module(module).main()


if __name__ == "__main__":
    # Ctrl-C reaches a whole terminal; this process ends when the tests do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for _name in _LAZY:
        _import_quietly(_name)
    _become(**_Parent(socket.socket(fileno=int(sys.argv[1]))).serve())
