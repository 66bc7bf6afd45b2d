"""Nodes behave alike when there is a NATS server between them, which is a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.services.transporters import Transporter, make_transporter
from postroad.services.transporters.nats import NatsTransporter
from tests.contract.balanced_transporter_behaviour import BalancedBehaviour
from tests.contract.served_transporter_behaviour import BalancedServedBehaviour, ServedBehaviour
from tests.contract.transporter_behaviour import (
    BroadcastBehaviour,
    LimitBehaviour,
    TransporterBehaviour,
)
from tests.support.servers.nats import NatsServer, nats_server, shared_nats
from tests.support.services.transporter_nodes import ServerWiring


def wiring_of(server: NatsServer) -> ServerWiring:
    def make_impatient() -> Transporter:
        return NatsTransporter(server.url, connect_timeout_s=1.0, ping_interval_s=0.4)

    return ServerWiring(server, lambda: make_transporter(server.url), make_impatient)


@pytest.fixture(scope="module")
def disturbed() -> Iterator[ServerWiring]:
    """With a server that tests may kill and pause; it runs again for the next."""
    with nats_server() as server:
        yield wiring_of(server)


class TestNats(
    TransporterBehaviour,
    BroadcastBehaviour,
    LimitBehaviour,
    BalancedBehaviour,
    ServedBehaviour,
    BalancedServedBehaviour,
):
    @pytest.fixture
    def wiring(self) -> ServerWiring:
        return wiring_of(shared_nats())

    @pytest.fixture
    async def served_wiring(self, disturbed: ServerWiring) -> ServerWiring:
        return await disturbed.revived()
