"""A node's end of the pipes to the story: what it is told, and what it tells."""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from .records import Command, NodeConfig, Told


class Orders:
    """Reads what the process is told, in the background, for as long as it lives."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._given = {command: asyncio.Event() for command in Command}
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

    async def wait_for(self, command: Command) -> None:
        """Return when that command was given."""
        await self._given[command].wait()

    async def _read_commands(self) -> None:
        while True:
            command = Command(msgspec.json.decode(await self._read_line()))
            self._given[command].set()

    async def _read_line(self) -> bytes:
        line = await self._reader.readline()
        if not line:
            # Nobody is left to report to, so nothing is worth a graceful end.
            os._exit(1)
        return line


def tell(told: Told) -> None:
    """Write a line to the story, or end with it."""
    try:
        sys.stdout.buffer.write(msgspec.json.encode(told) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os._exit(1)
