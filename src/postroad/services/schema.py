"""What a node says of itself: its services, their actions and events, and how they are named.

These structs are the body of INFO packets. A definition keeps every field that was said, also
those that mean nothing here, so that others can read them from the registry.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from .js_text import js_number

NAME_LENGTH_MAX = 255
"""Names of services, actions, events and groups become parts of topics, which have limits."""
INTERNAL_PREFIX = "$"
"""What begins so belongs to the node: `$node.list`."""

# The longest that timers of the original system can wait for.
_TIMEOUT_MS_MAX = 2**31 - 1

Version = int | float | str
Definition = Mapping[str, Any]


class Visibility(enum.Enum):
    """Who may call an action."""

    PUBLISHED = "published"
    """Everybody, and gateways may show it to the world."""
    PUBLIC = "public"
    """Everybody, local and remote."""
    PROTECTED = "protected"
    """Services of the same node."""
    PRIVATE = "private"
    """The service itself."""


class ActionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An action as others see it."""

    name: str
    """The full name, by which it is called: `v2.posts.find`."""
    raw_name: str = ""
    """The name within its service: `find`."""
    definition: Definition = msgspec.field(default_factory=dict)
    """Everything else that was said of it: params, cache, timeout, visibility, strategy, rest."""

    @property
    def visibility(self) -> Visibility | None:
        """Who may call it; None if that was said in a word nobody knows, which means nobody."""
        said = self.definition.get("visibility")
        if said is None:
            return Visibility.PUBLISHED
        try:
            return Visibility(said)
        except ValueError:
            return None

    @property
    def is_remote(self) -> bool:
        """Whether other nodes may choose it for their calls."""
        return self.visibility in (Visibility.PUBLISHED, Visibility.PUBLIC)

    @property
    def timeout_s(self) -> float | None:
        """Time for a call whose caller names none; 0 is no limit, None if nothing was said."""
        said = self.definition.get("timeout")
        if isinstance(said, bool) or not isinstance(said, int | float):
            return None
        return said / 1000 if 0 <= said <= _TIMEOUT_MS_MAX else None

    def written(self) -> dict[str, Any]:
        """As it is in an INFO."""
        return {**self.definition, "rawName": self.raw_name, "name": self.name}


class EventInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription to events as others see it."""

    name: str
    """The pattern of the names: `user.*`."""
    group: str = ""
    """The group that gets each event once; empty for the name of the service."""
    definition: Definition = msgspec.field(default_factory=dict)
    """Everything else that was said of it."""

    def written(self) -> dict[str, Any]:
        """As it is in an INFO."""
        group = {"group": self.group} if self.group else {}
        return {**self.definition, **group, "name": self.name}


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A service as others see it."""

    name: str
    full_name: str
    version: Version | None = None
    settings: Definition = msgspec.field(default_factory=dict)
    metadata: Definition = msgspec.field(default_factory=dict)
    actions: tuple[ActionInfo, ...] = ()
    events: tuple[EventInfo, ...] = ()

    @property
    def is_internal(self) -> bool:
        """Whether it belongs to the node rather than to its user."""
        return self.name.startswith(INTERNAL_PREFIX)

    def group_of(self, event: EventInfo) -> str:
        """The group of one of its subscriptions."""
        return event.group or self.name


class ClientInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The software of a node."""

    type: str = ""
    version: str = ""
    lang_version: str = ""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it describes itself."""

    instance_id: str
    """Tells one life of a node from the next."""
    seq: int = 1
    """Grows with every change of the services during one life."""
    services: tuple[ServiceInfo, ...] = ()
    ip_list: tuple[str, ...] = ()
    hostname: str = ""
    client: ClientInfo = ClientInfo()
    config: Definition = msgspec.field(default_factory=dict)
    metadata: Definition = msgspec.field(default_factory=dict)
    port: int | None = None
    """Where it listens; told by nodes that speak TCP to each other, by no others."""


def full_name_of(name: str, version: Version | None, *, has_prefix: bool = True) -> str:
    """The name of a service with its version: `v2.posts` for the number, `beta.posts` for a text.

    `has_prefix` is false for services with the setting `$noVersionPrefix`.
    """
    if version is None or not has_prefix:
        return name
    prefix = version if isinstance(version, str) else f"v{js_number(version)}"
    return f"{prefix}.{name}"


def action_name_of(full_name: str, raw_name: str, *, has_prefix: bool = True) -> str:
    """The full name of an action; `has_prefix` is false with `$noServiceNamePrefix`."""
    return f"{full_name}.{raw_name}" if has_prefix else raw_name


def fault_of_name(name: object) -> str | None:
    """What is wrong with a name, None if nothing is."""
    if not isinstance(name, str):
        return f"a name must be a text, not {type(name).__name__}"
    if not name:
        return "a name must not be empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"a name of {len(name)} characters is longer than {NAME_LENGTH_MAX}"
    return None
