"""Names of queues and subjects, validated in one place."""

from __future__ import annotations

from postroad.core import validate_node_name
from postroad.core.errors import ConfigError, UsageError

OUTBOUND_PREFIX = "internal.peers."
INBOUND_PREFIX = "p2p.inbound."
BRIDGE_CONTROL = "internal.bridge.control"
BRIDGE_NOTIFY = "internal.bridge.notify"
OFFER = "durable.offer"
DELIVER = "durable.deliver"

BRIDGE_SUFFIX = ".bridge"
"""The end of the name of a node's bridge process, after the name of the node."""
REPLIES = "_replies"
"""The queue for replies to `request`; names that start with `_` are Postroad's own."""

QUEUE_NAME_BYTES_MAX = 255
KEY_BYTES_MAX = 1_024


def outbound_queue(peer: str) -> str:
    """Return the name of the outbound queue to a peer."""
    return OUTBOUND_PREFIX + peer


def inbound_queue(node: str) -> str:
    """Return the name of the inbound messages of a node."""
    return INBOUND_PREFIX + node


def peer_of(queue: str) -> str:
    """Return the peer of an outbound queue; raises ConfigError for any other name."""
    if not queue.startswith(OUTBOUND_PREFIX):
        raise ConfigError(f"{queue!r} is no outbound queue: they begin with {OUTBOUND_PREFIX!r}")
    return validate_node_name(queue.removeprefix(OUTBOUND_PREFIX))


def node_of_bridge(name: str) -> str:
    """Return the node that a peer delivers for: itself, or the node of a bridge process."""
    return name.removesuffix(BRIDGE_SUFFIX)


def validate_key(key: object) -> str:
    """Return the text if it may be a message's key, else raise ConfigError."""
    if not isinstance(key, str):
        raise UsageError(f"key {key!r} must be a str")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"key {key!r} cannot be encoded as UTF-8") from None
    if size > KEY_BYTES_MAX:
        raise ConfigError(f"key of {size} bytes is longer than {KEY_BYTES_MAX}")
    if "\0" in key:
        raise ConfigError(f"key {key!r} contains the character 0, which databases do not store")
    return key


def validate_queue_name(name: object) -> str:
    """Return the name if it may be a queue's, else raise ConfigError saying what is wrong."""
    if not isinstance(name, str):
        raise UsageError(f"queue name {name!r} must be a str")
    if not name:
        raise ConfigError("a queue name must not be empty")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ConfigError(f"queue name {name!r} cannot be encoded as UTF-8") from None
    if size > QUEUE_NAME_BYTES_MAX:
        raise ConfigError(f"queue name of {size} bytes is longer than {QUEUE_NAME_BYTES_MAX}")
    if not name.isprintable() or any(character.isspace() for character in name):
        raise ConfigError(f"queue name {name!r} contains spaces or unprintable characters")
    return name
