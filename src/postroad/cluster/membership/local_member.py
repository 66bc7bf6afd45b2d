"""This node's own record: properties, refutation, leave."""

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

# A leaving node notifies this many members over TCP, and this many more by datagram.
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
    """Return the record of a node that starts."""
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
    """Return a copy of the properties; raises ConfigError if they are not texts or too large."""
    if not isinstance(properties, Mapping):
        raise ConfigError(f"properties must be a mapping of strings to strings, not {properties!r}")
    for key, value in properties.items():
        if not (key and isinstance(key, str) and isinstance(value, str)):
            raise ConfigError(f"property {key!r}={value!r:.100} must be a string, as its name")
    try:
        size = properties_size(properties)
    except UnicodeEncodeError as error:
        raise ConfigError(f"properties cannot be encoded as UTF-8: {error}") from None
    if size > config.properties_bytes_max:
        raise ConfigError(
            f"properties of {size} bytes exceed the {config.properties_bytes_max} allowed"
        )
    return dict(properties)


class LocalMember:
    """This node's record, which no other node may change."""

    def __init__(self, context: MembershipContext, secret: bytes) -> None:
        self._context = context
        self._member_table = context.member_table
        self._secret = secret
        # Whether to gossip at once, ahead of the interval.
        self.gossip_now = False

    def publish(self) -> None:
        """Gossip the record at once, if this node is a member already."""
        if self._context.is_member:
            self._context.gossip_queue.add(self._member_table.local)
            self.gossip_now = True

    def requeue(self) -> None:
        """Queue the record again, to go with the next packets."""
        if self._context.is_member:
            self._context.gossip_queue.add(self._member_table.local)

    def refute(self, record: MemberRecord) -> None:
        """Refute a record of this node with a higher incarnation."""
        local = self._member_table.local
        incarnation = max(local.incarnation, record.incarnation) + 1
        self._member_table.set_local(msgspec.structs.replace(local, incarnation=incarnation))
        self.publish()

    def refute_properties(self, record: MemberRecord) -> None:
        """Refute properties of this node that it did not set, with a higher version."""
        local = self._member_table.local
        differs = record.properties is not None and record.properties != local.properties
        if record.version == local.version and differs:
            self.raise_properties_version(local.version + 1)
        else:
            self.raise_properties_version(record.version)

    def raise_properties_version(self, version: int) -> None:
        """Raise the version of the properties above a version that another node knows of."""
        local = self._member_table.local
        if version > local.version:
            self._member_table.set_local(msgspec.structs.replace(local, version=version + 1))
            self.publish()

    def change_properties(self, changes: Mapping[str, str | None]) -> None:
        """Merge changes into this node's properties; None removes a property."""
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
        """Send the leave record with its proof to some members, which pass it on."""
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
