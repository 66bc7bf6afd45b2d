"""Nodes in domains of cells behave like any others, wherever the domains are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from postroad.core import Limits
from postroad.services.transporters.cells import CellsTransporter, DomainOptions
from tests.contract.balanced_transporter_behaviour import BalancedBehaviour
from tests.contract.served_transporter_behaviour import BalancedServedBehaviour, ServedBehaviour
from tests.contract.transporter_behaviour import (
    BroadcastBehaviour,
    LimitBehaviour,
    TransporterBehaviour,
)
from tests.support.cells.nodes import Domains
from tests.support.servers.cell_core import CoreServer, core_server
from tests.support.services.transporter_nodes import NODE_IDS, ServerWiring

# A slow listener keeps all domains of a test from being heard.
PATIENT = Limits(stop_grace_s=1.0)
IMPATIENT = DomainOptions(limits=Limits(heartbeat_interval_s=0.2, heartbeat_timeout_s=1.0))


class CellsBehaviour(TransporterBehaviour, BroadcastBehaviour, BalancedBehaviour, LimitBehaviour):
    """All that applies wherever the domains are."""


class ByCore(ServerWiring):
    """Nodes with domains of their own, which a core in another process connects."""

    def __init__(self, core: CoreServer) -> None:
        def make_impatient() -> CellsTransporter:
            return CellsTransporter(core.url, connect_timeout_s=1.0, options=IMPATIENT)

        super().__init__(core, lambda: CellsTransporter(core.url), make_impatient)


@pytest.fixture(scope="module")
def core() -> Iterator[CoreServer]:
    """A core that all tests share which leave it alone."""
    with core_server() as core:
        yield core


@pytest.fixture(scope="module")
def disturbed() -> Iterator[ServerWiring]:
    """With a server that tests may kill and pause; it runs again for the next."""
    with core_server() as server:
        yield ByCore(server)


class TestCellsByCore(CellsBehaviour, ServedBehaviour, BalancedServedBehaviour):
    @pytest.fixture
    def wiring(self, core: CoreServer) -> ByCore:
        return ByCore(core)

    @pytest.fixture
    async def served_wiring(self, disturbed: ServerWiring) -> ServerWiring:
        return await disturbed.revived()


class Given:
    """Nodes in domains that the test has made."""

    def __init__(self, domains: Domains, names: list[str]) -> None:
        self._domains = domains
        self._names = dict(zip(NODE_IDS, names, strict=True))

    def make(self, node_id: str) -> CellsTransporter:
        return CellsTransporter(self._domains[self._names[node_id]])


class TestCellsByTwoCores(CellsBehaviour):
    @pytest.fixture
    async def wiring(self) -> AsyncIterator[Given]:
        async with Domains(2, 4, limits=PATIENT) as domains:
            yield Given(domains, ["S1", "S2", "S3", "S4"])


class TestCellsNextToEachOther(CellsBehaviour):
    """Every node is in a core, and so has a tunnel to every other."""

    @pytest.fixture
    async def wiring(self) -> AsyncIterator[Given]:
        async with Domains(4, 0, limits=PATIENT) as domains:
            yield Given(domains, ["C1", "C2", "C3", "C4"])


class TestCellsOfOneProcess(CellsBehaviour):
    @pytest.fixture
    def wiring(self) -> OneProcess:
        return OneProcess()


class OneProcess:
    """Nodes that share a domain, because nobody says anything else."""

    def make(self, node_id: str) -> CellsTransporter:
        return CellsTransporter()
