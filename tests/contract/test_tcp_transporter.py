"""Nodes that connect to each other behave like those with a server between them."""

from __future__ import annotations

import pytest

from postroad.core.limits import MIB
from postroad.services.kinds import Kind
from postroad.services.transporters.tcp import TcpTransporter
from tests.contract.transporter_behaviour import LimitBehaviour, TransporterBehaviour
from tests.support.servers.process import free_port
from tests.support.services.transporter_nodes import NODE_IDS


class TcpWiring:
    """Nodes that know each other's addresses."""

    def __init__(self) -> None:
        self._urls = {node_id: f"127.0.0.1:{free_port()}" for node_id in NODE_IDS}

    def make(self, node_id: str) -> TcpTransporter:
        return TcpTransporter(self._urls, host="127.0.0.1", packet_bytes_max=MIB)


class TestTcp(TransporterBehaviour, LimitBehaviour):
    targeted = (
        Kind.EVENT,
        Kind.EVENT_ACK,
        Kind.STREAM_PROGRESS,
        Kind.REQUEST,
        Kind.RESPONSE,
        Kind.PING,
        Kind.PONG,
    )
    broadcast = ()

    @pytest.fixture
    def wiring(self) -> TcpWiring:
        return TcpWiring()
