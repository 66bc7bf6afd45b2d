"""Transport of membership packets: by datagram where that is allowed, otherwise over TCP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from postroad.cluster.membership import OutgoingPacket
from postroad.core import Address, ThrottledLogger
from postroad.core.errors import (
    ConnectionClosedError,
    DuplicateNamePeerError,
    MessageTooLargeError,
    MessagingError,
    NotRunningError,
)
from postroad.net import DatagramService, MessagingService, PeerIfKnown
from postroad.net.datagrams import DatagramHandler

logger = logging.getLogger("postroad.cluster")

# Packets in flight over TCP; further ones are dropped, which the protocol tolerates.
_STREAMS_MAX = 128
# Similar warnings are logged once in this many seconds.
_WARN_INTERVAL_S = 60.0
# How long a leaving node waits for its last packets.
_DRAIN_S = 1.0


class PacketTransport:
    """Sends membership packets in the background."""

    def __init__(
        self,
        service: MessagingService,
        on_reply: Callable[[Address, bytes], None],
        on_duplicate_name_peer: Callable[[Address, DuplicateNamePeerError], None],
    ) -> None:
        self._service = service
        self._on_reply = on_reply
        self._on_duplicate_name_peer = on_duplicate_name_peer
        # Set while datagrams can be sent.
        self.datagrams: DatagramService | None = None
        self._listeners: dict[str, list[DatagramHandler]] = {}
        self._streams: dict[asyncio.Task[None], None] = {}
        self.failed = 0
        # The last error of a packet over TCP.
        self.last_failure = ""
        self._log = ThrottledLogger(logger, _WARN_INTERVAL_S)
        self.dropped = 0

    async def open_datagrams(self) -> None:
        """Open a datagram socket at the port of the service."""
        service = self._service
        datagrams = DatagramService(
            service.cluster,
            service.name,
            service.bound_address,
            service.address,
            secret=service.secret,
        )
        for subject, listeners in self._listeners.items():
            for listener in listeners:
                datagrams.subscribe(subject, listener)
        await datagrams.start()
        self.datagrams = datagrams

    def subscribe(self, subject: str, listener: DatagramHandler) -> None:
        """Call the listener for datagrams to the subject, as soon as datagrams are open."""
        self._listeners.setdefault(subject, []).append(listener)
        if self.datagrams is not None:
            self.datagrams.subscribe(subject, listener)

    def unsubscribe(self, subject: str) -> None:
        self._listeners.pop(subject, None)
        if self.datagrams is not None:
            self.datagrams.unsubscribe(subject)

    def send(self, send: OutgoingPacket, subject: str, *, timeout_s: float) -> None:
        """Send a packet by datagram or over TCP."""
        if self.datagrams is not None and not send.is_stream:
            self.send_datagram(send.address, subject, send.payload)
        elif len(self._streams) < _STREAMS_MAX:
            task = asyncio.ensure_future(self._send_over_tcp(send, subject, timeout_s))
            self._streams[task] = None
            task.add_done_callback(self._streams.pop)
        else:
            self.dropped += 1

    def send_datagram(self, address: Address, subject: str, payload: bytes) -> None:
        """Send a datagram; an error counts as a lost datagram."""
        if self.datagrams is None:
            return
        try:
            self.datagrams.send_nowait(address, subject, payload)
        except (MessageTooLargeError, NotRunningError, OSError) as error:
            self.dropped += 1
            logger.debug("datagram to %s dropped: %s", address, error)

    async def _send_over_tcp(self, send: OutgoingPacket, subject: str, timeout_s: float) -> None:
        service = self._service
        peer = None if send.peer is None else PeerIfKnown(send.peer)
        try:
            reply = await service.request(
                send.address, subject, send.payload, timeout=timeout_s, peer=peer
            )
        except DuplicateNamePeerError as error:
            self._on_duplicate_name_peer(send.address, error)
        except MessagingError as error:
            self.failed += 1
            self.last_failure = str(error)
            if isinstance(error, ConnectionClosedError) and not error.retryable:
                self._warn(send.address, error)
            else:
                logger.debug("packet to %s failed: %s", send.address, error)
        else:
            if reply:
                self._on_reply(send.address, reply)

    def _warn(self, address: Address, error: MessagingError) -> None:
        """Warn that a peer rejects this node until its configuration changes."""
        now = asyncio.get_running_loop().time()
        self._log.log(str(address), now, "cannot connect to %s: %s", address, error)

    async def drain(self) -> None:
        """Wait for packets in flight, for a limited time."""
        if self._streams:
            await asyncio.wait(list(self._streams), timeout=_DRAIN_S)

    async def close(self) -> None:
        """Cancel packets in flight and close the socket."""
        for task in list(self._streams):
            task.cancel()
        if self.datagrams is not None:
            await self.datagrams.stop()
