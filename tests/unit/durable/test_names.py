"""Names of queues and keys, and the peers behind them."""

import pytest

from postroad.core.errors import ConfigError
from postroad.durable.names import (
    KEY_BYTES_MAX,
    QUEUE_NAME_BYTES_MAX,
    inbound_queue,
    node_behind,
    outbound_queue,
    peer_of,
    validate_key,
    validate_queue_name,
)
from tests.support.cases import each


def test_queues_of_peers() -> None:
    assert outbound_queue("beta") == "internal.peers.beta"
    assert inbound_queue("beta") == "p2p.inbound.beta"
    assert peer_of(outbound_queue("beta")) == "beta"


@each("orders", "p2p.inbound.beta", "internal.peers.", "", "beta")
def test_other_queues_lead_to_no_peer(queue: str) -> None:
    with pytest.raises(ConfigError):
        peer_of(queue)


@each(("beta", "beta"), ("beta.bridge", "beta"), ("bridge", "bridge"))
def test_a_bridge_process_speaks_for_its_node(name: str, node: str) -> None:
    assert node_behind(name) == node


@each("a", "größe/日本", "_replies", "a" * QUEUE_NAME_BYTES_MAX, "a:b{}")
def test_queue_names(name: str) -> None:
    assert validate_queue_name(name) == name


@each(
    ("", "empty"),
    ("a" * (QUEUE_NAME_BYTES_MAX + 1), "256 bytes"),
    ("ß" * 128, "256 bytes"),
    ("a b", "spaces"),
    ("a\n", "spaces"),
    ("a\0", "nobody can read"),
    ("\u00a0", "spaces"),
    ("\u200b", "nobody can read"),
    ("\udc80", "UTF-8"),
)
def test_what_no_queue_is_called(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate_queue_name(name)


@each("", " ", "customer 7\n", "ß" * (KEY_BYTES_MAX // 2))
def test_keys(key: str) -> None:
    assert validate_key(key) == key


@each(("a" * (KEY_BYTES_MAX + 1), "1025 bytes"), ("a\0", "character 0"), ("\udc80", "UTF-8"))
def test_what_no_key_may_be(key: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        validate_key(key)
