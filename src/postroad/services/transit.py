"""Packets on their way: between a broker that knows packets and a transporter that knows bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from postroad.core import ThrottledLogger
from postroad.core.errors import MalformedPayloadError

from .errors import VersionRefused
from .kinds import Kind
from .middleware import Middleware, wrapped
from .packets import Packet
from .serializers import Serializer
from .topics import Topics
from .transporters import Transporter

logger = logging.getLogger("postroad.services")

_LOG_INTERVAL_S = 10.0

Done = Callable[[], None]
Receiver = Callable[[Packet, Done | None], None]


class TransitStatistics(msgspec.Struct):
    """What a node sent and received."""

    packets_sent: int = 0
    bytes_sent: int = 0
    packets_received: int = 0
    bytes_received: int = 0
    malformed: int = 0
    """Packets that could not be read."""
    versions_refused: int = 0
    """Packets of other versions of the protocol."""
    refuted: int = 0
    """Times that a node was said to be gone or changed, and said itself that it is not."""
    failures: int = 0
    """Packets whose handling failed for reasons of this node."""


class Transit:
    """Serializes what goes out, reads what comes in, and hands it to whoever it is for."""

    def __init__(
        self,
        transporter: Transporter,
        serializer: Serializer,
        topics: Topics,
        middlewares: Sequence[Middleware] = (),
        *,
        clock: Callable[[], float],
    ) -> None:
        self.transporter = transporter
        self.serializer = serializer
        self.topics = topics
        self.statistics = TransitStatistics()
        self.arriving_bytes = 0
        """The size of the packet that is handled now."""
        self._receivers: Mapping[Kind, Receiver] = {}
        self._clock = clock
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self._outgoing = wrapped(middlewares, "transporter_send", _unchanged_to)
        self._incoming = wrapped(middlewares, "transporter_receive", _unchanged)
        self._on_up: Callable[[bool], None] = lambda is_again: None
        self._on_down: Callable[[str], None] = lambda reason: None
        self._on_lost: Callable[[str, bool], None] = lambda node_id, is_unexpected: None
        transporter.bind(topics, self)

    def attach(
        self,
        receivers: Mapping[Kind, Receiver],
        *,
        on_up: Callable[[bool], None],
        on_down: Callable[[str], None],
        on_lost: Callable[[str, bool], None],
    ) -> None:
        """Say who gets which packets, and who hears of connections. Called once, before any."""
        self._receivers = receivers
        self._on_up = on_up
        self._on_down = on_down
        self._on_lost = on_lost

    @property
    def is_connected(self) -> bool:
        """Whether packets can be sent now."""
        return self.transporter.is_connected

    # Out.

    def send(self, packet: Packet, node_id: str | None = None) -> None:
        """Send a packet to a node, or to all.

        Raises:
            UnsendablePacket: something in it cannot be serialized.
            BrokerDisconnectedError, QueueIsFullError, MessageTooLargeError:
                as `Transporter.publish`.
        """
        self.send_sized(packet, node_id)

    def send_sized(self, packet: Packet, node_id: str | None = None) -> int:
        """As `send`; returns how many bytes it took."""
        data = self._outgoing(node_id, self.serializer.serialize(packet))
        self.transporter.publish(packet.KIND, node_id, data)
        statistics, size = self.statistics, len(data)
        statistics.packets_sent += 1
        statistics.bytes_sent += size
        return size

    def send_balanced(self, packet: Packet, topic: str) -> None:
        """Send a packet to one of those who listen to a balanced topic; raises as `send`."""
        data = self._outgoing(None, self.serializer.serialize(packet))
        self.transporter.publish_balanced(topic, packet.KIND, data)
        self.statistics.packets_sent += 1
        self.statistics.bytes_sent += len(data)

    # In.

    def received(
        self, kind: Kind, data: bytes, done: Done | None = None, sender: str | None = None
    ) -> None:
        """A packet came from the transporter, which may know who sent it."""
        statistics = self.statistics
        statistics.packets_received += 1
        self.arriving_bytes = size = len(data)
        statistics.bytes_received += size
        try:
            packet = self.serializer.deserialize(kind, self._incoming(data))
            if sender is not None and packet.sender != sender:
                raise MalformedPayloadError(f"a {kind} of {packet.sender!r} that {sender!r} sent")
            receiver = self._receivers.get(kind)
            if receiver is not None:
                receiver(packet, done)
                return
        except VersionRefused as error:
            statistics.versions_refused += 1
            self._warn(f"version {error.sender}", "refused %s", error)
        except MalformedPayloadError as error:
            statistics.malformed += 1
            self._warn(f"malformed {kind}", "dropped a packet: %s", error)
        except Exception as error:
            statistics.failures += 1
            self._warn(f"failed {kind}", "handling a %s failed: %r", kind, error)
            logger.debug("handling a %s failed", kind, exc_info=True)
        if done is not None:
            done()

    def connected(self, *, is_again: bool) -> None:
        self._on_up(is_again)

    def disconnected(self, reason: str) -> None:
        self._on_down(reason)

    def node_lost(self, node_id: str, *, is_unexpected: bool) -> None:
        self._on_lost(node_id, is_unexpected)

    def _warn(self, key: str, text: str, *args: object) -> None:
        self._log.log(key, self._clock(), text, *args)


def _unchanged_to(node_id: str | None, data: bytes) -> bytes:
    return data


def _unchanged(data: bytes) -> bytes:
    return data
