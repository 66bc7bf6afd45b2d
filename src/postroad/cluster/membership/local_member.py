"""What a node says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from postroad.cluster.membership.config import MembershipConfig
from postroad.cluster.membership.context import MembershipContext
from postroad.cluster.membership.gossip import GossipPacket
from postroad.cluster.membership.members import (
    MemberRecord,
    MembershipEvent,
    MembershipEventType,
    MemberState,
    Properties,
    leave_digest,
    properties_size,
    to_member,
)
from postroad.core import Address
from postroad.core.errors import ConfigError

# A leaving node tells so many members in a way that arrives, and so many more by datagram.
_FAREWELLS = 3
_FAREWELL_DATAGRAMS = 8


def new_local_record(
    name: str,
    address: Address,
    *,
    instance: int,
    incarnation: int,
    secret: bytes,
    properties: Properties,
) -> MemberRecord:
    """A node as it begins."""
    return MemberRecord(
        name=name,
        instance=instance,
        host=address.host,
        port=address.port,
        incarnation=incarnation,
        state=MemberState.ALIVE,
        version=0,
        leave_digest=leave_digest(secret),
        properties=properties,
    )


def validate_properties(properties: Mapping[Any, Any], config: MembershipConfig) -> Properties:
    """A copy, if others can be expected to keep so much."""
    if not isinstance(properties, Mapping):
        raise ConfigError(f"properties must be a mapping of texts, not {properties!r}")
    for key, value in properties.items():
        if not (key and isinstance(key, str) and isinstance(value, str)):
            raise ConfigError(f"property {key!r} must be text with a text for a value")
    try:
        size = properties_size(properties)
    except UnicodeEncodeError:
        raise ConfigError("a property cannot be encoded as UTF-8") from None
    if size > config.properties_bytes_max:
        raise ConfigError(
            f"properties of {size} bytes exceed the {config.properties_bytes_max} allowed"
        )
    return dict(properties)


class LocalMember:
    """This node's record, which nobody else may change."""

    def __init__(self, voice: MembershipContext, secret: bytes) -> None:
        self._voice = voice
        self._roster = voice.roster
        self._secret = secret
        # Whether others should hear of it at once.
        self.gossip_now = False

    def announce(self) -> None:
        """Tell everybody, if they may know of this node yet."""
        if self._voice.is_member:
            self._voice.rumours.add(self._roster.local)
            self.gossip_now = True

    def requeue(self) -> None:
        """Tell what is said of this node once more, with whatever is sent next."""
        if self._voice.is_member:
            self._voice.rumours.add(self._roster.local)

    def refute(self, record: MemberRecord) -> None:
        """Have the last word over what was said of this node."""
        own = self._roster.local
        incarnation = max(own.incarnation, record.incarnation) + 1
        self._roster.set_local(msgspec.structs.replace(own, incarnation=incarnation))
        self.announce()

    def refute_properties(self, record: MemberRecord) -> None:
        """Have the last word about the properties, too."""
        own = self._roster.local
        is_other = record.properties is not None and record.properties != own.properties
        if record.version == own.version and is_other:
            self.raise_properties_version(own.version + 1)
        else:
            self.raise_properties_version(record.version)

    def raise_properties_version(self, version: int) -> None:
        """Somebody heard of a version of the properties; no other must count higher."""
        own = self._roster.local
        if version > own.version:
            self._roster.set_local(msgspec.structs.replace(own, version=version + 1))
            self.announce()

    def change_properties(self, changes: Mapping[str, str | None]) -> None:
        """Change what others know of this node; None removes a property."""
        own = self._roster.local
        merged = {**(own.properties or {}), **changes}
        wanted = {key: value for key, value in merged.items() if value is not None}
        properties = validate_properties(wanted, self._voice.config)
        if properties == own.properties:
            return
        changed = msgspec.structs.replace(own, properties=properties, version=own.version + 1)
        self._roster.set_local(changed)
        self._roster.changes.append(
            MembershipEvent(MembershipEventType.METADATA, to_member(changed), to_member(own))
        )
        self.announce()

    def send_leave(self) -> None:
        """Prove to some members that this node leaves; they pass it on."""
        if not self._voice.is_member:
            return
        farewell = msgspec.structs.replace(
            self._roster.local, state=MemberState.LEFT, leave_secret=self._secret, properties=None
        )
        told = self._voice.sample_members(_FAREWELLS + _FAREWELL_DATAGRAMS, with_suspects=True)
        for place, entry in enumerate(told):
            in_stream = place < _FAREWELLS
            self._voice.send(
                entry.record.address, GossipPacket(records=[farewell]), in_stream=in_stream
            )
