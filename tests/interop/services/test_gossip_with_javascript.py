"""What real nodes of the original system tell each other over TCP, read and written again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from postroad.services.gossip import (
    GossipHello,
    GossipRequest,
    GossipResponse,
    read_known,
    read_news,
)
from postroad.services.info_form import read_info
from postroad.services.kinds import Kind
from postroad.services.packet_form import to_wire
from postroad.services.packets import Packet
from postroad.services.serializers import JsonSerializer, Serializer
from tests.support.servers.process import free_port
from tests.support.services.javascript import Peer, start_node

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="session")
def recorded(modules: Path, serializer: Serializer) -> list[tuple[Kind, bytes]]:
    """What two nodes say until they know each other."""
    ports = {free_port(), free_port(), free_port()}
    process = start_node(modules, "gossip.js", serializer.name, *map(str, sorted(ports)[:2]))
    output, _ = process.communicate(timeout=120)
    lines = [json.loads(line) for line in output.splitlines()]
    return [(Kind(line["kind"]), bytes.fromhex(line["hex"])) for line in lines]


@pytest.fixture
def packets(
    recorded: list[tuple[Kind, bytes]], serializer: Serializer
) -> dict[type[Packet], list[Any]]:
    by_class: dict[type[Packet], list[Any]] = {}
    for kind, data in recorded:
        packet = serializer.deserialize(kind, data)
        by_class.setdefault(type(packet), []).append(packet)
    return by_class


def test_each_packet_means_the_same_on_both_sides(
    recorded: list[tuple[Kind, bytes]], serializer: Serializer, shared_peer: Peer
) -> None:
    for kind, data in recorded:
        packet = serializer.deserialize(kind, data)
        again = serializer.serialize(packet)
        theirs = shared_peer.ask("read", hex=data.hex())

        assert to_wire(packet) == theirs
        assert shared_peer.ask("read", hex=again.hex()) == theirs
        if isinstance(serializer, JsonSerializer):
            assert again == data


def test_hello(packets: dict[type[Packet], list[Any]]) -> None:
    hello = packets[GossipHello][0]
    assert hello.sender.startswith("gossip-")
    assert hello.host
    assert hello.port > 0


def test_request(packets: dict[type[Packet], list[Any]]) -> None:
    request = packets[GossipRequest][0]
    (known,) = read_known(request)
    assert known.node_id == request.sender
    assert known.seq > 0


def test_response(packets: dict[type[Packet], list[Any]]) -> None:
    news = list(read_news(packets[GossipResponse][0]))
    (about,) = (it for it in news if it.info is not None)
    assert about.info is not None
    read = read_info(about.info)

    assert read.problems == ()
    assert read.info.port is not None
    assert any(service.name.startswith("talker-") for service in read.info.services)
