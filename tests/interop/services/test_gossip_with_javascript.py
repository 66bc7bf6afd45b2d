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
from tests.support.deadlines import DEADLINE_S
from tests.support.servers.process import free_port
from tests.support.services.javascript import Peer, start_node

pytestmark = pytest.mark.timeout(600)


def recorded(modules: Path, serializer: Serializer) -> list[tuple[Kind, bytes]]:
    """What two nodes say until they know each other."""
    ports = {free_port(), free_port(), free_port()}
    process = start_node(modules, "gossip.js", serializer.name, *map(str, sorted(ports)[:2]))
    output, _ = process.communicate(timeout=2 * DEADLINE_S)
    lines = [json.loads(line) for line in output.splitlines()]
    return [(Kind(line["kind"]), bytes.fromhex(line["hex"])) for line in lines]


def test_their_packets_mean_the_same_on_both_sides(
    modules: Path, serializer: Serializer, shared_peer: Peer
) -> None:
    packets: dict[type[Packet], Any] = {}
    for kind, data in recorded(modules, serializer):
        packet = serializer.deserialize(kind, data)
        packets.setdefault(type(packet), packet)
        again = serializer.serialize(packet)
        theirs = shared_peer.ask("read", hex=data.hex())

        assert to_wire(packet) == theirs
        assert shared_peer.ask("read", hex=again.hex()) == theirs
        if isinstance(serializer, JsonSerializer):
            assert again == data

    hello = packets[GossipHello]
    assert hello.sender.startswith("gossip-")
    assert hello.host
    assert hello.port > 0
    request = packets[GossipRequest]
    (known,) = read_known(request)
    assert known.node_id == request.sender
    assert known.seq > 0
    (about,) = (news for news in read_news(packets[GossipResponse]) if news.info is not None)
    assert about.info is not None
    read = read_info(about.info)
    assert read.problems == ()
    assert read.info.port is not None
    assert any(service.name.startswith("talker-") for service in read.info.services)
