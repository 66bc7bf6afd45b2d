"""The reading half of a transport of the memory network."""

from __future__ import annotations

import asyncio
import errno
import os
from abc import abstractmethod
from contextvars import Context
from typing import TYPE_CHECKING, Any, cast

from .hosts import SimHost
from .pipe import Pipe, StreamEnd

if TYPE_CHECKING:
    from postroad.testing.loop import SimLoop

_READ_BYTES_MAX = 256 * 1024
# A host that reads slowly reads so often.
_SLOW_READ_S = 0.05


def reset_error() -> ConnectionResetError:
    """What the system says of a connection that the peer reset."""
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


class ReadingHalf(asyncio.Transport):
    """Hands what arrives to a protocol, plain or buffered."""

    incoming: Pipe

    def __init__(
        self, loop: SimLoop, host: SimHost, context: Context, names: dict[str, Any]
    ) -> None:
        super().__init__(names)
        self._loop = loop
        self.host = host
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        # Reading begins once the protocol knows of the connection.
        self._has_begun = False
        self._is_paused = False
        self._is_read_planned = False
        # A host that reads slowly reads no earlier.
        self._next_read = 0.0
        self._saw_eof = False
        self._is_closing = False

    @abstractmethod
    def _lose(self, error: Exception | None) -> None:
        """End the connection for this reason."""

    def _begin_reading(self) -> None:
        self._has_begun = True
        self.on_readable()

    def is_reading(self) -> bool:
        """Whether what arrives is handed to the protocol."""
        return not self._is_closing and not self._is_paused

    def pause_reading(self) -> None:
        """Leave what arrives where it is."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Hand what arrives to the protocol again."""
        if self._is_paused and not self._is_closing:
            self._is_paused = False
            self.on_readable()

    def _read(self) -> None:
        self._is_read_planned = False
        if not self._has_begun or not self.is_reading():
            return
        incoming = self.incoming
        if incoming.arrived_bytes:
            size = self._hand_over()
            if self.host.read_rate is not None:
                self._next_read = self._loop.time() + size / self.host.read_rate
            if incoming.arrived_bytes or incoming.end is not None:
                self._plan_read()
        elif incoming.end is StreamEnd.RESET:
            self._lose(reset_error())
        elif incoming.end is StreamEnd.FIN and not self._saw_eof:
            self._saw_eof = True
            self._tell_eof()

    def _hand_over(self) -> int:
        """Give the protocol what has arrived; returns how much."""
        size_max = _READ_BYTES_MAX
        if self.host.read_rate is not None:
            size_max = max(1, int(self.host.read_rate * _SLOW_READ_S))
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            return self._fill(protocol, size_max)
        data = self.incoming.take(size_max)
        try:
            cast("asyncio.Protocol", protocol).data_received(data)
        except Exception as error:
            self._fail(error, "data_received")
        return len(data)

    def _fill(self, protocol: asyncio.BufferedProtocol, size_max: int) -> int:
        what = "get_buffer"
        data = b""
        try:
            buffer = memoryview(protocol.get_buffer(-1)).cast("B")
            if not buffer:
                raise RuntimeError("get_buffer() returned an empty buffer")
            data = self.incoming.take(min(len(buffer), size_max))
            buffer[: len(data)] = data
            what = "buffer_updated"
            protocol.buffer_updated(len(data))
        except Exception as error:
            self._fail(error, what)
        return len(data)

    def _tell_eof(self) -> None:
        try:
            stays_open = cast("asyncio.Protocol", self._protocol).eof_received()
        except Exception as error:
            self._fail(error, "eof_received")
            return
        if not stays_open:
            self.close()

    def _plan_read(self) -> None:
        if self._is_read_planned:
            return
        self._is_read_planned = True
        if self._next_read <= self._loop.time():
            self._plan(self._read)
        else:
            self._loop.call_at(self._next_read, self._read, context=self._context)

    def _fail(self, error: BaseException, what: str) -> None:
        """The protocol raised: say so, and close."""
        self._loop.call_exception_handler(
            {
                "message": f"Fatal error: protocol.{what}() call failed.",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )
        self._lose(error if isinstance(error, Exception) else None)

    # Called by the network.

    def on_readable(self) -> None:
        """Something arrived, or the end did."""
        if self.incoming.end is StreamEnd.RESET and (
            self._is_closing or self.get_write_buffer_size()
        ):
            # What is still to be written cannot be any more.
            self._plan(self._lose, reset_error())
        if self._has_begun and not self._is_paused and not self._is_closing:
            self._plan_read()

    def _plan(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)
