"""Nodes behave alike when there is an MQTT server between them, which is a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from postroad.services.transporters import Transporter, make_transporter
from postroad.services.transporters.mqtt import MqttTransporter
from tests.contract.served_transporter_behaviour import ServedBehaviour
from tests.contract.transporter_behaviour import (
    BroadcastBehaviour,
    LimitBehaviour,
    TransporterBehaviour,
)
from tests.support.servers.mosquitto import MosquittoServer, mosquitto_server, shared_mosquitto
from tests.support.services.transporter_nodes import ServerWiring


def wiring_of(server: MosquittoServer) -> ServerWiring:
    def make_impatient() -> Transporter:
        return MqttTransporter(server.url, connect_timeout_s=1.0, keep_alive_s=1)

    return ServerWiring(server, lambda: make_transporter(server.url), make_impatient)


@pytest.fixture(scope="module")
def disturbed() -> Iterator[ServerWiring]:
    """With a server that tests may kill and pause; it runs again for the next."""
    with mosquitto_server() as server:
        yield wiring_of(server)


class TestMqtt(TransporterBehaviour, BroadcastBehaviour, ServedBehaviour):
    @pytest.fixture
    def wiring(self) -> ServerWiring:
        return wiring_of(shared_mosquitto())

    @pytest.fixture
    async def served_wiring(self, disturbed: ServerWiring) -> ServerWiring:
        return await disturbed.revived()


class ConfirmedWiring:
    """Packets are confirmed, topics have slashes, and there is a limit."""

    def __init__(self, qos: int) -> None:
        self._qos = qos

    def make(self, node_id: str) -> MqttTransporter:
        return MqttTransporter(
            shared_mosquitto().url, qos=self._qos, topic_separator="/", packet_bytes_max=1_500_000
        )


@pytest.mark.parametrize("qos", [1, 2])
class TestConfirmedMqtt(TransporterBehaviour, BroadcastBehaviour, LimitBehaviour):
    @pytest.fixture
    def wiring(self, qos: int) -> ConfirmedWiring:
        return ConfirmedWiring(qos)
