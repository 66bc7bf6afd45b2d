"""What the queues of AMQP must look like. All nodes must say the same of a queue they share.

RabbitMQ refuses who declares a queue that exists in another way, and ends the channel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from postroad.core.errors import ConfigError
from postroad.services.kinds import Kind

NAME_BYTES_MAX = 255
"""The longest name of a queue or an exchange."""
EXPIRES_S = 120.0

# RabbitMQ takes more, but the library that declares queues does not.
_DECLARABLE = re.compile(r"[a-zA-Z0-9\-_.:@#,/+ ]*")
# Most of them are of no use to a node that comes back; the queue goes with its last listener.
_SHORT_LIVED = frozenset(
    {
        Kind.DISCONNECT,
        Kind.DISCOVER,
        Kind.EVENT_ACK,
        Kind.HEARTBEAT,
        Kind.INFO,
        Kind.PING,
        Kind.PONG,
        Kind.STREAM_PROGRESS,
    }
)


class QueueForm(NamedTuple):
    """How a queue is declared; besides, all are durable and open to everybody."""

    is_auto_deleted: bool
    arguments: Mapping[str, int]


class QueueForms:
    """How queues are declared, with the choices that all nodes must have in common.

    Args:
        expires_s: after what time without listeners the queues of a node for requests, responses
            and events are deleted, and those for balanced events; never if None.
        event_ttl_s: how long an event waits for a listener; as long as its queue is there if None.
        heartbeat_ttl_s: the same for heartbeats.

    Raises:
        ConfigError: a time is not above zero.
    """

    def __init__(
        self,
        *,
        expires_s: float | None = EXPIRES_S,
        event_ttl_s: float | None = None,
        heartbeat_ttl_s: float | None = None,
    ) -> None:
        self._expires = _argument("x-expires", "queue_expires_s", expires_s)
        self._event_ttl = _argument("x-message-ttl", "event_ttl_s", event_ttl_s)
        self._heartbeat_ttl = _argument("x-message-ttl", "heartbeat_ttl_s", heartbeat_ttl_s)

    def of(self, kind: Kind, *, is_balanced: bool = False) -> QueueForm:
        """The form of a queue for packets of a kind."""
        if kind is Kind.REQUEST and is_balanced:
            # What waits there is for any node, be there one or not.
            return QueueForm(False, {})
        if kind is Kind.EVENT:
            return QueueForm(False, self._expires | self._event_ttl)
        if kind is Kind.HEARTBEAT:
            return QueueForm(True, self._heartbeat_ttl)
        if kind in _SHORT_LIVED:
            return QueueForm(True, {})
        return QueueForm(False, self._expires)


def is_confirmed(kind: Kind, *, is_balanced: bool = False) -> bool:
    """Whether packets stay in the queue until they are dealt with, and come again otherwise."""
    return is_balanced or kind is Kind.REQUEST


def check_queue_name(name: str) -> str:
    """Refuse what RabbitMQ would not take as a name."""
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ConfigError(f"topic {name!r:.80} is longer than AMQP takes: {NAME_BYTES_MAX} bytes")
    return name


def can_be_declared(name: str) -> bool:
    """Whether there can be a queue of that name for us."""
    return _DECLARABLE.fullmatch(name) is not None


def check_own_queue_name(name: str) -> str:
    """Refuse what cannot be the name of a queue of ours."""
    if not can_be_declared(name):
        raise ConfigError(f"topic {name!r:.80} has a letter that names of queues may not have")
    return check_queue_name(name)


def _argument(name: str, option: str, seconds: float | None) -> dict[str, int]:
    if seconds is None:
        return {}
    milliseconds = round(seconds * 1_000)
    if milliseconds < 1:
        raise ConfigError(f"{option} is {seconds!r}; it must be above 0, or None")
    return {name: milliseconds}
