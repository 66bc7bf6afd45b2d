"""Nodes behave alike when there is a RabbitMQ server between them, which is a real one."""

from __future__ import annotations

import pytest

from postroad.services.transporters import Transporter, make_transporter
from postroad.services.transporters.amqp import AmqpTransporter
from tests.contract.balanced_transporter_behaviour import BalancedBehaviour
from tests.contract.served_transporter_behaviour import BalancedServedBehaviour, ServedBehaviour
from tests.contract.transporter_behaviour import (
    BroadcastBehaviour,
    LimitBehaviour,
    TransporterBehaviour,
)
from tests.support.servers.rabbitmq import RabbitServer, revived_rabbitmq, shared_rabbitmq
from tests.support.services.transporter_nodes import ServerWiring


def wiring_of(server: RabbitServer) -> ServerWiring:
    def make_impatient() -> Transporter:
        return AmqpTransporter(server.url, connect_timeout_s=1.0, heartbeat_s=1)

    return ServerWiring(server, lambda: make_transporter(server.url), make_impatient)


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
    def served_wiring(self) -> ServerWiring:
        return wiring_of(revived_rabbitmq())
