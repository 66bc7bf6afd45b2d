"""A domain as a process: `python -m tests.support.cells.domain_node SETTINGS`.

The settings are a line of JSON, see `Settings`. A satellite may have a cell `worker`, which
consumes the queue `work`, takes its time for some messages, and writes all of them down: the number
and the id of each, in a file that outlives a killed process. The process prints its address, then
answers each line it reads with a line of JSON, and ends when its input does or, in an orderly way,
with SIGTERM:

status          the tunnels, each with a number no other has, the default routes, the counters
CELL COMMAND    what a cell answers to a command; anything else than a text if it refused
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from typing import Any

import msgspec

from postroad import PostroadError, cells, run
from postroad.net import Limits, MessagingService
from tests.support.servers.zookeeper import SESSION_TIMEOUT_S

CLUSTER = "chaos"
QUEUE = "work"
LIMITS = Limits(heartbeat_interval_s=0.3, heartbeat_timeout_s=3.0, stop_grace_s=1.0)
CONFIG = cells.CellsConfig(
    redial_initial_delay_s=0.05,
    redial_max_delay_s=0.3,
    route_learner=cells.RouteLearnerConfig(default_delay_s=0.5),
)
# Every so many messages take a while, so that some are under way at any moment.
SLOW_EVERY = 5
SLOW_S = 0.02
CONCURRENCY = 64


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a process is told when it starts."""

    name: str
    role: cells.Role
    bind: str = "127.0.0.1:0"
    cores: dict[str, str] = {}
    """The addresses of cores, unless ZooKeeper knows them."""
    zookeeper: str = ""
    record: str = ""
    """The file of the worker; without it there is none."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How a domain stands."""

    tunnels: dict[str, int]
    """The other ends, each with a number that a later tunnel does not have."""
    defaults: list[str]
    counters: dict[str, int]


class Worker:
    """Handles calls and writes them down."""

    def __init__(self, domain: cells.CellDomain, record: str) -> None:
        self._domain = domain
        self._record = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def __call__(self, message: cells.CellMessage) -> Any:
        number: int = message.body[0]
        os.write(self._record, f"{number} {message.id.hex()}\n".encode())
        if number % SLOW_EVERY == 0:
            await asyncio.sleep(SLOW_S)
        return [number, self._domain.name]


class Tunnels:
    """Numbers the tunnels of a domain, to tell one from another to the same place."""

    def __init__(self, domain: cells.CellDomain) -> None:
        self._domain = domain
        self._numbers = itertools.count(1)
        # Kept, so that a later tunnel cannot be taken for an earlier one.
        self._known: dict[object, int] = {}

    def now(self) -> dict[str, int]:
        """Those that are open."""
        return {name: self._number(link) for name, link in self._domain.links.by_domain.items()}

    def _number(self, link: object) -> int:
        if link not in self._known:
            self._known[link] = next(self._numbers)
        return self._known[link]


def make_locations(settings: Settings, address: str) -> cells.CoreDiscovery:
    """Where a domain finds the cores."""
    if settings.zookeeper:
        return cells.ZooKeeperCoreDiscovery(
            settings.zookeeper,
            CLUSTER,
            session_timeout_s=SESSION_TIMEOUT_S,
            connect_timeout_s=1.0,
            request_timeout_s=1.0,
        )
    own = {settings.name: address} if settings.role is cells.Role.CORE else {}
    return cells.StaticCoreDiscovery(
        {name: [location] for name, location in (settings.cores | own).items()}
    )


class Node:
    """Answers the lines a process reads."""

    def __init__(self, domain: cells.CellDomain) -> None:
        self._domain = domain
        self._tunnels = Tunnels(domain)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            say(msgspec.json.encode(await self._answer(line.decode().strip())))

    async def _answer(self, line: str) -> Any:
        if line == "status":
            return self._status()
        cell, _, command = line.partition(" ")
        try:
            return await self._domain.run_command(cell, command)
        except PostroadError as error:
            return {"error": str(error)}

    def _status(self) -> Status:
        domain = self._domain
        return Status(
            tunnels=self._tunnels.now(),
            defaults=sorted(route.target.domain for route in domain.table.defaults()),
            counters=msgspec.to_builtins(domain.statistics()),
        )


def say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


async def belong(settings: Settings) -> None:
    service = MessagingService(CLUSTER, settings.name, bind=settings.bind, limits=LIMITS)
    async with service:
        address = str(service.address)
        locations = make_locations(settings, address)
        domain = cells.CellDomain(
            service, role=settings.role, core_discovery=locations, config=CONFIG
        )
        async with domain:
            if settings.record:
                worker = Worker(domain, settings.record)
                domain.add_function("worker", worker, consume=[QUEUE], concurrency=CONCURRENCY)
            say(address.encode())
            await Node(domain).serve()


if __name__ == "__main__":
    run(belong(msgspec.json.decode(sys.argv[1], type=Settings)))
