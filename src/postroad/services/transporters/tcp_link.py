"""One connection to another node. It is used in one direction: answers come on another."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, cast

from postroad.core import Address
from postroad.core.limits import KIB, MIB
from postroad.services.errors import QueueIsFullError

WAITING_BYTES_MAX = 16 * MIB
"""What waits for one node; more is refused."""
HIGH_BYTES = 1 * MIB
"""Whoever can wait does so while more than this waits for a node."""
SILENCE_S = 30
"""A machine that confirms nothing for so long is gone; nodes send no heartbeats."""

# So much is written even within a turn of the loop: the peer can begin with it.
_BATCH_BYTES = 64 * KIB
# What a packet weighs beside its bytes, so that many empty ones count too.
_PACKET_BYTES = 128
_PROBES = 3


class LinkOwner(Protocol):
    """Who is told of a connection."""

    def made(self, link: Link) -> None:
        """It is there."""
        ...

    def missed(self, link: Link, reason: str) -> None:
        """It could not be made."""
        ...

    def ended(self, link: Link, reason: Exception | None) -> None:
        """The other side has ended it."""
        ...


class Link(asyncio.Protocol):
    """A connection to one node, from the attempt to make it to its end."""

    def __init__(self, node_id: str, owner: LinkOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.node_id = node_id
        self.last_use = 0
        self.is_used = False
        """Whether something else than gossip was sent."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self._owner = owner
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        # Headers and packets that wait for the connection, for room in it, or for this turn of
        # the loop to end.
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._is_writable = False
        self._is_flush_due = False
        self._is_closing = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._dialing: asyncio.Task[None] | None = None
        # While nothing more can be written: looks whether the other side reads at all.
        self._watch: asyncio.TimerHandle | None = None
        # Why this side gave the connection up.
        self._failure: Exception | None = None
        self.unsent = 0
        """How many packets were lost with the connection, as far as this side can tell."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._transport is not None and not self._is_closing

    @property
    def is_idle(self) -> bool:
        """Whether there is a connection and nothing on its way into it."""
        transport = self._transport
        return transport is not None and not self._bytes and not transport.get_write_buffer_size()

    # For its user.

    def dial(self, addresses: list[Address], timeout_s: float) -> None:
        """Connect to the first address that answers."""
        self._dialing = self._loop.create_task(
            self._dial(addresses, timeout_s), name=f"dialing {self.node_id}"
        )

    def send(self, header: bytes, data: bytes) -> None:
        """Send a packet, with all others of this turn of the loop."""
        if self._bytes + len(data) > WAITING_BYTES_MAX:
            raise QueueIsFullError(
                f"{self._bytes} bytes wait for {self.node_id}; {WAITING_BYTES_MAX} is the most"
            )
        self._waiting.append(header)
        self._waiting.append(data)
        self._bytes += len(data) + _PACKET_BYTES
        if not self._is_writable:
            if self._bytes > HIGH_BYTES:
                self._has_room.clear()
        elif self._bytes > _BATCH_BYTES:
            self._flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    async def room(self) -> None:
        """Wait until not much waits to be sent."""
        await self._has_room.wait()

    def close(self) -> None:
        """End the connection when all is sent; one that is being made is made first."""
        self._is_closing = True
        if self._transport is not None and self._is_writable:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        self._is_closing = True
        if self._transport is not None:
            self._transport.abort()
        elif self._dialing is not None:
            self._dialing.cancel()
            self._end()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because transports of other loops need not derive from asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=HIGH_BYTES)
        _expect_signs_of_life(self._transport)
        self._is_writable = True
        self._owner.made(self)
        self.resume_writing()

    def pause_writing(self) -> None:
        self._is_writable = False
        self._has_room.clear()
        self._look_again()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._stop_watching()
        self._flush()
        if self._is_writable:
            self._has_room.set()
            if self._is_closing and self._transport is not None:
                self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Nobody answers on this connection, so it is nothing."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        was_closing = self._is_closing
        self._end()
        if not was_closing:
            self._owner.ended(self, self._failure or exc)

    # How it is done.

    async def _dial(self, addresses: list[Address], timeout_s: float) -> None:
        reason = "its address is not known"
        try:
            for address in addresses:
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._loop.create_connection(lambda: self, *address)
                    return
                except TimeoutError:
                    reason = f"{address} does not answer within {timeout_s:g} s"
                # Names that no host can have are errors of another sort.
                except (OSError, ValueError) as error:
                    reason = f"{address}: {error}"
                if self._transport is not None:
                    return  # It came too late, and its end will be told.
            if not self._is_closing:
                self._end()
                self._owner.missed(self, reason)
        finally:
            if self._transport is None:
                self._end()

    def _flush(self) -> None:
        self._is_flush_due = False
        transport = self._transport
        if transport is None or not self._is_writable or not self._waiting:
            return
        data = b"".join(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        transport.write(data)

    def _look_again(self) -> None:
        """Look later whether some of what waits in the transport was taken by then."""
        if self._transport is not None:
            size = self._transport.get_write_buffer_size()
            self._watch = self._loop.call_later(SILENCE_S, self._look, size)

    def _look(self, size_before: int) -> None:
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() >= size_before:
            self._failure = TimeoutError(f"it read nothing for {SILENCE_S} s")
            transport.abort()
        else:
            self._look_again()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def _end(self) -> None:
        self._is_closing = True
        self._is_writable = False
        self._stop_watching()
        self.unsent += len(self._waiting) // 2
        self._waiting.clear()
        self._bytes = 0
        self._has_room.set()
        if not self.closed.done():
            self.closed.set_result(None)


def _expect_signs_of_life(transport: asyncio.Transport) -> None:
    """Let the kernel find machines that are gone without a word."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    pause_s = max(1, SILENCE_S // (_PROBES + 1))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": pause_s,
        "TCP_KEEPINTVL": pause_s,
        "TCP_KEEPCNT": _PROBES,
        "TCP_USER_TIMEOUT": SILENCE_S * 1000,
    }
    for option, value in options.items():
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
