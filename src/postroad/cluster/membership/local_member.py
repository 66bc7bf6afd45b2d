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
_LEAVE_STREAMS = 3
_LEAVE_DATAGRAMS = 8


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

    def __init__(self, context: MembershipContext, secret: bytes) -> None:
        self._context = context
        self._member_table = context.member_table
        self._secret = secret
        # Whether others should hear of it at once.
        self.gossip_now = False

    def publish(self) -> None:
        """Tell everybody, if they may know of this node yet."""
        if self._context.is_member:
            self._context.gossip_queue.add(self._member_table.local)
            self.gossip_now = True

    def requeue(self) -> None:
        """Tell what is said of this node once more, with whatever is sent next."""
        if self._context.is_member:
            self._context.gossip_queue.add(self._member_table.local)

    def refute(self, record: MemberRecord) -> None:
        """Have the last word over what was said of this node."""
        local = self._member_table.local
        incarnation = max(local.incarnation, record.incarnation) + 1
        self._member_table.set_local(msgspec.structs.replace(local, incarnation=incarnation))
        self.publish()

    def refute_properties(self, record: MemberRecord) -> None:
        """Have the last word about the properties, too."""
        local = self._member_table.local
        differs = record.properties is not None and record.properties != local.properties
        if record.version == local.version and differs:
            self.raise_properties_version(local.version + 1)
        else:
            self.raise_properties_version(record.version)

    def raise_properties_version(self, version: int) -> None:
        """Somebody heard of a version of the properties; no other must count higher."""
        local = self._member_table.local
        if version > local.version:
            self._member_table.set_local(msgspec.structs.replace(local, version=version + 1))
            self.publish()

    def change_properties(self, changes: Mapping[str, str | None]) -> None:
        """Change what others know of this node; None removes a property."""
        local = self._member_table.local
        merged = {**(local.properties or {}), **changes}
        remaining = {key: value for key, value in merged.items() if value is not None}
        properties = validate_properties(remaining, self._context.config)
        if properties == local.properties:
            return
        changed = msgspec.structs.replace(local, properties=properties, version=local.version + 1)
        self._member_table.set_local(changed)
        self._member_table.events.append(
            MembershipEvent(MembershipEventType.METADATA, to_member(changed), to_member(local))
        )
        self.publish()

    def send_leave(self) -> None:
        """Prove to some members that this node leaves; they pass it on."""
        if not self._context.is_member:
            return
        leave_record = msgspec.structs.replace(
            self._member_table.local,
            state=MemberState.LEFT,
            leave_secret=self._secret,
            properties=None,
        )
        recipients = self._context.sample_members(
            _LEAVE_STREAMS + _LEAVE_DATAGRAMS, with_suspects=True
        )
        for index, entry in enumerate(recipients):
            in_stream = index < _LEAVE_STREAMS
            self._context.send(
                entry.record.address, GossipPacket(records=[leave_record]), in_stream=in_stream
            )
