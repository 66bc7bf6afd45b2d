"""Nodes behave alike when there is a RabbitMQ server between them, which is a real one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiormq.connection import Connection

from benchmarks.rabbitmq import rabbitmq_url
from postroad.services.transporters import Transporter, make_transporter
from postroad.services.transporters.amqp import AmqpTransporter
from tests.contract.balanced_transporter_behaviour import BalancedBehaviour
from tests.contract.served_transporter_behaviour import BalancedServedBehaviour, ServedBehaviour
from tests.contract.transporter_behaviour import (
    BroadcastBehaviour,
    LimitBehaviour,
    TransporterBehaviour,
)
from tests.support.servers.rabbitmq import RabbitServer, shared_rabbitmq
from tests.support.services.gate import Gate, gate_to
from tests.support.services.transporter_nodes import ServedWiring, ServerWiring
from tests.support.tiers import by_tier

WITH_REAL_RESTARTS = by_tier(test=("test_queues_are_listened_to_again",), nightly=("test_",))
"""The names of tests that may kill the server begin so; for others a gate in front of it is shut:
a start takes seconds."""


class GateWiring:
    """A ServedWiring whose server seems to be stopped and started."""

    def __init__(self, gate: Gate) -> None:
        self._url = rabbitmq_url(gate.port)
        self.kill, self.start = gate.kill, gate.start
        self.pause, self.resume = gate.pause, gate.resume

    def make(self, node_id: str) -> Transporter:
        return make_transporter(self._url)

    def make_impatient(self, node_id: str) -> Transporter:
        return AmqpTransporter(self._url, connect_timeout_s=1.0, heartbeat_s=1)


def wiring_of(server: RabbitServer) -> ServerWiring:
    def make_impatient() -> Transporter:
        return AmqpTransporter(server.url, connect_timeout_s=1.0, heartbeat_s=1)

    return ServerWiring(server, lambda: make_transporter(server.url), make_impatient)


@pytest.mark.slow
class TestAmqp(
    TransporterBehaviour,
    BroadcastBehaviour,
    LimitBehaviour,
    BalancedBehaviour,
    ServedBehaviour,
    BalancedServedBehaviour,
):
    @pytest.fixture
    def wiring(self) -> ServerWiring:
        return wiring_of(shared_rabbitmq())

    @pytest.fixture
    async def served_wiring(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[ServedWiring]:
        # One heartbeat missed is enough: silence is noticed after two seconds instead of six.
        monkeypatch.setattr(Connection, "HEARTBEAT_GRACE_MULTIPLIER", 1)
        server = shared_rabbitmq()
        if request.node.name.startswith(WITH_REAL_RESTARTS):
            yield wiring_of(server)
            return
        async with gate_to(server.port) as gate:
            yield GateWiring(gate)
