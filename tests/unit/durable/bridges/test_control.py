"""What a node and its bridge manager say to each other."""

import msgspec
import pytest

from postroad.core.errors import MalformedPayloadError
from postroad.durable.bridges.control import (
    BridgeCommand,
    BridgeCreate,
    BridgeDelete,
    BridgeManagerStatus,
    BridgeReport,
    BridgeRoute,
    BridgeSnapshot,
    BridgeSnapshotRequest,
    BridgeStatus,
    BridgeStatusRequest,
    decode_bridge_command,
    decode_bridge_report,
    encode,
)
from tests.support.cases import naming

ENTRY = BridgeRoute("internal.peers.beta", "10.0.0.2:26502", "beta")
TO_BRIDGE: list[BridgeCommand] = [
    BridgeSnapshot("alpha", "p2p.inbound.alpha", [ENTRY]),
    BridgeSnapshot("alpha", "p2p.inbound.alpha", []),
    BridgeCreate("alpha", ENTRY),
    BridgeDelete("alpha", "internal.peers.beta"),
    BridgeStatusRequest(7),
]
TO_NODE: list[BridgeReport] = [
    BridgeSnapshotRequest("alpha.bridge"),
    BridgeManagerStatus(
        7, "alpha.bridge", 3, [BridgeStatus("beta", "10.0.0.2:1", "sending", 5, None)]
    ),
    BridgeManagerStatus(
        8, "alpha", 3, [BridgeStatus("beta", "10.0.0.2:1", "waiting", 0, "it is away")]
    ),
]
NONSENSE = [
    b"",
    b"\xc1",
    b"\x90",
    msgspec.msgpack.encode({"type": "unknown"}),
    msgspec.msgpack.encode({"type": 5}),
    msgspec.msgpack.encode({"type": "health"}),
    msgspec.msgpack.encode({"type": "create", "node": "alpha", "entry": None}),
    b"\x81\xa4type\xa1\xff",
    b"\x81\xa4type" + b"\x91" * 5_000,
]


def test_messages_between_bridge_and_node_are_read_back() -> None:
    for message in TO_BRIDGE:
        assert decode_bridge_command(encode(message)) == message, message
    for answer in TO_NODE:
        assert decode_bridge_report(encode(answer)) == answer, answer
    for payload in (*NONSENSE, *map(encode, TO_NODE)):
        with naming(payload), pytest.raises(MalformedPayloadError, match="invalid bridge command"):
            decode_bridge_command(payload)
    for payload in (*NONSENSE, *map(encode, TO_BRIDGE)):
        with naming(payload), pytest.raises(MalformedPayloadError, match="invalid bridge report"):
            decode_bridge_report(payload)
