"""Packets as plain objects: what goes to and comes from any serializer.

Reading is lenient where nodes of the original system are: null is as good as absent, whole
numbers may be floats, nearly everything may be missing. It is strict where something would go
wrong later: no sender, no id to answer to, a part of a stream without a number.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from postroad.core.errors import MalformedPayloadError

from .errors import VersionRefused
from .kinds import GOSSIP, VERSION, Kind
from .packets import PACKETS, Packet, Request, Response

# Null is a value of these like any other.
_VALUES = frozenset({"params", "data"})
_DURATIONS = frozenset({"timeout"})
_STREAMED = (Request, Response)

_FIELDS = {
    it: tuple((field.name, field.encode_name) for field in msgspec.structs.fields(it))
    for it in PACKETS.values()
}


def to_wire(packet: Packet) -> dict[str, Any]:
    """The object to serialize, with its fields in the order of the original system."""
    return {
        on_wire: value
        for name, on_wire in _FIELDS[type(packet)]
        if (value := getattr(packet, name)) is not UNSET
    }


def from_wire(kind: Kind, wire: Any, *, checks_version: bool = True) -> Packet:
    """Read a packet of a kind; raises MalformedPayloadError for anything else."""
    try:
        packet = msgspec.convert(wire, PACKETS[kind])
    except msgspec.ValidationError:
        packet = read_leniently(kind, wire, checks_version=checks_version)
    check_packet(packet, checks_version=checks_version)
    return packet


def read_leniently(kind: Kind, wire: Any, *, checks_version: bool = True) -> Packet:
    """Read what is not in the strict form; raises MalformedPayloadError if it cannot be."""
    if not isinstance(wire, dict):
        raise MalformedPayloadError(f"no {kind}: not an object")
    checks_version = checks_version and kind not in GOSSIP
    repaired = _repaired(wire)
    if not checks_version:
        repaired.setdefault("ver", None)
    try:
        return msgspec.convert(repaired, PACKETS[kind])
    except msgspec.ValidationError as error:
        if checks_version and wire.get("ver") != VERSION:
            raise _refusal(wire.get("ver"), wire.get("sender")) from None
        raise MalformedPayloadError(f"no {kind}: {error}") from None


def check_packet(packet: Packet, *, checks_version: bool = True) -> None:
    """Raise MalformedPayloadError for what types cannot tell; gossip may be of any version."""
    if checks_version and packet.ver != VERSION and packet.KIND not in GOSSIP:
        raise _refusal(packet.ver, packet.sender)
    # Answers go to a topic with this name: a line break would be a command to some transporters.
    if not packet.sender.isprintable():
        raise MalformedPayloadError(f"no {packet.KIND}: sender {packet.sender!r}")
    if isinstance(packet, _STREAMED) and packet.stream is True and packet.seq is UNSET:
        raise MalformedPayloadError(f"no {packet.KIND}: a part of a stream without a number")


def _refusal(version: Any, sender: Any) -> VersionRefused:
    return VersionRefused(version, sender if isinstance(sender, str) else None)


def _repaired(wire: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _repaired_value(name, value)
        for name, value in wire.items()
        if (value is not None and not _is_no_cpu(name, value)) or name in _VALUES
    }


def _is_no_cpu(name: str, value: Any) -> bool:
    """A heartbeat counts, whatever it says of the CPU."""
    return name == "cpu" and not (type(value) in (int, float) and value >= 0)


def _repaired_value(name: str, value: Any) -> Any:
    if name in _VALUES or type(value) not in (int, float):
        return value
    if name in _DURATIONS and value < 0:
        return 0  # No limit, as for nodes of the original system.
    return int(value) if isinstance(value, float) and value.is_integer() else value
