"""Domains in processes of their own, as a test sees them: started, asked, killed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from postroad.cells import CellDomain, Role
from postroad.net import MessagingService
from tests.support.cells.domain_node import (
    CLUSTER,
    CONFIG,
    LIMITS,
    Settings,
    Status,
    Tunnels,
    make_locations,
)
from tests.support.deadlines import DEADLINE_S
from tests.support.net.processes import end, start_module
from tests.support.servers.process import free_port

CALLER = "S9"
"""The satellite that a test itself is."""

_MODULE = "tests.support.cells.domain_node"
_LOOK_EVERY_S = 0.02


class DomainProcess:
    """A domain that can be ended and started again, at the same place."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.address = ""
        self._process: asyncio.subprocess.Process | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    async def start(self) -> None:
        """Start it, where it was before if it was there."""
        bind = self.address or f"127.0.0.1:{free_port()}"
        settings = msgspec.structs.replace(self.settings, bind=bind)
        self._process = await start_module(_MODULE, msgspec.json.encode(settings))
        self.address = await self._line()
        assert self.address, f"{self.name} did not start"

    async def _line(self) -> str:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE_S)
        return line.decode().strip()

    async def ask(self, line: str, type: Any = Any) -> Any:
        """What it answers to a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        return msgspec.json.decode(await self._line(), type=type)

    async def status(self) -> Status:
        status: Status = await self.ask("status", Status)
        return status

    async def command(self, cell: str, command: str) -> str:
        """What one of its cells answers to a command."""
        answer = await self.ask(f"{cell} {command}")
        assert isinstance(answer, str), answer
        return answer

    def handled(self) -> list[tuple[int, str]]:
        """The number and the id of each message its worker was given, in all its lives."""
        lines = Path(self.settings.record).read_text().splitlines()
        return [(int(number), id) for number, id in map(str.split, lines)]

    async def until(self, condition: Callable[[Status], object], what: str) -> None:
        """Return as soon as something is so."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while not condition(status := await self.status()):
            assert asyncio.get_running_loop().time() < deadline, f"{self.name}: {what}: {status}"
            await asyncio.sleep(_LOOK_EVERY_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def terminate(self) -> None:
        """End it in an orderly way."""
        self.signal(signal.SIGTERM)
        status = await asyncio.wait_for(self.process.wait(), DEADLINE_S)
        assert status == 128 + signal.SIGTERM, f"{self.name} ended with {status}"
        await end(self.process)

    async def kill(self) -> None:
        """End it the hard way, in whatever state it is."""
        if self._process is not None:
            await end(self.process)


class Fabric:
    """Two cores and some satellites with workers in processes, and one that is the test itself."""

    def __init__(self, directory: Path, satellites: int, zookeeper: str) -> None:
        self._directory = directory
        self._zookeeper = zookeeper
        self.cores = [self._make(f"C{n}", Role.CORE) for n in (1, 2)]
        self.satellites = [self._make_satellite(f"S{n + 1}") for n in range(satellites)]
        # Set by start.
        self.caller: CellDomain
        self.tunnels: Tunnels

    def _make(self, name: str, role: Role, **options: Any) -> DomainProcess:
        return DomainProcess(Settings(name=name, role=role, zookeeper=self._zookeeper, **options))

    def _make_satellite(self, name: str) -> DomainProcess:
        return self._make(name, Role.SATELLITE, record=str(self._directory / f"{name}.handled"))

    @property
    def processes(self) -> list[DomainProcess]:
        return [*self.cores, *self.satellites]

    async def start(self) -> None:
        """Start all processes; a core is told of those that were there before it."""
        for core in self.cores:
            await core.start()
            self._tell_addresses()
        await asyncio.gather(*(satellite.start() for satellite in self.satellites))

    async def add_satellite(self, name: str) -> DomainProcess:
        """Start one more."""
        self.satellites.append(self._make_satellite(name))
        self._tell_addresses()
        await self.satellites[-1].start()
        return self.satellites[-1]

    def _tell_addresses(self) -> None:
        """What processes that start from now on know."""
        if not self._zookeeper:
            cores = self.addresses()
            for process in self.processes:
                process.settings = msgspec.structs.replace(process.settings, cores=cores)

    def addresses(self) -> dict[str, str]:
        """Where the cores are that were started."""
        return {core.name: core.address for core in self.cores if core.address}

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[None]:
        """Be a satellite until the end of the block, once everybody knows everybody."""
        settings = Settings(
            name=CALLER, role=Role.SATELLITE, cores=self.addresses(), zookeeper=self._zookeeper
        )
        async with MessagingService(CLUSTER, CALLER, limits=LIMITS) as service:
            locations = make_locations(settings, str(service.address))
            async with CellDomain(service, core_discovery=locations, config=CONFIG) as self.caller:
                self.tunnels = Tunnels(self.caller)
                await self.is_whole()
                yield

    async def is_whole(self) -> None:
        """Wait until there are all tunnels and default routes there should be."""
        names = {core.name for core in self.cores}
        others = {satellite.name for satellite in self.satellites} | {CALLER}
        for core in self.cores:
            expected = (names | others) - {core.name}
            await core.until(partial(_has_tunnels, expected), "all tunnels")
        for satellite in self.satellites:
            await satellite.until(
                lambda status: set(status.defaults) == names, "all default routes"
            )
        await self.until_defaults(names)

    async def until_defaults(self, names: set[str]) -> None:
        """Wait until the test's own calls may go through these cores, and no others."""
        async with asyncio.timeout(DEADLINE_S):
            while self.defaults() != names:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(_LOOK_EVERY_S)

    def defaults(self) -> set[str]:
        """The cores through which the test's own calls may go."""
        return {route.target.domain for route in self.caller.table.defaults()}

    async def all_tunnels(self) -> dict[str, dict[str, int]]:
        """The tunnels of everybody, with their numbers."""
        tunnels = {process.name: (await process.status()).tunnels for process in self.processes}
        return {CALLER: self.tunnels.now(), **tunnels}


def _has_tunnels(names: set[str], status: Status) -> bool:
    return set(status.tunnels) == names


@asynccontextmanager
async def fabric(
    directory: Path, *, satellites: int = 2, zookeeper: str = ""
) -> AsyncIterator[Fabric]:
    """Domains that are connected with each other; the processes are killed at the end."""
    running = Fabric(directory, satellites, zookeeper)
    try:
        await running.start()
        async with running.calling():
            yield running
    finally:
        for process in running.processes:
            await process.kill()
