"""A transport of the memory network: what asyncio's transports of real sockets do."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from postroad.testing.simulation.network.hosts import SimHost, SimTransport, SocketAddress, complete
from postroad.testing.simulation.network.pipe import Pipe, StreamEnd

if TYPE_CHECKING:
    from postroad.testing.simulation.loop import SimLoop
    from postroad.testing.simulation.network.network import MemoryNetwork
    from postroad.testing.simulation.network.server import MemoryServer

_READ_BYTES_MAX = 256 * 1024
# How often a host with a read rate reads.
_SLOW_READ_S = 0.05
_HIGH_WATER_BYTES = 64 * 1024


def reset_error() -> ConnectionResetError:
    """Return the error of the system for a connection that the peer reset."""
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class MemoryTransport(SimTransport, asyncio.Transport):
    """One end of a simulated TCP connection.

    The network calls `on_...`, `reset_by_kernel`, `close_by_kernel` and `power_off` from outside
    the process; all other methods run in the process.
    """

    incoming: Pipe
    outgoing: Pipe

    def __init__(
        self,
        network: MemoryNetwork,
        host: SimHost,
        context: Context,
        local: SocketAddress,
        remote: SocketAddress,
        server: MemoryServer | None = None,
    ) -> None:
        names = {"sockname": local, "peername": remote, "socket": None}
        super().__init__(names)
        self._loop: SimLoop = network.loop
        self._network = network
        self.host = host
        self._context = context
        self.local, self.remote = local, remote
        self._server = server
        # Reading starts after `connection_made`.
        self._is_reading_started = False
        self._is_paused = False
        self._is_read_scheduled = False
        # A host with a read rate reads no earlier.
        self._next_read = 0.0
        self._saw_eof = False
        self._buffer: deque[memoryview] = deque()
        self._buffered_bytes = 0
        self._high_bytes = _HIGH_WATER_BYTES
        self._low_bytes = _HIGH_WATER_BYTES // 4
        self._is_protocol_paused = False
        self._is_write_scheduled = False
        self._is_eof_requested = False
        self._is_end_sent = False
        # Set when `connection_lost` is scheduled; and when the socket is closed.
        self._is_lost = False
        self.is_socket_closed = False
        # Whether `connection_made` has been called.
        self._is_connection_made = False
        host.sockets[self] = None

    # Lifecycle.

    def start(self, protocol: asyncio.BaseProtocol, ready: asyncio.Future[None] | None) -> None:
        """Call `connection_made`, start reading, then complete `ready`."""
        self._protocol = protocol
        self._call_soon(self._on_connection_made)
        self._call_soon(self._start_reading)
        if ready is not None:
            self._call_soon(complete, ready)

    def _on_connection_made(self) -> None:
        self._is_connection_made = True
        self.get_protocol().connection_made(self)

    def close(self) -> None:
        """Stop reading, write the buffer, then close."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._buffer:
            self._lose(None)

    def abort(self) -> None:
        """Close at once and drop the buffer."""
        self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_closing = self._is_lost = True
        self._buffer.clear()
        self._buffered_bytes = 0
        self._call_soon(self._report_loss, error)

    def _report_loss(self, error: Exception | None) -> None:
        if self._protocol is not None and not self._is_connection_made:
            # The connection was reset before `connection_made`, which must come first.
            self._call_soon(self._report_loss, error)
            return
        if isinstance(error, OSError):
            peer = f"{self.remote[0]}:{self.remote[1]}"
            self._network.log(self.host, "lost", f"the connection with {peer}: {error.strerror}")
        try:
            if self._protocol is not None:
                self._protocol.connection_lost(error)
        finally:
            self._close_socket()
            if self._server is not None:
                self._server.on_transport_closed(self)

    def _close_socket(self) -> None:
        """Close as the kernel does: with a reset if received data was not read."""
        if self.is_socket_closed:
            return
        self.is_socket_closed = True
        self._release()
        self._send_end(StreamEnd.RESET if self.incoming.arrived_bytes else StreamEnd.FIN)

    def _send_end(self, mark: StreamEnd) -> None:
        if mark is StreamEnd.RESET or not self._is_end_sent:
            self._is_end_sent = True
            self.outgoing.finish(mark)

    def _release(self) -> None:
        self.host.sockets.pop(self, None)
        if self._server is None:
            self.host.dialed.release(*self.local)

    # Reading.

    def _start_reading(self) -> None:
        self._is_reading_started = True
        self.on_readable()

    def is_reading(self) -> bool:
        """Whether received data is passed to the protocol."""
        return not self._is_closing and not self._is_paused

    def pause_reading(self) -> None:
        """Stop passing received data to the protocol."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Pass received data to the protocol again."""
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self.on_readable()

    def _read(self) -> None:
        self._is_read_scheduled = False
        if not self._is_reading_started or not self.is_reading():
            return
        incoming = self.incoming
        if incoming.arrived_bytes:
            size = self._deliver()
            if self.host.read_rate is not None:
                self._next_read = self._loop.time() + size / self.host.read_rate
            if incoming.arrived_bytes or incoming.end is not None:
                self._schedule_read()
        elif incoming.end is StreamEnd.RESET:
            self._lose(reset_error())
        elif incoming.end is StreamEnd.FIN and not self._saw_eof:
            self._saw_eof = True
            self._deliver_eof()

    def _deliver(self) -> int:
        """Pass received data to the protocol; return the number of bytes."""
        size_max = _READ_BYTES_MAX
        if self.host.read_rate is not None:
            size_max = max(1, int(self.host.read_rate * _SLOW_READ_S))
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            return self._fill(protocol, size_max)
        data = self.incoming.read(size_max)
        try:
            cast("asyncio.Protocol", protocol).data_received(data)
        except Exception as error:
            self._fail(error, "data_received")
        return len(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, size_max: int) -> int:
        callback = "get_buffer"
        data = b""
        try:
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            if not buffer:
                raise RuntimeError("get_buffer() returned an empty buffer")
            data = self.incoming.read(min(len(buffer), size_max))
            buffer[: len(data)] = data
            callback = "buffer_updated"
            protocol.buffer_updated(len(data))
        except Exception as error:
            self._fail(error, callback)
        return len(data)

    def _deliver_eof(self) -> None:
        try:
            stays_open = cast("asyncio.Protocol", self._protocol).eof_received()
        except Exception as error:
            self._fail(error, "eof_received")
            return
        if not stays_open:
            self.close()

    def _schedule_read(self) -> None:
        if self._is_read_scheduled:
            return
        self._is_read_scheduled = True
        if self._next_read <= self._loop.time():
            self._call_soon(self._read)
        else:
            self._loop.call_at(self._next_read, self._read, context=self._context)

    def _fail(self, error: BaseException, callback: str) -> None:
        """Report an exception of the protocol, and close."""
        self._report(f"Fatal error: protocol.{callback}() call failed.", error)
        self._lose(error if isinstance(error, Exception) else None)

    def _report(self, message: str, error: BaseException) -> None:
        context = {"exception": error, "transport": self, "protocol": self._protocol}
        self._loop.call_exception_handler({"message": message, **context})

    # Writing.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send data, and buffer what the connection cannot carry now."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"data argument must be a bytes-like object, not {type(data).__name__!r}"
            )
        if self._is_eof_requested:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._is_lost or not data:
            return
        if self.incoming.end is StreamEnd.RESET:
            self._lose(reset_error())
            return
        data = bytes(data)
        sent = 0 if self._buffer else self.outgoing.send(data)
        if sent < len(data):
            self._buffer.append(memoryview(data)[sent:])
            self._buffered_bytes += len(data) - sent
            self._pause_protocol()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Close the sending side after the buffer is written; reading continues."""
        if self._is_closing or self._is_eof_requested:
            return
        self._is_eof_requested = True
        if not self._buffer:
            self._send_end(StreamEnd.FIN)

    def get_write_buffer_size(self) -> int:
        return self._buffered_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and high water marks."""
        return (self._low_bytes, self._high_bytes)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_bytes, self._low_bytes = high, low
        self._pause_protocol()

    def _flush(self) -> None:
        self._is_write_scheduled = False
        while self._buffer:
            data = self._buffer[0]
            sent = self.outgoing.send(data)
            self._buffered_bytes -= sent
            if sent < len(data):
                self._buffer[0] = data[sent:]
                break
            self._buffer.popleft()
        self._resume_protocol()
        if not self._buffer and not self._is_lost:
            if self._is_eof_requested:
                self._send_end(StreamEnd.FIN)
            if self._is_closing:
                self._lose(None)

    def _pause_protocol(self) -> None:
        if self._buffered_bytes > self._high_bytes and not self._is_protocol_paused:
            self._is_protocol_paused = True
            self._notify_protocol("pause_writing")

    def _resume_protocol(self) -> None:
        if self._is_protocol_paused and self._buffered_bytes <= self._low_bytes:
            self._is_protocol_paused = False
            self._notify_protocol("resume_writing")

    def _notify_protocol(self, callback: str) -> None:
        try:
            getattr(self._protocol, callback)()
        except Exception as error:
            self._report(f"protocol.{callback}() failed", error)

    # Called by the network.

    def on_readable(self) -> None:
        """Handle that data or the end of the stream has arrived."""
        if self.incoming.end is StreamEnd.RESET and (
            self._is_closing or self.get_write_buffer_size()
        ):
            # The buffer cannot be written any more.
            self._call_soon(self._lose, reset_error())
        if self._is_reading_started and not self._is_paused and not self._is_closing:
            self._schedule_read()

    def on_capacity(self) -> None:
        """Handle that the connection can carry more data."""
        if self._buffer and not self._is_write_scheduled:
            self._is_write_scheduled = True
            self._call_soon(self._flush)

    def reset_by_kernel(self, error: OSError) -> None:
        """Handle that the kernel has reset the connection."""
        if not self.is_socket_closed:
            self.is_socket_closed = True
            self._release()
            self._lose(error)

    def close_by_kernel(self) -> None:
        """Close because the process ended; data that it had buffered is lost."""
        self._is_closing = self._is_lost = True
        self._close_socket()

    def power_off(self) -> None:
        """Drop everything without notifying process or peer: the host has no power."""
        self._is_closing = self._is_lost = self.is_socket_closed = True
        self.outgoing.discard_in_flight()

    def _call_soon(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)

    def __repr__(self) -> str:
        state = "closed" if self.is_socket_closed else "closing" if self._is_closing else "open"
        return f"<MemoryTransport {self.local} to {self.remote} {state}>"
