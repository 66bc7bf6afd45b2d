"""The names of topics: what a node subscribes to, and where each packet goes.

A topic is the prefix, the word of the packet's kind, and for most a node: `MOL-dev.REQ.node-1`.
Transporters that balance on their own have two more: `MOL-dev.REQB.<action>` is taken by one of
the nodes with that action, `MOL-dev.EVENTB.<group>.<event>` by one of the nodes of that group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from postroad.core.errors import ConfigError, MalformedPayloadError

from .kinds import GOSSIP, Kind
from .schema import ServiceInfo

PREFIX = "MOL"
SEPARATOR = "."
TOPIC_LENGTH_MAX = 4_096

BALANCED_REQUEST = "REQB"
BALANCED_EVENT = "EVENTB"

BROADCAST = (Kind.DISCOVER, Kind.INFO, Kind.DISCONNECT, Kind.HEARTBEAT, Kind.PING)
"""Kinds that go to all nodes if they go to no single one."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SPACE = re.compile(r"\s")
_REST = re.compile(r"\*\*.*", re.DOTALL)

# What every node listens to, and whether only to what is for itself.
_SUBSCRIBED = (
    (Kind.EVENT, True),
    (Kind.REQUEST, True),
    (Kind.RESPONSE, True),
    (Kind.DISCOVER, False),
    (Kind.DISCOVER, True),
    (Kind.INFO, False),
    (Kind.INFO, True),
    (Kind.DISCONNECT, False),
    (Kind.HEARTBEAT, False),
    (Kind.PING, False),
    (Kind.PING, True),
    (Kind.PONG, True),
)
_ACKNOWLEDGED = ((Kind.EVENT_ACK, True), (Kind.STREAM_PROGRESS, True))
_KINDS = {kind.value: kind for kind in Kind if kind not in GOSSIP}
_REMEMBERED_MAX = 4_096


class Topic(NamedTuple):
    """What the name of a topic says. Balanced topics have no node."""

    kind: Kind
    node_id: str | None = None
    action: str | None = None
    """Of a balanced topic for requests."""
    group_and_event: str | None = None
    """Of a balanced topic for events; both may have dots, so only the packet can tell them."""

    @property
    def is_balanced(self) -> bool:
        return self.action is not None or self.group_and_event is not None


class BalancedTopic(NamedTuple):
    """A topic of which every message goes to one of those with the same queue."""

    name: str
    kind: Kind
    queue: str
    """The action, or the group."""


class Topics:
    """The names of the topics of one namespace, as one node sees them."""

    def __init__(self, node_id: str, namespace: str = "", *, separator: str = SEPARATOR) -> None:
        """`separator` is for MQTT, where it can be chosen; all nodes must choose the same."""
        _check(node_id, "node")
        _check(namespace, "namespace", may_be_empty=True)
        _check(separator, "separator")
        self.node_id = node_id
        self.namespace = namespace
        self._separator = separator
        self.prefix = f"{PREFIX}-{namespace}" if namespace else PREFIX
        self._begin = self.prefix + separator
        self._made: dict[tuple[Kind, str | None], str] = {}

    def __repr__(self) -> str:
        return f"<Topics {self._begin}* of {self.node_id!r}>"

    def name_of(self, kind: Kind, node_id: str | None = None) -> str:
        """The topic for packets of a kind to a node, or to all; raises ConfigError if none can be.

        The names of few nodes come again and again, so they are remembered.
        """
        return self._made.get((kind, node_id)) or self._make(kind, node_id)

    def for_request(self, action: str) -> str:
        """The balanced topic of an action."""
        return self._join(BALANCED_REQUEST, _check(action, "action"))

    def for_event(self, group: str, event: str) -> str:
        """The balanced topic of an event, or of a pattern of events, for a group."""
        return self._join(BALANCED_EVENT, _check(group, "group"), _check(event, "event"))

    def subscriptions(self, *, has_acks: bool = False) -> tuple[str, ...]:
        """What a node subscribes to before it asks who is there.

        `has_acks` adds what only nodes of this package send: EventAcks, and how far streams are.
        """
        subscribed = (*_SUBSCRIBED, *_ACKNOWLEDGED) if has_acks else _SUBSCRIBED
        return tuple(
            self.name_of(kind, self.node_id if is_targeted else None)
            for kind, is_targeted in subscribed
        )

    def balanced(self, services: Iterable[ServiceInfo]) -> Iterator[BalancedTopic]:
        """What a node with these services subscribes to where the transporter balances."""
        seen = set()
        for service in services:
            for topic in self._balanced(service):
                if topic not in seen:
                    seen.add(topic)
                    yield topic

    def parse(self, name: str) -> Topic:
        """What the name of a topic says; raises MalformedPayloadError if it is none of these."""
        if not name.startswith(self._begin) or len(name) > TOPIC_LENGTH_MAX:
            raise MalformedPayloadError(f"no topic of {self.prefix}: {name!r:.80}")
        word, separator, rest = name[len(self._begin) :].partition(self._separator)
        if separator and not rest:
            raise MalformedPayloadError(f"no topic: {name!r:.80} ends too early")
        if word == BALANCED_REQUEST and rest:
            return Topic(Kind.REQUEST, action=rest)
        if word == BALANCED_EVENT and rest:
            return Topic(Kind.EVENT, group_and_event=rest)
        kind = _KINDS.get(word)
        if kind is None or not (rest or kind in BROADCAST):
            raise MalformedPayloadError(f"no topic: {name!r:.80} is of no known kind")
        return Topic(kind, node_id=rest or None)

    def _balanced(self, service: ServiceInfo) -> Iterator[BalancedTopic]:
        for action in service.actions:
            yield BalancedTopic(self.for_request(action.name), Kind.REQUEST, action.name)
        for event in service.events:
            group = service.group_of(event)
            yield BalancedTopic(self.for_event(group, event.name), Kind.EVENT, group)

    def _make(self, kind: Kind, node_id: str | None) -> str:
        if node_id is None and kind not in BROADCAST:
            raise ConfigError(f"{kind} goes to a node, not to all")
        if kind in GOSSIP:
            raise ConfigError(f"{kind} has no topic")
        name = self._join(kind) if node_id is None else self._join(kind, _check(node_id, "node"))
        if len(self._made) >= _REMEMBERED_MAX:
            self._made.clear()
        self._made[kind, node_id] = name
        return name

    def _join(self, *parts: str) -> str:
        name = self._begin + self._separator.join(parts)
        if len(name) > TOPIC_LENGTH_MAX:
            raise ConfigError(f"a topic of {len(name)} characters; {TOPIC_LENGTH_MAX} is the most")
        return name


def nats_subject(topic: str) -> str:
    """A topic to publish to, as NATS takes it; raises ConfigError if it cannot be one there."""
    if _SPACE.search(topic):
        raise ConfigError(f"topic {topic!r:.200} has a space, which NATS does not take")
    tokens = topic.split(SEPARATOR)
    if "" in tokens:
        raise ConfigError(f"topic {topic!r:.200} has an empty part, which NATS does not take")
    if "*" in tokens or ">" in tokens:
        raise ConfigError(f"topic {topic!r:.200} would be many topics for NATS")
    return topic


def nats_pattern(topic: str) -> str:
    """A topic with a pattern of events, as NATS takes it in a subscription.

    `**` and everything after it becomes `>`; `*` means the same there. Whatever else is a pattern
    for Moleculer is a plain name for NATS: `is_heard_on_nats` tells.
    """
    if _SPACE.search(topic):
        raise ConfigError(f"topic {topic!r:.200} has a space, which NATS does not take")
    return _REST.sub(">", topic)


def is_heard_on_nats(pattern: str) -> bool:
    """Whether NATS gives a pattern of events all that Moleculer would; it may give more."""
    for token in pattern.split(SEPARATOR):
        if token.startswith("**"):
            return True
        if not token or "?" in token or ("*" in token and token != "*"):
            return False
    return True


def _check(name: str, what: str, *, may_be_empty: bool = False) -> str:
    """Refuse what would be a command, or nothing, to some transporter."""
    if not name and not may_be_empty:
        raise ConfigError(f"the {what} of a topic must not be empty")
    if found := _CONTROL.search(name):
        raise ConfigError(f"the {what} {name!r:.80} of a topic contains {found[0]!r}")
    return name
