"""Connections that other nodes have made to this one. They are read, and never written to."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from postroad.core import ThrottledLogger
from postroad.services.kinds import Kind

from .tcp_addresses import plain_host
from .tcp_frames import FrameReader

logger = logging.getLogger("postroad.services.transporters")

ARRIVALS_MAX = 4_096
"""Connections from others; more are closed at once."""
FRAME_TIMEOUT_S = 30.0
"""A connection on which nothing came for so long, though a frame should, is closed. One that is
between frames stays: its node would take the end for the end of this one."""

_SWEEP_S = 10.0
_LOG_INTERVAL_S = 10.0
_BACKLOG = 512

Received = Callable[[Kind, bytes], None]


class Arrival(asyncio.Protocol):
    """A connection from some node."""

    def __init__(self, arrivals: Arrivals, reader: FrameReader, now: float) -> None:
        self._arrivals = arrivals
        self._reader = reader
        self._last_data = now
        self._is_peer = False
        self._transport: asyncio.Transport | None = None
        self.host = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        name = transport.get_extra_info("peername")
        self.host = plain_host(str(name[0])) if name else ""
        self._arrivals.add(self)

    def data_received(self, data: bytes) -> None:
        self._last_data = self._arrivals.now()
        packets = self._reader.receive(data)
        if packets:
            self._is_peer = True
            self._arrivals.hand_over(packets, self.host)
        failure = self._reader.failure
        if failure is not None and self._transport is not None:
            self._arrivals.refuse(self, str(failure))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._arrivals.remove(self)

    def is_stuck(self, now: float) -> bool:
        """Whether more should have come long ago."""
        owes = self._reader.is_within_frame or not self._is_peer
        return owes and now - self._last_data > FRAME_TIMEOUT_S

    def close(self) -> None:
        """End the connection; the node at its other end takes this one for gone."""
        if self._transport is not None:
            self._transport.close()


class Arrivals:
    """The socket that this node listens on, and all connections that came by it.

    Attributes:
        speaker: the host whose packet is being handed over now; None if none is.
    """

    def __init__(self, received: Received, *, packet_bytes_max: int) -> None:
        self._received = received
        self._packet_bytes_max = packet_bytes_max
        self._loop = asyncio.get_running_loop()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._all: set[Arrival] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._log = ThrottledLogger(logger, _LOG_INTERVAL_S)
        self.now = self._loop.time
        self.speaker: str | None = None

    def __len__(self) -> int:
        return len(self._all)

    async def listen(self, host: str | None, port: int) -> int:
        """Listen on a port, or on any for 0; returns which. Raises OSError if it is taken."""
        sock = _listening_socket(host, port)
        try:
            self._server = await self._loop.create_server(self._arrive, sock=sock, backlog=_BACKLOG)
        except BaseException:
            sock.close()
            raise
        self._sweep = self._loop.call_later(_SWEEP_S, self._end_stuck)
        return int(sock.getsockname()[1])

    async def close(self) -> None:
        """Listen no more, and end all connections."""
        server, self._server = self._server, None
        if server is None:
            return
        if self._sweep is not None:
            self._sweep.cancel()
        server.close()
        for arrival in [*self._all]:
            arrival.close()
        await self._is_empty.wait()
        await server.wait_closed()

    # Told by arrivals.

    def add(self, arrival: Arrival) -> None:
        """A connection was made."""
        self._all.add(arrival)
        self._is_empty.clear()
        if self._server is None:
            arrival.close()
        elif len(self._all) > ARRIVALS_MAX:
            self.refuse(arrival, f"there are {ARRIVALS_MAX} connections already")

    def remove(self, arrival: Arrival) -> None:
        """A connection has ended."""
        self._all.discard(arrival)
        if not self._all:
            self._is_empty.set()

    def hand_over(self, packets: list[tuple[Kind, bytes]], host: str) -> None:
        """Packets came from a host."""
        self.speaker = host
        try:
            received = self._received
            for kind, data in packets:
                received(kind, data)
        finally:
            self.speaker = None

    def refuse(self, arrival: Arrival, reason: str) -> None:
        """Close a connection; nobody else is harmed."""
        self._log.log(
            arrival.host,
            self.now(),
            "closing the connection from %s: %s",
            arrival.host,
            reason,
        )
        arrival.close()

    # How it is done.

    def _arrive(self) -> Arrival:
        return Arrival(self, FrameReader(self._packet_bytes_max), self.now())

    def _end_stuck(self) -> None:
        self._sweep = self._loop.call_later(_SWEEP_S, self._end_stuck)
        now = self.now()
        for arrival in [it for it in self._all if it.is_stuck(now)]:
            self.refuse(arrival, f"nothing came for {FRAME_TIMEOUT_S:g} s")


def _listening_socket(host: str | None, port: int) -> socket.socket:
    """A socket for one host, or for all addresses of this machine."""
    if host is not None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    elif socket.has_dualstack_ipv6():
        sock = socket.create_server(
            ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
        )
    else:
        sock = socket.create_server(("0.0.0.0", port), backlog=_BACKLOG)
    sock.setblocking(False)
    return sock
