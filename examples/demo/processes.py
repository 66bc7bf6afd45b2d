"""Child processes as the story sees them: started, told to stop, killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from .records import Command, NodeConfig, Ready, Resting, Told

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 60.0
# What a killed node has started ends by itself, within this time.
FOLLOW_TIMEOUT_S = 60.0
# Where the package `examples` is found, wherever the demo was started from.
REPOSITORY = Path(__file__).resolve().parents[2]

OnReport = Callable[[Any], None]
"""Takes the reports that nodes of its kind make."""


class DemoFailed(Exception):
    """The demo cannot go on; the text says why."""


class NodeProcess:
    """A node in a process of its own."""

    def __init__(
        self,
        config: NodeConfig,
        process: asyncio.subprocess.Process,
        log: Path,
        on_report: OnReport,
    ) -> None:
        self.config = config
        self.pid = process.pid
        self._process = process
        self._log = log
        self._on_report = on_report
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._is_resting = False
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, config: NodeConfig, log: Path, on_report: OnReport) -> NodeProcess:
        """Start the process; it logs to the given file. `wait_ready` tells when it listens."""
        with log.open("ab") as errors, _interrupts_held():
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "examples.demo.node",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                cwd=REPOSITORY,
                env={**os.environ, "TMPDIR": str(log.parent)},
                # With whatever it starts itself.
                process_group=0,
            )
        node = cls(config, process, log, on_report)
        node.tell(config)
        return node

    async def wait_ready(self) -> str:
        """The address of the node, once it listens."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.wait((self._ready, self._reading), return_when="FIRST_COMPLETED")
        except TimeoutError:
            raise DemoFailed(f"{self.config.name} did not start in {START_TIMEOUT_S:g} s") from None
        if not self._ready.done():
            raise await self.explain_end()
        return self._ready.result().address

    @property
    def is_resting(self) -> bool:
        """Whether it pays, posts or sends no more."""
        return self._is_resting

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, or has at least closed its output."""
        return self._reading.done()

    async def explain_end(self) -> DemoFailed:
        """What to raise when the process ended unexpectedly; passes on what its reader raised."""
        await self._reading
        status = await self._process.wait()
        return DemoFailed(f"{self.config.name} ended with status {status}{self._log_tail()}")

    async def stop(self) -> None:
        """Let it finish what it is doing."""
        self.tell(Command.STOP)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.wait((self._reading,))
                status = await self._process.wait()
        except TimeoutError:
            raise DemoFailed(f"{self.config.name} did not stop in {STOP_TIMEOUT_S:g} s") from None
        if status != 0:
            raise await self.explain_end()

    async def kill(self) -> None:
        """End it without a warning, as a crash would, and wait for all that it has started.

        A JVM shares its output, which ends with the last of them.
        """
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        _, left = await asyncio.wait((self._reading,), timeout=FOLLOW_TIMEOUT_S)
        if left:
            raise DemoFailed(f"what {self.config.name} had started outlived it")

    async def clear(self) -> None:
        """End it and all that it has started, at once."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self._process.wait()
        await asyncio.wait((self._reading,))

    def tell(self, told: NodeConfig | Command) -> None:
        """Send it a line; in vain if it has ended."""
        if self._process.stdin is not None:
            self._process.stdin.write(msgspec.json.encode(told) + b"\n")

    async def _read(self) -> None:
        decode = msgspec.json.Decoder(Told).decode
        while self._process.stdout is not None and (line := await self._process.stdout.readline()):
            if not line.endswith(b"\n"):
                return  # Killed while it wrote.
            if not line.startswith(b"{"):
                continue  # A JVM's own words, which are for nobody here.
            told = decode(line)
            match told:
                case Resting():
                    self._is_resting = True
                case Ready():
                    self._ready.set_result(told)
                case _:
                    self._on_report(told)

    def _log_tail(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        return "".join(f"\n  {line}" for line in lines)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Children started within never see Ctrl-C: the parent alone decides when they end.

    A blocked signal stays blocked in a new program, so there is no moment at which it could
    strike; one that arrives here meanwhile is delivered to the parent afterwards.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
