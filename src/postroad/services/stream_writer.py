"""Streams that go out: packets of the parts, numbered, each small enough to be carried."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from postroad.core.errors import MessageTooLargeError, UsageError
from postroad.core.limits import KIB

from .packets import Request, Response
from .serializers import Serializer
from .streams import OBJECT_MODE, STREAM_ERROR

CHUNK_BYTES_MAX = 256 * KIB
"""As nodes of the original system cut their chunks."""
# The number of a part grows while it is sent, and so does its size on the wire.
_SEQ_BYTES = 16


class StreamWriter:
    """One stream that goes out, with a request or as a response.

    The opening packet has what the call has. All others repeat it, but for the meta of requests,
    which is told once. Send them in the order in which they come from here.
    """

    def __init__(
        self,
        opening: Request | Response,
        serializer: Serializer,
        *,
        has_objects: bool = False,
        packet_bytes_max: int | None = None,
    ) -> None:
        """Raises MessageTooLargeError if the opening packet leaves no room for chunks.

        Args:
            opening: the request, or the successful response; its stream fields do not matter.
            serializer: the one that the packets will go through.
            has_objects: whether the chunks are values of any sort, which are never cut.
            packet_bytes_max: the largest packet that the transporter carries, if it has a limit.
        """
        headers = {**(opening.headers or {}), **({OBJECT_MODE: True} if has_objects else {})}
        self._has_objects = has_objects
        self._seq = 0
        self._is_over = False
        self.opening = _with_value(opening, None, headers=headers, stream=True, seq=0)
        if isinstance(opening, Request):
            self.opening = msgspec.structs.replace(self.opening, params=opening.params)
        self._later = self._make_later()
        self.chunk_bytes_max = _chunk_bytes_max(self._later, serializer, packet_bytes_max)
        """The size that chunks are cut to."""

    def __repr__(self) -> str:
        state = "over" if self._is_over else f"after {self._seq}"
        return f"<StreamWriter of {self.opening.id} {state}>"

    @property
    def is_over(self) -> bool:
        """Whether the last packet was made."""
        return self._is_over

    def chunks(self, value: Any) -> Iterator[Request | Response]:
        """The packets of the next piece: one or more, none for no bytes at all.

        They are made and numbered as they are taken: take all of them before anything else.
        """
        if self._has_objects:
            yield self._next(value, stream=True)
            return
        data = memoryview(value).cast("B")
        for begin in range(0, len(data), self.chunk_bytes_max):
            yield self._next(bytes(data[begin : begin + self.chunk_bytes_max]), stream=True)

    def end(self) -> Request | Response:
        """The last packet of a stream that is complete."""
        last = self._next(None, stream=False)
        self._is_over = True
        return last

    def fail(self, error: Mapping[str, Any]) -> Request | Response:
        """The last packet of a stream that broke off; the error is from `error_to_wire`."""
        last = self._next(None, stream=False)
        self._is_over = True
        told = dict(error)
        if isinstance(last, Response):
            return msgspec.structs.replace(last, success=False, error=told)
        return msgspec.structs.replace(last, headers={**last.headers, STREAM_ERROR: told})

    def _next(self, value: Any, *, stream: bool) -> Request | Response:
        if self._is_over:
            raise UsageError("the stream is over; nothing can follow its last packet")
        self._seq += 1
        return _with_value(self._later, value, stream=stream, seq=self._seq)

    def _make_later(self) -> Request | Response:
        if isinstance(self.opening, Request):
            return msgspec.structs.replace(self.opening, params=None, meta={})
        return self.opening


def _with_value(packet: Request | Response, value: Any, **changes: Any) -> Request | Response:
    field = "params" if isinstance(packet, Request) else "data"
    return msgspec.structs.replace(packet, **{field: value}, **changes)


def _chunk_bytes_max(
    packet: Request | Response, serializer: Serializer, packet_bytes_max: int | None
) -> int:
    if packet_bytes_max is None:
        return CHUNK_BYTES_MAX
    around = len(serializer.serialize(packet)) + serializer.chunk_bytes_more + _SEQ_BYTES
    fitting = (packet_bytes_max - around) // serializer.chunk_factor
    if fitting < 1:
        raise MessageTooLargeError(
            f"a stream needs {around} bytes for each packet besides its chunk, "
            f"and {packet_bytes_max} is the most the transporter carries"
        )
    return min(CHUNK_BYTES_MAX, fitting)
