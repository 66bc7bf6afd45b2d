"""One side of a talk: we are `py-1`, the node of the original system is `js-1`."""

from __future__ import annotations

from itertools import count
from typing import Any

from postroad.services.info_form import write_info
from postroad.services.kinds import VERSION, Kind
from postroad.services.packet_form import to_wire
from postroad.services.packets import PACKETS, Info, Packet, Request
from postroad.services.schema import ActionInfo, EventInfo, NodeInfo, ServiceInfo
from postroad.services.serializers import JsonSerializer, Serializer
from postroad.services.serializers.buffers import with_buffers
from tests.support.services.javascript import Peer, marked

US = "py-1"
THEM = "js-1"

_seqs = count(2)
_ids = count(1)

SERVICE = ServiceInfo(
    name="desk",
    full_name="v1.desk",
    version=1,
    settings={"colour": "blue"},
    actions=(
        ActionInfo(name="v1.desk.ask", raw_name="ask", definition={"params": {"a": "number"}}),
        ActionInfo(name="v1.desk.send", raw_name="send"),
    ),
    events=(EventInfo(name="desk.*"), EventInfo(name="both.**", group="shared")),
)


class Talk:
    """Packets to and from the other node, checked on their way."""

    def __init__(self, peer: Peer, serializer: Serializer) -> None:
        self.peer = peer
        self.serializer = serializer
        self._is_json = isinstance(serializer, JsonSerializer)

    def introduce(self) -> Info:
        """Tell the other node of us and our service."""
        info = self.info()
        self.tell(info)
        return info

    def info(self) -> Info:
        body = write_info(
            NodeInfo(instance_id="first", seq=next(_seqs), services=(SERVICE,), hostname="here")
        )
        return Info(
            services=body["services"],
            hostname=body["hostname"],
            client=body["client"],
            instance_id=body["instanceID"],
            seq=body["seq"],
            ver=VERSION,
            sender=US,
        )

    def request(self, action: str, params: Any, **fields: Any) -> Request:
        id = f"ours-{next(_ids)}"
        return Request(
            id=id, action=action, params=params, request_id=id, ver=VERSION, sender=US, **fields
        )

    def tell(self, packet: Packet) -> None:
        """Let the other node handle a packet of ours."""
        self.peer.ask("receive", kind=packet.KIND.value, hex=self.write(packet).hex())

    def write(self, packet: Packet) -> bytes:
        """Serialize a packet, and see that the other side reads what we mean."""
        data = self.serializer.serialize(packet)
        wire = to_wire(packet)
        assert self.peer.ask("read", hex=data.hex()) == self._as_read_there(wire)
        if self._is_json:
            assert self.peer.ask("write", payload=marked(wire)) == data.hex()
        return data

    def hear(self, kind: Kind) -> list[Any]:
        """Take what the other node has sent, once it has, and see that we read what it means."""
        return [self.read(kind, data) for data in self.peer.take(kind.value)]

    def hear_one(self, kind: Kind) -> Any:
        (packet,) = self.hear(kind)
        return packet

    def read(self, kind: Kind, data: bytes) -> Packet:
        packet = self.serializer.deserialize(kind, data)
        assert type(packet) is PACKETS[kind]
        wire = to_wire(packet)
        theirs = self.peer.ask("read", hex=data.hex())
        is_ordered = list(theirs)[-1] == "sender"  # Not so when a stream of theirs breaks off.
        has_all = "data" in theirs or "data" not in wire
        theirs = theirs if has_all else {**theirs, "data": None}  # Nothing there is None here.
        assert self._as_read_there(wire) == theirs
        if self._is_json and is_ordered and has_all:
            assert self.serializer.serialize(packet) == data
        return packet

    def _as_read_there(self, wire: Any) -> Any:
        return with_buffers(wire) if self._is_json else wire
