"""The program of a child process: one node, which answers, and calls another if told to.

It is started by `processes.py`, is configured by the first line of its input and ends when that
input ends, so it never outlives the process that started it, however that one ended.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import sys
from pathlib import Path

import msgspec

from postroad import Limits, Message, MessagingService, PostroadError, TlsConfig, run

from .records import Command, NodeConfig, Ready, Told
from .traffic import SUBJECT, Traffic, mirror

CLUSTER = "demo"
REPORT_EVERY_S = 0.2
# Long enough to see that callers back off, short enough not to prolong the outage.
LIMITS = Limits(backoff_max_s=0.25)


class Tally:
    """A counter in a mapped file: what was counted stays counted when the process is killed."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._count = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")

    @staticmethod
    def create(path: Path) -> None:
        """Make the file of a new tally."""
        path.write_bytes(bytes(8))

    @staticmethod
    def read(path: Path) -> int:
        """The count, also while or after a process adds to it."""
        return int.from_bytes(path.read_bytes(), sys.byteorder)

    def add(self) -> None:
        """Count one."""
        self._count[0] += 1


def main() -> int:
    """Run the node; its log goes to standard error."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    try:
        run(_main())
    except PostroadError as error:
        logging.getLogger(__name__).error("%s", error)
        return 1
    return 0


class Orders:
    """Reads what the process is told, in the background, for as long as it lives."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None]

    @classmethod
    async def open(cls) -> Orders:
        """Read from standard input."""
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        return cls(reader)

    async def read_config(self) -> NodeConfig:
        """The first line; from then on the end of the input ends the process."""
        config = msgspec.json.decode(await self._read_line(), type=NodeConfig)
        self._task = asyncio.create_task(self._read_commands())
        return config

    async def wait_for_stop(self) -> None:
        """Return when told to stop."""
        await self._stop.wait()

    async def _read_commands(self) -> None:
        while True:
            Command(msgspec.json.decode(await self._read_line()))
            self._stop.set()

    async def _read_line(self) -> bytes:
        line = await self._reader.readline()
        if not line:
            # Nobody is left to report to, so nothing is worth a graceful end.
            os._exit(1)
        return line


async def _main() -> None:
    orders = await Orders.open()
    config = await orders.read_config()
    tls = TlsConfig(certificate=config.certificate, key=config.key, trust=config.trust)
    async with MessagingService(
        CLUSTER, config.name, bind=config.bind, tls=tls, limits=LIMITS
    ) as service:
        _answer(service, Tally(Path(config.tally)))
        _tell(Ready(address=str(service.address)))
        if config.calls is None:
            await orders.wait_for_stop()
        else:
            await _call(service, config.calls, config, orders)


def _answer(service: MessagingService, tally: Tally) -> None:
    def handle(message: Message) -> bytes:
        tally.add()
        return mirror(message.payload)

    service.subscribe(SUBJECT, handle)


async def _call(service: MessagingService, peer: str, config: NodeConfig, orders: Orders) -> None:
    traffic = Traffic(service, peer, callers=config.callers, payload_bytes=config.payload_bytes)
    async with asyncio.TaskGroup() as group:
        reporter = group.create_task(_report(traffic))
        load = group.create_task(traffic.run())
        await orders.wait_for_stop()
        traffic.stop()
        await load
        reporter.cancel()
    _tell(traffic.report())


async def _report(traffic: Traffic) -> None:
    while True:
        _tell(traffic.report())
        await asyncio.sleep(REPORT_EVERY_S)


def _tell(told: Told) -> None:
    try:
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
