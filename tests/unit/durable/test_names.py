"""Names of queues and keys, and the peers behind them."""

import pytest

from postroad.core.errors import ConfigError
from postroad.durable.names import (
    KEY_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    inbound_queue,
    node_of_bridge,
    outbound_queue,
    peer_of,
    validate_key,
    validate_queue_name,
)
from tests.support.cases import each, naming


def test_names_map_queues_to_peers_and_bridges_to_nodes() -> None:
    assert outbound_queue("beta") == "internal.peers.beta"
    assert inbound_queue("beta") == "p2p.inbound.beta"
    assert peer_of(outbound_queue("beta")) == "beta"
    for queue in ("orders", "p2p.inbound.beta", "internal.peers.", "", "beta"):
        with naming(queue), pytest.raises(ConfigError):
            peer_of(queue)
    for name, node in (("beta", "beta"), ("beta.bridge", "beta"), ("bridge", "bridge")):
        assert node_of_bridge(name) == node, (name, node)


def test_keys_and_queue_names_are_validated() -> None:
    for name in ("a", "größe/日本", "_replies", "a" * QUEUE_NAME_BYTES_MAX, "a:b{}"):
        assert validate_queue_name(name) == name, name
    for key in ("", " ", "customer 7\n", "ß" * (KEY_BYTES_MAX // 2)):
        assert validate_key(key) == key, key
    for key, reason in (
        ("a" * (KEY_BYTES_MAX + 1), "1025 bytes"),
        ("a\0", "character 0"),
        ("\udc80", "UTF-8"),
    ):
        with naming((key, reason)), pytest.raises(ConfigError, match=reason):
            validate_key(key)


@each(
    ("", "empty"),
    ("a" * (QUEUE_NAME_BYTES_MAX + 1), "256 bytes"),
    ("ß" * 128, "256 bytes"),
    ("a b", "spaces"),
    ("a\n", "spaces"),
    ("a\0", "unprintable"),
    ("\u00a0", "spaces"),
    ("\u200b", "unprintable"),
    ("\udc80", "UTF-8"),
)
def test_invalid_queue_names_are_rejected(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate_queue_name(name)
