"""Nodes of one process behave like any others."""

from __future__ import annotations

import pytest

from postroad.services.transporters import MemoryHub, MemoryTransporter, memory_hub
from tests.contract.balanced_transporter_behaviour import BalancedBehaviour
from tests.contract.transporter_behaviour import BroadcastBehaviour, TransporterBehaviour


class MemoryWiring:
    """Nodes with a hub of their own."""

    def __init__(self) -> None:
        self._hub = MemoryHub()

    def make(self, node_id: str) -> MemoryTransporter:
        return MemoryTransporter(self._hub)


class TestMemory(TransporterBehaviour, BroadcastBehaviour, BalancedBehaviour):
    @pytest.fixture
    def wiring(self) -> MemoryWiring:
        return MemoryWiring()


def test_hubs_are_known_by_name() -> None:
    hub = memory_hub("orders")
    assert memory_hub("orders") is hub
    assert memory_hub("invoices") is not hub
